"""Spark's format `tidegate`: frames and streams over the tables of a pipeline."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lake import at
from tests.packaging.environments import build_wheel
from tests.pipelines.by_hand import ByHand
from tests.pipelines.observe.reading.targets import visits_of
from tidegate import register_format
from tidegate.pipelines.definition import results

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


pytestmark = pytest.mark.spark

COLUMNS = ("user", "window_id", "pane", "total", "epoch")


@pytest.fixture
def visits(tmp_path: Path) -> ByHand:
    return visits_of(tmp_path)


def counted(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[name] for name in COLUMNS) for row in rows)


def collected(frame: DataFrame) -> Counter[tuple[Any, ...]]:
    return counted([row.asDict() for row in frame.collect()])


def final_of(visits: ByHand) -> Counter[tuple[Any, ...]]:
    latest = results.latest(visits.rows("results"), ("user",))
    return counted(results.final(latest, visits.head().manifest.watermark).to_pylist())


@pytest.mark.long
def test_views_and_filters(spark: SparkSession, visits: ByHand, tmp_path: Path) -> None:
    register_format(spark)
    made = spark.read.format("tidegate").option("config", str(tmp_path / "tidegate.toml"))
    latest = results.latest(visits.rows("results"), ("user",))
    assert collected(made.option("view", "latest").load("visits")) == counted(latest.to_pylist())
    assert collected(made.option("view", "final").load("visits")) == final_of(visits)
    assert made.option("view", "all").load("visits").count() == len(visits.rows("results"))
    assert made.option("view", "state").load("visits").count() == len(visits.rows("state")) - 1
    frame = made.option("view", "latest").load("visits")
    for user in ("zoë", "ann"):
        of_user = frame.where(f"user = '{user}' AND window_end > '2024-03-01 08:00:00Z'")
        assert {row["user"] for row in of_user.collect()} == {user}
    assert collected(frame) == counted(latest.to_pylist()), "filters of other queries over the frame don't stay"
    pushed = spark.read.format("tidegate").options(config=str(tmp_path / "tidegate.toml"), where="user = 'zoë'")
    assert {row["user"] for row in pushed.option("view", "all").load("visits").collect()} == {"zoë"}
    made.option("view", "final").load("visits").createOrReplaceTempView("visits_final")
    before = final_of(visits)
    assert collected(spark.sql("SELECT * FROM visits_final")) == before
    options = f"path 'visits', config '{tmp_path / 'tidegate.toml'}'"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW in_sql USING tidegate OPTIONS ({options})")
    assert collected(spark.sql("SELECT * FROM in_sql")) == before
    visits.epoch(watermark=at("15:00"))
    planned = before if spark.version >= "4.1" else final_of(visits)
    assert collected(spark.sql("SELECT * FROM visits_final")) == planned, "from Spark 4.1 on a frame is planned once"
    assert collected(made.option("view", "final").load("visits")) == final_of(visits) != before


SCRIPT = """
from pathlib import Path
from pyspark.sql import SparkSession
from tidegate import register_format

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(spark.read.format("tidegate").load("visits").count())
register_format(spark)
Path("tidegate.toml").rename("other.toml")
print(spark.read.format("tidegate").option("config", str(Path("other.toml").resolve())).load("visits").count())
register_format(spark, "other.toml")
print(spark.read.format("tidegate").option("view", "all").load("visits").count())
"""


@pytest.mark.long
def test_the_packages_of_the_wheel_are_enough(tmp_path: Path) -> None:
    visits = visits_of(tmp_path)
    with zipfile.ZipFile(build_wheel(tmp_path)) as wheel:
        wheel.extractall(tmp_path / "installed")
        tops = {name.partition("/")[0] for name in wheel.namelist() if ".dist-info" not in name}
    assert tops == {"tidegate", "pyspark_tidegate"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=240,
    )
    errors = [line for line in done.stderr.splitlines() if not line.startswith("\tat ")]
    assert done.returncode == 0, "\n".join(errors)[-3000:]
    final, again, every = map(int, done.stdout.split())
    assert final == again > 0
    assert every == len(visits.rows("results"))

"""Spark finds the format `tidegate` of an installed wheel by itself, and `register_format` stays a call that may be."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.packaging.environments import build_wheel
from tests.pipelines.observe.reading.targets import visits_of

pytestmark = [pytest.mark.long, pytest.mark.spark]

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

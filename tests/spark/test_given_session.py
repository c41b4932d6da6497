"""A project runs in an existing session, which keeps its settings, database, views and functions."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest

from tests.lake import Lake, at, session_pipeline
from tidegate import Pipeline, Project
from tidegate.pipelines.errors import Refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session as somebody has set it up: in another zone and database, with a view and a function."""
    mine = spark.newSession()
    mine.sql("CREATE DATABASE mine")
    mine.sql("USE mine")
    mine.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    mine.conf.set("spark.sql.shuffle.partitions", "3")
    mine.range(3).createOrReplaceTempView("three")
    mine.udf.register("plus_one", lambda value: value + 1, "bigint")
    mine.sql("SELECT 1").collect()
    yield mine
    mine.sql("DROP DATABASE mine CASCADE")
    spark.createDataFrame([], "a int")


def state(session: SparkSession) -> dict[str, Any]:
    """Return everything in a session that a run could change."""
    active = type(session).getActiveSession()
    assert active is not None
    return {
        "settings": session.conf.getAll,
        "database": session.catalog.currentDatabase(),
        "views": [row["tableName"] for row in session.sql("SHOW TABLES").collect()],
        "active": active.conf.get("spark.sql.session.timeZone"),
        "path": list(sys.path),
        "answer": session.sql("SELECT sum(id) + plus_one(1), current_timezone() FROM three").collect(),
    }


def in_code(lake: Lake, pipeline: Pipeline, **arguments: Any) -> Project:
    return Project(warehouse=lake.folder / "warehouse", work=lake.folder / "work", pipelines=[pipeline], **arguments)


def test_the_session_is_as_it_was_and_the_windows_are_those_of_the_local_engine(
    session: SparkSession, lake: Lake
) -> None:
    lake.append(("ann", at("00:10"), 1), ("ann", at("00:20"), 2), ("bob", at("05:00"), 4))
    before = state(session)
    project = in_code(lake, session_pipeline(), spark=session)
    project.stream("sessions", end_of_input=True)
    assert state(session) == before
    local = in_code(lake, session_pipeline(name="again"), engine="local")
    local.stream("again", end_of_input=True)
    columns = ["user", "window_start", "window_end", "events", "total"]
    expected = local.results("again", sort="total").rows.select(columns)
    assert project.results("sessions", sort="total").rows.select(columns) == expected
    assert project.snapshots.show("sessions").manifest.engine in (None, "spark")


@pytest.mark.long
def test_a_setting_of_the_session_counts_in_a_run(session: SparkSession, lake: Lake) -> None:
    """Notebooks set a store's credentials and the like in their session."""
    lake.append(("ann", at("00:10"), 1))
    session.conf.set("spark.sql.ansi.enabled", "false")
    more = session_pipeline(columns={"user": "user", "value": "CAST(CAST('x' AS INT) IS NULL AS BIGINT) + value"})
    project = in_code(lake, more, spark=session)
    project.stream("sessions", end_of_input=True)
    assert project.results("sessions").rows["total"].to_pylist() == [2]
    assert project.snapshots.check("sessions").same_code


@pytest.mark.long
def test_a_refused_run_leaves_the_session_too(session: SparkSession, lake: Lake) -> None:
    before = state(session)
    project = in_code(lake, session_pipeline(), spark=session)
    with pytest.raises(Refused, match="events"):
        project.stream("sessions")
    lake.append(("ann", at("00:10"), 1))
    wrong = in_code(lake, session_pipeline(columns={"value": "plus_two(value)"}), spark=session)
    with pytest.raises(Refused, match="plus_two"):
        wrong.stream("sessions")
    assert state(session) == before


JOB = """
from datetime import timedelta
from pathlib import Path
import sys

from pyspark.sql import SparkSession
from tidegate import Project

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
project = Project("tidegate.toml", spark=spark)
project.backfill("peaks", "2024-03-01", "2024-03-02")
print("windows", [row["peak"] for row in project.results("peaks", view="latest").to_dict()])
assert spark.range(5).count() == 5
assert not any("shipped" in entry or "code-" in entry for entry in sys.path)
spark.stop()
"""

MODULE = """
from tests.lake import hourly_pipeline
from dataclasses import replace
from datetime import timedelta
from tidegate import ProcessWindowFunction, TumblingEventTimeWindows, Windows
import pyarrow as pa

HOURS = TumblingEventTimeWindows.of(timedelta(hours=1))


class Peak(ProcessWindowFunction):
    result_type = pa.struct([("peak", pa.int64())])

    def process(self, key, context, elements):
        yield {"peak": max(element["value"] for element in elements)}


peaks = replace(hourly_pipeline("peaks"), compute=Windows(HOURS, process=Peak()))
"""


@pytest.mark.long
@pytest.mark.parametrize("command", ["python", "spark-submit"])
def test_a_job_with_a_session_of_its_own_without_delta_runs_the_projects_code(command: str, lake: Lake) -> None:
    """The tasks get the modules of the project, which are in no folder that they know."""
    lake.append(("ann", at("00:10"), 1), ("ann", at("00:20"), 7))
    (lake.folder / "tidegate.toml").write_text('[pipelines.peaks]\nobject = "peaks:peaks"\nstart = 2024-03-01\n')
    (lake.folder / "peaks.py").write_text(MODULE)
    (lake.folder / "job.py").write_text(JOB)
    environment = {name: text for name, text in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = subprocess.run(
        [sys.executable if command == "python" else str(submit), "job.py"],
        cwd=lake.folder,
        env={
            **environment,
            "PYTHONPATH": str(ROOT),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(submit.parent.parent),
        },
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "windows [7]" in done.stdout

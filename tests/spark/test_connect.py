"""Through Spark Connect, a backfill and a stream give the rows that they give with a JVM of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest

from tests.lake import Lake, assert_same_windows, at
from tests.spark.days import arrivals
from tidegate.pipelines.spark.jars import find_jars
from tidegate.pipelines.storage import read_table, warehouse_of
from tidegate.pipelines.tables.pipeline_tables import PipelineTables

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parent.parent.parent
STARTS_WITHIN = 120.0

JOBS = '''"""Sessions of each user with a function of the project's own, and the hours of each user."""

from datetime import timedelta

import pyarrow as pa

from tidegate import (
    Count, DeltaSource, EventTimeSessionWindows, Pipeline, Sum, TumblingEventTimeWindows, WatermarkStrategy, Windows,
)
from tidegate.windowing import ProcessWindowFunction

HOUR = timedelta(hours=1)


class Spread(ProcessWindowFunction):
    """The distance between the smallest and the largest value."""

    result_type = pa.struct([("spread", pa.int64())])

    def process(self, key, context, elements):
        values = [element["value"] for element in elements]
        yield {"spread": max(values) - min(values)}


common = dict(
    source=DeltaSource("events", timestamp="at"),
    key=("user",),
    watermark=WatermarkStrategy.for_bounded_out_of_orderness(HOUR),
)
sessions = EventTimeSessionWindows.with_gap(HOUR / 4)
spreads = Pipeline(name="spreads", compute=Windows(sessions, process=Spread()), **common)
hours = Pipeline(
    name="hours",
    compute=Windows(TumblingEventTimeWindows.of(HOUR), aggregate={"events": Count(), "total": Sum("value")}),
    where="value % 7 <> 0",
    columns={"value": "value * 2"},
    **common,
)
by_spark = Pipeline(
    name="by_spark",
    compute=Windows(TumblingEventTimeWindows.of(HOUR), aggregate={"events": Count()}),
    **{**common, "source": DeltaSource("events", timestamp="at", reader="spark")},
)
'''

PIPELINES = """
[pipelines.spreads]
object = "jobs:spreads"
start = 2024-03-01

[pipelines.hours]
object = "jobs:hours"
start = 2024-03-01

[pipelines.by_spark]
object = "jobs:by_spark"
start = 2024-03-01
"""


@dataclass(frozen=True)
class Project:
    """A project in a folder: a source table, jobs, and settings of Spark."""

    lake: Lake

    @classmethod
    def made(cls, folder: Path, **spark: str) -> Project:
        """Make a project with settings of Spark."""
        folder.mkdir()
        (folder / "jobs.py").write_text(JOBS)
        settings = [f'"spark.{name.replace("_", ".")}" = "{text}"' for name, text in spark.items()]
        (folder / "tidegate.toml").write_text("\n".join(["[spark]", *settings, PIPELINES]))
        return cls(Lake(folder))

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the project's folder."""
        inherited = {name: text for name, text in os.environ.items() if name != "SPARK_REMOTE"}
        return subprocess.run(
            [sys.executable, "-m", "tidegate.pipelines.cli", *arguments, "--json"],
            cwd=self.lake.folder,
            env={**inherited, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def do(self, *arguments: str, **environment: str) -> None:
        """Run a command that must succeed."""
        done = self.run(*arguments, **environment)
        assert done.returncode == 0, done.stdout + done.stderr

    def rows(self, pipeline: str, table: str) -> pa.Table:
        """Return the rows of one of a pipeline's tables."""
        tables = PipelineTables(warehouse_of(self.lake.config), pipeline)
        return read_table(tables.warehouse, tables.open(table))


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Connect server, whose Python has neither this checkout nor a project."""
    folder, home, port = tmp_path_factory.mktemp("server"), Path(pyspark.__file__).parent, free_port()
    settings = {
        "spark.master": "local[2]",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.jars": ",".join(map(str, find_jars())),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.ui.enabled": "false",
    }
    command = [str(home / "bin" / "spark-submit")]
    for key, text in settings.items():
        command += ["--conf", f"{key}={text}"]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    environment = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )
    try:
        deadline = time.monotonic() + STARTS_WITHIN
        while not listens(port):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def listens(port: int) -> bool:
    """Return True if a process answers at a port; wait a little if not."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        time.sleep(0.2)
        return False
    return True


def test_a_backfill_and_a_stream_give_the_rows_of_a_session_with_a_jvm(tmp_path: Path, server: str) -> None:
    connect = Project.made(tmp_path / "connect", remote=server)
    classic = Project.made(tmp_path / "classic", master="local[2]", driver_memory="1g")
    day = arrivals(1)
    for project in (connect, classic):
        project.lake.append(*day[:200])
        project.do("backfill", "spreads", "--start", "2024-03-01", "--end", "2024-03-02", "--slice", "12h")
        project.do("stream", "hours", "--available-now")
        project.lake.append(*day[200:], ("late", at("03:00"), 1))
        for pipeline in ("spreads", "hours"):
            project.do("stream", pipeline, "--available-now")
    for pipeline in ("spreads", "hours"):
        results = connect.rows(pipeline, "results")
        assert len(results) > 20
        assert_same_windows(results, classic.rows(pipeline, "results"))
        assert len(connect.rows(pipeline, "late")) == len(classic.rows(pipeline, "late")) == 1

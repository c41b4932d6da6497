"""Through Spark Connect, a backfill and a stream give the same rows as with a JVM of their own."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest

from tests.docs.test_notebook_page import IN_SPARK, NOTEBOOK
from tests.lake import DAY0, Lake, assert_same_windows, at
from tests.waiting import wait_until
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.engine.spark.jars import find_jars
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import read_table

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
class Fails(ProcessWindowFunction):
    """Fails in the task."""

    result_type = Spread.result_type

    def process(self, key, context, elements):
        raise ValueError(f"no good value for {key}")


fails = Pipeline(name="fails", compute=Windows(sessions, process=Fails()), **common)
counts = Windows(TumblingEventTimeWindows.of(HOUR), aggregate={"events": Count()})
by_tasks = Pipeline(name="by_tasks", compute=counts, **common)
sql_by_spark = Pipeline(name="sql_by_spark", compute=counts, where="hash(value) is not null", **common)
by_spark = Pipeline(
    name="by_spark",
    compute=counts,
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

[pipelines.fails]
object = "jobs:fails"
start = 2024-03-01

[pipelines.by_tasks]
object = "jobs:by_tasks"
start = 2024-03-01

[pipelines.sql_by_spark]
object = "jobs:sql_by_spark"
start = 2024-03-01

[pipelines.by_spark]
object = "jobs:by_spark"
start = 2024-03-01
"""


IN_CODE = """
import json, sys
from pyspark.sql import SparkSession
from tidegate import Project

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
spark.range(3).createOrReplaceTempView("three")
before = spark.conf.getAll
project = Project("tidegate.toml", spark=spark)
project.stream("spreads")
project.snapshots.check("spreads")
assert spark.conf.getAll == before
print(json.dumps([row["spread"] for row in project.results("spreads", view="latest").to_dict()]))
assert spark.conf.get("spark.sql.session.timeZone") == "Europe/Berlin"
assert spark.sql("SELECT count(*) FROM three").collect()[0][0] == 3
spark.stop()
"""


def arrivals(seed: int, count: int = 300) -> list[tuple[str, datetime, int]]:
    """A day of events of seven users, at most 50 minutes out of order; the last event moves the watermark past all
    others.
    """
    draw = random.Random(seed)
    rows = [(f"user{draw.randrange(7)}", DAY0 + timedelta(seconds=draw.randrange(86_400)), n) for n in range(count)]
    rows.sort(key=lambda event: event[1] + timedelta(minutes=draw.randrange(50)))
    return [*rows, ("end", DAY0 + timedelta(hours=27), 0)]


@dataclass(frozen=True)
class Project:
    """A project in a folder: a source table, jobs, and settings of Spark."""

    lake: Lake

    @classmethod
    def made(cls, folder: Path, **spark: str) -> Project:
        """Create a project with Spark settings."""
        folder.mkdir()
        (folder / "jobs.py").write_text(JOBS)
        settings = [f'"spark.{name.replace("_", ".")}" = "{text}"' for name, text in spark.items()]
        (folder / "tidegate.toml").write_text("\n".join(["[spark]", *settings, PIPELINES]))
        return cls(Lake(folder))

    def run(
        self, *arguments: str, python: Sequence[str] = ("-m", "tidegate"), **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the project's folder, with a Python script that runs it."""
        inherited = {name: text for name, text in os.environ.items() if name != "SPARK_REMOTE"}
        return subprocess.run(
            [sys.executable, *python, *arguments, "--json"],
            cwd=self.lake.folder,
            env={**inherited, "PYTHONPATH": str(ROOT), **environment},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    def do(self, *arguments: str, **options: Any) -> None:
        """Run a command that must succeed."""
        done = self.run(*arguments, **options)
        assert done.returncode == 0, done.stdout + done.stderr

    def fail(self, code: int, *arguments: str, **environment: str) -> str:
        """Run a command that must end with an exit code, and return its message."""
        done = self.run(*arguments, **environment)
        assert done.returncode == code, done.stdout + done.stderr
        return str(json.loads(done.stdout)["message"])

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

        def answers() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            return listens(port)

        wait_until(answers, "Spark's Connect server", STARTS_WITHIN, 0.2)
        yield f"sc://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def listens(port: int) -> bool:
    """Return True if a process answers at a port."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.long
def test_a_backfill_and_a_stream_give_the_rows_of_a_session_with_a_jvm(tmp_path: Path, server: str) -> None:
    connect = Project.made(tmp_path / "connect", remote=server)
    classic = Project.made(tmp_path / "classic", master="local[2]", driver_memory="1g")
    day = arrivals(1)
    for project in (connect, classic):
        project.lake.append(*day[:200])
        project.do("backfill", "spreads", "--start", "2024-03-01", "--end", "2024-03-02", "--slice", "12h")
        project.lake.append(*day[200:], ("late", at("03:00"), 1))
        for pipeline in ("spreads", "hours"):
            project.do("stream", pipeline, "--available-now")
    for pipeline in ("spreads", "hours"):
        for table in ("results", "late"):
            rows = connect.rows(pipeline, table)
            assert len(rows) > 0
            assert_same_windows(rows, classic.rows(pipeline, table))


@pytest.mark.long
def test_events_are_exchanged_between_tasks(tmp_path: Path, server: str) -> None:
    in_place, exchanged = (Project.made(tmp_path / name, remote=server) for name in ("in_place", "exchanged"))
    for project in (in_place, exchanged):
        project.lake.append(*arrivals(2))
    in_place.do("stream", "hours", "--available-now", "--parallelism", "8")
    # The limit is meant for millions of rows.
    script = "from tidegate.pipelines.project import cli\nfrom tidegate.pipelines.epoch import exchange\n"
    script += "exchange._ROWS_READ_AGAIN = -1\ncli.main()"
    exchanged.do("stream", "hours", "--available-now", "--parallelism", "8", python=("-c", script))
    assert_same_windows(exchanged.rows("hours", "results"), in_place.rows("hours", "results"))


@pytest.mark.long
def test_a_setting_that_only_the_start_of_the_server_decides_is_refused(tmp_path: Path, server: str) -> None:
    project = Project.made(tmp_path / "connect", remote=f"{server}/;user_id=ann", driver_memory="8g")
    project.lake.append(("ann", at("10:00"), 1))
    message = project.fail(2, "stream", "hours", "--available-now")
    assert f"spark.'spark.driver.memory' in {project.lake.folder}/tidegate.toml can't be set in a session" in message
    assert f"start the server {server} with it" in message


@pytest.mark.long
def test_the_server_is_named_by_the_environment_too_and_must_answer(tmp_path: Path, server: str) -> None:
    project = Project.made(tmp_path / "connect")
    project.lake.append(("ann", at("10:00"), 1))
    project.do("stream", "hours", "--available-now", SPARK_REMOTE=server)
    assert project.rows("hours", "epochs").num_rows == 1
    nobody = f"sc://127.0.0.1:{free_port()}"
    message = project.fail(1, "stream", "hours", "--available-now", SPARK_REMOTE=f"{nobody}/;token=hush")
    assert f"no Spark Connect server answers at {nobody} within" in message
    assert "hush" not in message


@pytest.mark.long
def test_spark_reads_files_and_evaluates_sql_on_the_server(tmp_path: Path, server: str) -> None:
    project = Project.made(tmp_path / "connect", remote=server)
    project.lake.append(*arrivals(3))
    for pipeline in ("by_tasks", "by_spark", "sql_by_spark"):
        project.do("stream", pipeline, "--available-now")
    expected = project.rows("by_tasks", "results")
    assert len(expected) > 0
    assert_same_windows(project.rows("by_spark", "results"), expected)
    assert_same_windows(project.rows("sql_by_spark", "results"), expected)


@pytest.mark.long
def test_the_notebook_of_project_gives_the_same_through_the_server(tmp_path: Path, server: str) -> None:
    project = Project.made(tmp_path / "connect")
    done = project.run(str(NOTEBOOK), server, python=("-c", IN_SPARK))
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.mark.long
def test_a_project_in_code_runs_in_a_session_of_connect_and_leaves_it_as_it_was(tmp_path: Path, server: str) -> None:
    project = Project.made(tmp_path / "connect")
    project.lake.append(("ann", at("10:00"), 1), ("ann", at("10:10"), 5), ("bob", at("23:00"), 1))
    (project.lake.folder / "job.py").write_text(IN_CODE)
    done = project.run(server, python=("job.py",))
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout) == [4]


@pytest.mark.long
def test_an_error_in_a_task_is_told_in_one_line(tmp_path: Path, server: str) -> None:
    project = Project.made(tmp_path / "connect", remote=server)
    project.lake.append(("ann", at("10:00"), 1), ("bob", at("23:00"), 1))
    message = project.fail(1, "stream", "fails", "--available-now")
    assert message.startswith("epoch 1 of fails can't be computed: ValueError: no good value for ann")

"""The shards of an epoch become Spark tasks, and Spark reads only the files that it needs. On request, a stream and a
backfill end after the current epoch, at any time, and can continue from there.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.lake import LOCAL, Lake, assert_same_windows, at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import ByHand
from tests.pipelines.project.cli.project import CODE, SPARK_TOML
from tidegate.pipelines import DeltaSource
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.engine.spark.delta_files import DeltaFiles
from tidegate.pipelines.engine.spark.engine import SparkEngine
from tidegate.pipelines.epoch import shard_state
from tidegate.pipelines.epoch.file_slices import of_version
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.operate import operate
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.failures import reported_as
from tidegate.pipelines.ledger.lease import read_lease
from tidegate.pipelines.ledger.snapshots.head import state_rows
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.windowing.time import to_millis

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


pytestmark = pytest.mark.spark


def test_a_hundred_shards_share_a_few_tasks(spark: SparkSession, tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, parallelism=100)
    by_hand.epoch(*((f"user{number}", at("10:00"), 1) for number in range(300)), watermark=at("10:00"))
    plan = by_hand.planned([], at("13:00")).plan

    spark.sparkContext.setJobGroup("shards", "of this test")
    outcomes = operate(SparkEngine(spark), plan)
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup("shards")]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    assert sum(stage.numTasks for stage in stages if stage is not None) <= 4 * spark.sparkContext.defaultParallelism
    assert sorted(outcome.shard for outcome in outcomes) == list(range(100))
    assert sum(outcome.counters["fired_on_time"] for outcome in outcomes) == 300


def test_an_error_of_a_task_keeps_its_remedies(spark: SparkSession) -> None:
    remedy = Remedy(Act.RESTART, "hours")

    def fail(task: Sequence[int]) -> Iterator[pa.RecordBatch]:
        raise Refused("the file is gone", remedy)
        yield

    with pytest.raises(Refused) as raised, reported_as("it failed", "Run again"):
        SparkEngine(spark).in_place([[0]], fail, pa.schema({"n": pa.int64()}))
    assert (raised.value.message, raised.value.remedies) == ("the file is gone", (remedy,))


def test_arrow_and_numpy_share_the_memory_of_a_worker_and_keep_it(spark: SparkSession) -> None:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pool, kept = pa.default_memory_pool().backend_name, int(os.environ["MALLOC_TRIM_THRESHOLD_"])
            yield pa.RecordBatch.from_pydict({"pool": [pool], "kept": [kept]})

    workers = spark.range(0, 2, 1, 2).mapInArrow(look, "pool string, kept long").collect()
    assert {(row["pool"], row["kept"]) for row in workers} == {("system", 512 * 1024 * 1024)}


def test_a_run_over_what_is_new_lists_no_file_that_was_read_before(spark: SparkSession, lake: Lake) -> None:
    """A source of several years has more files than should be listed every ten minutes."""
    pipeline = hourly_pipeline()
    lake.append(("a", at("10:30"), 1))
    lake.stream(spark, pipeline)
    lake.append(("a", at("11:30"), 1))
    jobs = spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs
    before = jobs()
    lake.stream(spark, pipeline)
    assert jobs() - before <= 2, "the epoch's own"


def test_spark_lists_only_the_files_that_it_is_given(spark: SparkSession, lake: Lake) -> None:
    for number in range(3):
        lake.append(("a", at("10:00", number), number))
    pipeline = hourly_pipeline(source=DeltaSource("events", timestamp="at", reader="spark"))
    with lake.driver(spark, pipeline) as driver:
        source = OpenInput.open(driver.engine, driver.tables, pipeline)
        files = of_version(source, 2, None, to_millis(at("00:00", 1)), to_millis(at("00:00", 2)))
        (table,) = files.tables
        assert table.for_spark is not None
        assert len(DeltaFiles(spark, table.for_spark).rows(files.parts).inputFiles()) == 1


@pytest.mark.long
def test_state_with_deltas_is_on_spark_what_it_is_without(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Spark's tasks run in other processes, which don't see this.
    monkeypatch.setattr(shard_state, "SMALLEST", 2**62)
    plain, deltas = Lake(tmp_path / "plain"), Lake(tmp_path / "deltas")
    pipeline = session_pipeline(timedelta(hours=3), parallelism=1)

    def step(*rows: tuple[str, str], parallelism: int = 1) -> None:
        for lake, engine in ((plain, LOCAL), (deltas, spark)):
            lake.append(*[(user, at(time), 1) for user, time in rows])
            lake.stream(engine, replace(pipeline, parallelism=parallelism))
        rows_of = [
            sorted(map(repr, state_rows(warehouse_of(lake.config), lake.snapshot(pipeline)).to_pylist()))
            for lake in (plain, deltas)
        ]
        assert rows_of[0] == rows_of[1]

    # A smaller shard has no deltas.
    step(*[(f"user {number}", "10:00") for number in range(70_000)])
    step(("user 1", "10:05"))
    step(("user 2", "10:06"), ("user 69999", "10:04"), ("user new", "10:07"))
    assert sorted(file.get("min.delta_mark") is not None for file in deltas.snapshot(pipeline).files) == [False, True]
    step(("user 3", "10:08"), ("user 2", "10:09"), parallelism=2)
    step(("user 1", "16:00"), parallelism=2)
    assert_same_windows(deltas.final(pipeline), plain.final(pipeline))
    assert len(plain.final(pipeline)) >= 70_000


ROOT = Path(__file__).parents[2]


# tests/pipelines/project/cli/test_stream.py always sends both signals to the command, without a JVM, and the tests
# below ask running epochs to stop.
@pytest.mark.long
def test_a_command_that_gets_sigterm_ends_its_epoch_publishes_it_and_gives_the_lease_back(tmp_path: Path) -> None:
    project, source = tmp_path / "project", Lake(tmp_path / "project")
    project.mkdir()
    source.append(("ann", at("08:00"), 8), ("ann", at("10:00"), 10))
    (project / "tidegate.toml").write_text(SPARK_TOML)
    (project / "of_the_project.py").write_text(CODE)
    command = [sys.executable, "-m", "tidegate", "stream", "sessions", "--interval", "1s"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(project)])}
    with subprocess.Popen(
        command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            told = ""
            for line in process.stdout:
                told += line
                if line.startswith("epoch 1:"):
                    process.send_signal(signal.SIGTERM)
        finally:
            process.kill()
    assert process.returncode == 0, told
    assert "epoch 1: 2 in, 0 late" in told
    assert "sessions: ended after a whole epoch" in told
    pipeline = session_pipeline()
    head = source.snapshot(pipeline).manifest
    assert source.rows(pipeline, "epochs")["epoch"].to_pylist() == list(range(1, head.epoch + 1))
    lease = read_lease(source.tables(pipeline))
    assert lease is not None
    assert not lease.is_alive(source.clock())

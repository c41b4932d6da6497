"""The shards of an epoch become tasks of Spark, which reads no file that it need not."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.lake import Lake, assert_same_windows, at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines import DeltaSource
from tidegate.pipelines.definition import state
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.engine.spark.delta_files import DeltaFiles
from tidegate.pipelines.engine.spark.engine import SparkEngine
from tidegate.pipelines.epoch.file_slices import of_version
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.operate import operate
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.head import state_rows
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import Count, TumblingProcessingTimeWindows, WatermarkStrategy, Windows
from tidegate.windowing.time import to_millis

if TYPE_CHECKING:
    from pathlib import Path

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


def test_arrow_and_numpy_share_the_memory_of_a_worker_and_keep_it(spark: SparkSession) -> None:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pool, kept = pa.default_memory_pool().backend_name, int(os.environ["MALLOC_TRIM_THRESHOLD_"])
            yield pa.RecordBatch.from_pydict({"pool": [pool], "kept": [kept]})

    workers = spark.range(0, 2, 1, 2).mapInArrow(look, "pool string, kept long").collect()
    assert {(row["pool"], row["kept"]) for row in workers} == {("system", 512 * 1024 * 1024)}


def test_a_continuous_stream_takes_data_as_it_comes_and_beats_while_none_does(spark: SparkSession, lake: Lake) -> None:
    # Commits have their own clock, the machine's: no window may end between the two of this test.
    beginning = timedelta(milliseconds=lake.clock.now) % timedelta(hours=1)
    of_an_hour = TumblingProcessingTimeWindows.of(timedelta(hours=1), offset=beginning - timedelta(minutes=30))
    windows = Windows(of_an_hour, aggregate={"events": Count()})
    pipeline = hourly_pipeline(compute=windows, watermark=WatermarkStrategy.no_watermarks())
    lake.append(("a", at("10:30"), 1))
    made: list[Manifest] = []
    deadline = time.monotonic() + 120

    def on_epoch(manifest: Manifest) -> None:
        made.append(manifest)
        if len(made) == 1:
            lake.append(("a", at("10:40"), 1))
        elif len(made) == 2:
            lake.clock.now += 2 * 60 * 60_000

    def should_stop() -> bool:
        assert time.monotonic() < deadline, made
        return bool(made) and made[-1].kind == "clock"

    with lake.driver(spark, pipeline) as driver:
        Stream(driver, on_epoch).run_continuously(timedelta(milliseconds=200), should_stop)
    assert [manifest.kind for manifest in made] == ["stream", "stream", "clock"]
    assert [row["events"] for row in lake.rows(pipeline, "results").to_pylist()] == [2]
    assert not (lake.config.work_folder / "checkpoints").exists()


def test_a_run_over_what_is_new_lists_no_file_that_was_read_before(spark: SparkSession, lake: Lake) -> None:
    """A source of years has more files than anybody wants to list every ten minutes."""
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
def test_state_with_deltas_is_on_spark_what_it_is_without(spark: SparkSession, tmp_path: Path) -> None:
    plain, deltas = Lake(tmp_path / "plain"), Lake(tmp_path / "deltas")
    pipeline = session_pipeline(timedelta(hours=3), parallelism=1)

    def step(*rows: tuple[str, str], parallelism: int = 1) -> None:
        for lake in (plain, deltas):
            lake.append(*[(user, at(time), 1) for user, time in rows])
            lake.stream(spark, replace(pipeline, parallelism=parallelism))
        rows_of = [
            sorted(map(repr, state_rows(warehouse_of(lake.config), lake.snapshot(pipeline)).to_pylist()))
            for lake in (plain, deltas)
        ]
        assert rows_of[0] == rows_of[1]

    # A smaller shard has no deltas.
    step(*[(f"user {number}", "10:00") for number in range(70_000)])
    assert deltas.tables(pipeline).widen({state.NAME: pa.schema(state.DELTAS)})
    step(("user 1", "10:05"))
    step(("user 2", "10:06"), ("user 69999", "10:04"), ("user new", "10:07"))
    assert sorted(file.get("min.delta_mark") is not None for file in deltas.snapshot(pipeline).files) == [False, True]
    step(("user 3", "10:08"), ("user 2", "10:09"), parallelism=2)
    step(("user 1", "16:00"), parallelism=2)
    assert_same_windows(deltas.final(pipeline), plain.final(pipeline))
    assert len(plain.final(pipeline)) >= 70_000

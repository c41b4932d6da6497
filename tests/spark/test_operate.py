"""The shards of an epoch become tasks of Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.engine.spark.engine import SparkEngine
from tidegate.pipelines.epoch.operate import operate

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

"""A short backfill and a short stream, run once by `tidegate setup` so that their Java classes can be archived."""

from __future__ import annotations

import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.engine.spark import jvm
from tidegate.pipelines.engine.spark.class_archive import options_to_make
from tidegate.pipelines.run.backfill import backfill
from tidegate.pipelines.run.drive import drive
from tidegate.pipelines.run.intervals import cut
from tidegate.pipelines.run.stream import Stream
from tidegate.pipelines.sources.delta.description import DeltaSource
from tidegate.windowing import Count, TumblingEventTimeWindows, WatermarkStrategy, Windows


def warm_up(archive: Path, folder: Path) -> None:
    """Run a backfill and a stream over three rows, in a JVM that writes its classes to an archive on exit."""
    options = options_to_make(archive)
    config = Config(root=folder, spark={"spark.master": "local[2]", "spark.driver.extraJavaOptions": options})
    begin = datetime(2024, 3, 1, tzinfo=UTC)
    moments = pa.array([begin + timedelta(hours=hour) for hour in (1, 2, 30)], pa.timestamp("us", tz="UTC"))
    write_deltalake(f"{config.warehouse_uri}/events", pa.table({"user": ["a", "b", "c"], "at": moments}))
    pipeline = Pipeline(
        name="made_ready",
        # Spark's reader loads more classes than the tasks' own reader.
        source=DeltaSource("events", timestamp="at", reader="spark"),
        key=("user",),
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
        compute=Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate={"events": Count()}),
    )
    with drive(config, pipeline, "setup") as driver:
        list(backfill(driver, cut(begin, begin + timedelta(days=1), None)))
        Stream(driver, lambda manifest: None).run_available()
    jvm.end()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as project:
        warm_up(Path(sys.argv[1]), Path(project))

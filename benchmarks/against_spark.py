"""Side by side with Spark's own windows, in one session and one run: ours writes results and state, the peer nothing.

    python -m benchmarks.against_spark [--events 5000000] [--keys 100000] [--rounds 3] [--only batch|stream] [--hot 0.5]

Batch is one backfill over all events against `groupBy(session_window or window)` into the noop sink. Streaming
is one epoch for each commit of 500,000 events against the same query in structured streaming with RocksDB. Both
sides take turns, each is warmed up once, and the ratio is of the medians.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import write_deltalake

from benchmarks.events import DAY, START, EventSet
from pipelines import DeltaSource, Pipeline
from pipelines.backfill import backfill
from pipelines.config import Config
from pipelines.driver import drive
from pipelines.session import start_session
from pipelines.snapshots.manifest import Interval
from pipelines.stream import Stream
from windowing import (
    Count,
    EventTimeSessionWindows,
    Sum,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from windowing.assigners import WindowAssigner

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

GAP = timedelta(minutes=10)
DELAY = timedelta(minutes=1)
PER_COMMIT = 500_000
ASSIGNERS: dict[str, WindowAssigner] = {
    "session": EventTimeSessionWindows.with_gap(GAP),
    "tumbling": TumblingEventTimeWindows.of(GAP),
}


@dataclass
class Bench:
    """The events in a Delta table, and a Spark session for both sides."""

    folder: Path
    spark: SparkSession

    @property
    def events(self) -> str:
        """Path of the events."""
        return str(self.folder / "events")

    def write(self, events: EventSet) -> None:
        """Write the events, a commit of two files for every 500,000."""
        table = events.arrays()
        moments = table["ts"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
        table = table.set_column(1, "at", moments)
        for begin in range(0, len(table), PER_COMMIT):
            part = table.slice(begin, PER_COMMIT)
            write_deltalake(self.events, part, mode="append", target_file_size=part.nbytes // 4)

    @contextmanager
    def project(self) -> Iterator[Config]:
        """A project without anything run."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            yield Config(warehouse="warehouse", root=Path(folder))

    def pipeline(self, kind: str) -> Pipeline:
        """The windows of a kind over the events."""
        return Pipeline(
            name=kind,
            source=DeltaSource(self.events, timestamp="at"),
            key=("key",),
            watermark=WatermarkStrategy.for_bounded_out_of_orderness(DELAY),
            compute=Windows(ASSIGNERS[kind], aggregate={"events": Count(), "total": Sum("value")}),
        )

    def batch(self, kind: str) -> float:
        """Seconds of one backfill over everything."""
        with self.project() as config, drive(config, self.pipeline(kind), "bench", spark=self.spark) as driver:
            began = perf_counter()
            list(backfill(driver, [Interval(start=START - DAY, end=START + 2 * DAY)]))
            return perf_counter() - began

    def spark_batch(self, kind: str) -> float:
        """Seconds of Spark's own windows, nothing written."""
        began = perf_counter()
        frame = self.spark.read.format("delta").load(self.events)
        self.grouped(frame, kind).write.format("noop").mode("overwrite").save()
        return perf_counter() - began

    def stream(self, kind: str) -> float:
        """Median seconds of an epoch of 500,000 events."""
        seconds: list[float] = []
        with self.project() as config, drive(config, self.pipeline(kind), "bench", spark=self.spark) as driver:
            began = perf_counter()

            def note(manifest: object) -> None:
                nonlocal began
                seconds.append(perf_counter() - began)
                began = perf_counter()

            Stream(driver, config.work_folder, note, {"maxFilesPerTrigger": "1000", **one_commit(self)}).run_available()
        return median(seconds[1:])

    def spark_stream(self, kind: str) -> float:
        """Median seconds of a micro-batch of Spark's own windows, nothing written."""
        checkpoint = self.folder / "checkpoint"
        shutil.rmtree(checkpoint, ignore_errors=True)
        reader = self.spark.readStream.format("delta").options(**one_commit(self))
        frame = reader.load(self.events).withWatermark("at", f"{DELAY.seconds} seconds")
        query = (
            self.grouped(frame, kind)
            .writeStream.foreachBatch(lambda batch, number: batch.write.format("noop").mode("overwrite").save())
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        rounds = [progress for progress in query.recentProgress if progress["numInputRows"]]
        return median(progress["durationMs"]["triggerExecution"] / 1000 for progress in rounds[1:])

    def grouped(self, frame: DataFrame, kind: str) -> DataFrame:
        """Spark's own form of the windows."""
        from pyspark.sql import functions as F

        minutes = f"{GAP.seconds // 60} minutes"
        window: Column = F.session_window("at", minutes) if kind == "session" else F.window("at", minutes)
        return frame.groupBy("key", window).agg(F.count("*").alias("events"), F.sum("value").alias("total"))


def one_commit(bench: Bench) -> dict[str, str]:
    """Reader options that make each commit a micro-batch of its own, for both sides."""
    files = len(list(Path(bench.events).glob("*.parquet")))
    commits = len(list(Path(bench.events, "_delta_log").glob("*.json")))
    return {"maxFilesPerTrigger": str(max(files // commits, 1))}


def compare(what: str, ours: Callable[[], float], peer: Callable[[], float], rounds: int) -> None:
    """Both in turns; a line with the medians and their ratio."""
    ours(), peer()
    pairs = [(ours(), peer()) for _ in range(rounds)]
    own, other = (median(side) for side in zip(*pairs, strict=True))
    print(f"{what:24}{own:>10.2f} s{other:>10.2f} s{other / own:>10.2f} x", flush=True)


def main() -> None:
    """Print seconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--hot", type=float, default=0.0, help="share of all events that one more key has")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("batch", "stream"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = Config(
            root=Path(folder),
            spark={
                "spark.driver.memory": "4g",
                "spark.master": "local[2]",
                "spark.sql.shuffle.partitions": 4,
                "spark.sql.streaming.stateStore.providerClass": (
                    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
                ),
                "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": True,
                "spark.sql.streaming.noDataMicroBatches.enabled": False,
            },
        )
        spark = start_session(config, "benchmark")
        bench = Bench(Path(folder), spark)
        bench.write(EventSet(options.events, options.keys, options.hot))
        print(
            f"{options.events:,} events, {options.keys:,} keys, hot key {options.hot:.0%}; median of {options.rounds}"
        )
        print(f"{'':24}{'ours':>12}{'Spark':>12}{'ratio':>12}")
        for kind in ASSIGNERS:
            if options.only in (None, "batch"):
                compare(f"batch, {kind}", lambda: bench.batch(kind), lambda: bench.spark_batch(kind), options.rounds)  # noqa: B023
            if options.only in (None, "stream"):
                compare(
                    f"500,000 events, {kind}",
                    lambda: bench.stream(kind),  # noqa: B023
                    lambda: bench.spark_stream(kind),  # noqa: B023
                    options.rounds,
                )
        spark.stop()


if __name__ == "__main__":
    main()

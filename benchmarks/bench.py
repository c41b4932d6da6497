"""The shared parts of comparisons: the events in a Delta table, one Spark session for both sides, and our side."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.event_table import EventTable, Layout
from benchmarks.events import DAY, START, EventSet
from benchmarks.phases import Phases, Seconds, show, typical
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.engine.base import Engine
from tidegate.pipelines.engine.spark.engine import SparkEngine
from tidegate.pipelines.engine.spark.session import start_session
from tidegate.pipelines.ledger.manifest import Interval, Manifest
from tidegate.pipelines.run.backfill import backfill
from tidegate.pipelines.run.drive import drive
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import (
    Count,
    EventTimeSessionWindows,
    Sum,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.assigners import WindowAssigner

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GAP = timedelta(minutes=10)
DELAY = timedelta(minutes=1)
ASSIGNERS: dict[str, WindowAssigner] = {
    "session": EventTimeSessionWindows.with_gap(GAP),
    "tumbling": TumblingEventTimeWindows.of(GAP),
}

STATE_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
SPARK_SETTINGS: Mapping[str, str | int | bool] = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": 4,
    STATE_PROVIDER: "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": True,
    "spark.sql.streaming.noDataMicroBatches.enabled": False,
}
"""Settings for both sides: two cores, partitions for them, and Spark's state as its users tune it."""


@dataclass(frozen=True, slots=True)
class Run:
    """The time of one run of ours.

    Args:
        seconds: seconds of the whole backfill, or the median of a stream's epochs without the first.
        phases: the same seconds by phase.
    """

    seconds: float
    phases: Seconds

    def __str__(self) -> str:
        return show(self.phases)


def typical_run(runs: list[Run]) -> Run:
    """Return the medians of several runs."""
    return Run(median(run.seconds for run in runs), typical(run.phases for run in runs))


@dataclass
class Bench:
    """Events in a Delta table, and a Spark session for both sides.

    Args:
        folder: folder of the table and of all projects.
        spark: the session.
        per_commit: number of events in a commit, which a stream takes as an epoch.
        name: name of the table in the folder.
        shards: number of shards of our state, each one key group; None for one for each core.
        layout: layout of the table.
        where: condition of the pipeline; None for all events. The peer has it too.
        columns: derived columns of the pipeline, which the peer has too.
        summed: column whose sum both sides compute.
        engine: engine of our side; None for one of Spark in the session.
    """

    folder: Path
    spark: SparkSession
    per_commit: int = 500_000
    name: str = "events"
    shards: int | None = None
    layout: Layout = "plain"
    where: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    summed: str = "value"
    engine: Engine | None = None

    @cached_property
    def table(self) -> EventTable:
        """Return the table of the events."""
        return EventTable(self.folder / self.name, self.layout)

    @property
    def events(self) -> str:
        """Return the path of the events."""
        return str(self.table.path)

    def write(self, events: EventSet) -> None:
        """Write the events in commits of `per_commit`."""
        for piece in events.pieces(self.per_commit):
            self.append(piece)

    def append(self, table: pa.Table) -> None:
        """Add events in one commit."""
        moments = table["ts"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))
        self.table.append(table.set_column(table.schema.get_field_index("ts"), "at", moments))

    @contextmanager
    def project(self) -> Iterator[Config]:
        """Make a project in which nothing was run, and remove it afterwards."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            yield Config(warehouse="warehouse", root=Path(folder))

    def pipeline(self, kind: str) -> Pipeline:
        """Return the pipeline with windows of a kind over the events."""
        return Pipeline(
            name=kind,
            source=DeltaSource(self.events, timestamp="at"),
            key=("key",),
            watermark=WatermarkStrategy.for_bounded_out_of_orderness(DELAY),
            compute=Windows(ASSIGNERS[kind], aggregate={"events": Count(), "total": Sum(self.summed)}),
            where=self.where,
            columns=dict(self.columns),
            **({} if self.shards is None else {"parallelism": self.shards, "max_parallelism": self.shards}),
        )

    def batch(self, kind: str) -> Run:
        """Run one backfill over all events in one epoch; it writes results and state."""
        phases = Phases()
        with (
            self.project() as config,
            drive(config, self.pipeline(kind), "bench", self.engine or SparkEngine(self.spark), tell=phases) as driver,
        ):
            phases.take()
            began = perf_counter()
            list(backfill(driver, [Interval(start=START - DAY, end=START + 2 * DAY)]))
            return Run(perf_counter() - began, phases.take())

    def stream(self, kind: str) -> Run:
        """Run a stream that takes each commit as an epoch, and return the median of all epochs but the first."""
        with self.project() as config:
            runs = self.epochs(kind, config)
        return typical_run(runs[1:] or runs)

    def epochs(self, kind: str, config: Config) -> list[Run]:
        """Run an epoch for each commit that the project's pipeline has not seen."""
        runs: list[Run] = []
        phases = Phases()
        with drive(config, self.pipeline(kind), "bench", self.engine or SparkEngine(self.spark), tell=phases) as driver:
            began = perf_counter()

            def note(manifest: Manifest) -> None:
                nonlocal began
                now = perf_counter()
                if manifest.kind == "stream":
                    runs.append(Run(now - began, phases.take()))
                began = now

            phases.take()
            Stream(driver, note, EpochLimits(commits=1)).run_available()
        return runs

    @property
    def commit_by_commit(self) -> dict[str, str]:
        """Return options of Spark's Delta source that make each commit a micro-batch."""
        return {"maxFilesPerTrigger": str(self.table.files_per_commit)}


@contextmanager
def bench_of(per_commit: int = 500_000, driver_memory: str = "4g") -> Iterator[Bench]:
    """Start a session with the settings of both sides, in a folder that is removed with it.

    Args:
        per_commit: number of events in a commit.
        driver_memory: heap of the driver's JVM, in which local tasks run too.
    """
    settings = {**SPARK_SETTINGS, "spark.driver.memory": driver_memory}
    with tempfile.TemporaryDirectory() as folder:
        spark = start_session(Config(root=Path(folder), spark=settings), "benchmark")
        try:
            yield Bench(Path(folder), spark, per_commit)
        finally:
            spark.stop()

"""Drawn walks of a source, and the law that holds after each of their commits. No JVM reads or computes.

The final windows of a pipeline are those of one backfill over the rows of the source as it is. Rows of table late that
no window holds are left out.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.lake import DAY0, EVENTS, Clock, Lake, conserved, hourly_pipeline, session_pipeline
from tests.pipelines.looping import NO_SPARK
from tests.pipelines.sources.changing import Changing, Seen
from tests.recovery.without_spark import NoSpark, standing_in
from tidegate.expectations.pinned import pin
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.epoch import shard
from tidegate.pipelines.reopen.selection import Selection
from tidegate.pipelines.run.driver import Driver
from tidegate.pipelines.run.reopen_late import reopen
from tidegate.pipelines.snapshots.find import find_snapshot
from tidegate.pipelines.snapshots.head import list_snapshots
from tidegate.pipelines.snapshots.restore import restore
from tidegate.pipelines.storage import read_table
from tidegate.pipelines.tables import late, rejects, results
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing import (
    Accumulation,
    Count,
    EventTimeSessionWindows,
    GapColumn,
    Max,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.columnar import OperatorChoice
from tidegate.windowing.time import to_millis

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
CORRECTING = DeltaSource("events", timestamp="at", changes="correct")
SUMS: dict[str, Any] = {"aggregate": {"events": Count(), "total": Sum("value"), "largest": Max("value")}}
OPTIONS: dict[str, Any] = {
    "source": CORRECTING,
    "max_ahead": timedelta(days=99),
    "watermark": WatermarkStrategy.for_bounded_out_of_orderness(20 * MINUTE),
    "parallelism": 2,
    # Commits are an hour apart. An epoch of the clock between any two of them would take time and show nothing.
    "checkpoint_interval": timedelta(days=99),
}


def windows(assigner: Any, **options: Any) -> Pipeline:
    return hourly_pipeline(compute=Windows(assigner, **SUMS, **options), **OPTIONS)


HOURS = TumblingEventTimeWindows.of(HOUR)
PIPELINES = {
    "hours": windows(HOURS),
    "hours with lateness": windows(HOURS, allowed_lateness=2 * HOUR),
    "hours, discarding": windows(HOURS, accumulation=Accumulation.DISCARDING),
    "hours, discarding, with lateness": windows(HOURS, allowed_lateness=2 * HOUR, accumulation=Accumulation.DISCARDING),
    "hours, retracting": windows(HOURS, allowed_lateness=HOUR, accumulation=Accumulation.RETRACTING),
    "sliding": windows(SlidingEventTimeWindows.of(HOUR, 20 * MINUTE)),
    "sliding with gaps": windows(SlidingEventTimeWindows.of(20 * MINUTE, 30 * MINUTE), allowed_lateness=HOUR),
    "sessions": session_pipeline(12 * MINUTE, **OPTIONS),
    "sessions with lateness": session_pipeline(12 * MINUTE, allowed_lateness=2 * HOUR, **OPTIONS),
    "sessions, retracting": windows(
        EventTimeSessionWindows.with_gap(25 * MINUTE), allowed_lateness=HOUR, accumulation=Accumulation.RETRACTING
    ),
    "gaps with lateness": windows(EventTimeSessionWindows.with_dynamic_gap(GapColumn("value")), allowed_lateness=HOUR),
    "sessions, discarding": windows(
        EventTimeSessionWindows.with_gap(12 * MINUTE), accumulation=Accumulation.DISCARDING
    ),
    "sessions, discarding, with lateness": windows(
        EventTimeSessionWindows.with_gap(12 * MINUTE), allowed_lateness=2 * HOUR, accumulation=Accumulation.DISCARDING
    ),
    "gaps": windows(EventTimeSessionWindows.with_dynamic_gap(GapColumn("value"))),
    "by user": replace(windows(HOURS), watermark_by="user"),
    "no key": replace(windows(HOURS), key=()),
    "where": replace(windows(HOURS), where="value > 700000", columns={"value": "value * 2"}),
}
COMMITS = 9
"""Commits of a walk in a stream; a backfill has as many intervals as there are hours."""


@contextmanager
def operator(name: str) -> Iterator[None]:
    """Within it every shard is computed by an operator: the columnar one, or the one that takes row by row."""
    with pytest.MonkeyPatch.context() as planted, standing_in(NoSpark()):
        if name == "row":
            planted.setattr(shard, "choose_operator", lambda compute: OperatorChoice(False, "planted"))
        yield


@dataclass
class Walk:
    """A pipeline over a drawn source, and what happened to it.

    Args:
        pipeline: the pipeline.
        changing: the source.
        driver: the driver, which holds the lease.
    """

    pipeline: Pipeline
    changing: Changing
    driver: Driver
    happened: list[str] = field(default_factory=list)

    def happen(self) -> None:
        self.happened.append(self.changing.happen())

    def reopen(self) -> None:
        self.happened.append("reopen")
        reopen(self.driver, Selection())

    def go_back(self) -> None:
        """Restore an earlier epoch, on any line; the stream reads on from there."""
        tables = self.changing.lake.tables(self.pipeline)
        epochs = [entry.manifest["epoch"] for entry in list_snapshots(tables)]
        epoch = self.changing.draw.choice(epochs)
        self.happened.append(f"restore {epoch}")
        restore(tables, find_snapshot(tables, str(epoch)), self.changing.lake.clock())

    def check(self) -> None:
        """Check the law, in some histories after late rows were reopened."""
        if self.changing.draw.random() < 0.3 or (waits_without_late_rows(self.pipeline) and not self.is_right()):
            self.reopen()
        assert self.is_right(), self.happened
        self.check_side_tables()

    def is_right(self) -> bool:
        """True if the final windows are those of a backfill of the rows as they are now, up to the watermark."""
        lake, pipeline = self.changing.lake, self.pipeline
        watermark = lake.snapshot(pipeline).manifest.watermark
        merges = pipeline.compute.assigner.merges  # type: ignore[union-attr]
        end = watermark + (2 if merges else 1)
        harness = PipelineHarness(pipeline, EVENTS, EVENTS, derived(pipeline))
        if end > to_millis(DAY0):
            harness.backfill(self.judged(), 0, end)
        published = results.latest(self.rows(results.NAME), pipeline.key)
        return compared(results.final(published, watermark).to_pylist()) == compared(harness.final())

    def rows(self, table: str) -> pa.Table:
        """All rows of one of the pipeline's tables."""
        tables = self.changing.lake.tables(self.pipeline)
        return read_table(tables.warehouse, tables.look(table))

    def judged(self) -> list[dict[str, Any]]:
        """The rows of the source as it is now, without late ones that no window holds."""
        waiting = self.rows(late.NAME)
        late_rows = Counter(map(self.seen, waiting.filter(late.is_open(waiting)).to_pylist()))
        rows = []
        for user, at, value in self.changing.rows_of(self.changing.version).elements():
            row = {"user": user, "at": at, "value": value}
            late_rows[self.seen(row)] -= 1
            if late_rows[self.seen(row)] < 0:
                rows.append(row)
        return rows

    def seen(self, row: dict[str, Any]) -> Seen:
        """Return what the pipeline reads of a row: without a key, no user."""
        return row["user"] if self.pipeline.key else None, row["at"], row["value"]

    def check_side_tables(self) -> None:
        """Tables late and rejects must have no row that the source does not have, and rejects all unusable ones."""
        rows = self.changing.rows_of(self.changing.version)
        is_kept = derived(self.pipeline)
        unusable = Counter(
            self.seen(row)
            for user, at, value in rows.elements()
            if (at is None or (user is None and self.pipeline.key))
            and is_kept(row := {"user": user, "at": at, "value": value})
        )
        assert Counter(map(self.seen, self.rows(rejects.NAME).to_pylist())) == unusable, self.happened
        has = Counter(self.seen({"user": user, "at": at, "value": value}) for user, at, value in rows.elements())
        assert Counter(map(self.seen, self.rows(late.NAME).to_pylist())) <= has, self.happened

    def check_counts(self) -> None:
        """Each row of table epochs, and the ledger with the elements in windows, must add up."""
        lake, pipeline = self.changing.lake, self.pipeline
        assert conserved(lake.rows(pipeline, "epochs").to_pylist())
        ledger = pin(lake.tables(pipeline), pipeline).ledger
        assert ledger[ledger["counted"] != ledger["found"]].to_dict("records") == []


def waits_without_late_rows(pipeline: Pipeline) -> bool:
    """True if a reopening may be needed that table late does not show.

    A row may be late for some of its windows only, and a session may open beside one that has passed.
    """
    assigner: Any = pipeline.compute.assigner  # type: ignore[union-attr]
    return assigner.merges or isinstance(assigner, SlidingEventTimeWindows)


def derived(pipeline: Pipeline) -> Callable[[dict[str, Any]], dict[str, Any] | None]:
    """Return the function that does to a row as `columns` and `where` of the pipeline do."""
    if pipeline.where is None:
        return lambda row: row
    return lambda row: {**row, "value": row["value"] * 2} if row["value"] * 2 > 700_000 else None


def compared(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    names = ("user", "window_start", "window_end", "events", "total", "largest")
    return sorted(tuple(row.get(name) for name in names) for row in rows)


@contextmanager
def walking(folder: Path, name: str, seed: str) -> Iterator[Walk]:
    """A walk whose source has one commit."""
    changing = Changing(Lake(folder, Clock(to_millis(DAY0) + 3_600_000)), random.Random(seed))
    changing.append()
    changing.settle()
    with changing.lake.driver(NO_SPARK, PIPELINES[name]) as driver:
        yield Walk(PIPELINES[name], changing, driver)

"""Random walks of a source, and the law that holds after each of their commits. No JVM reads or computes.

The final windows of a pipeline are those of one backfill over the rows of the source as it is. Rows of table late that
are in no window are left out.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.lake import DAY0, EVENTS, LOCAL, Clock, Lake, conserved
from tests.pipelines.correct.pipelines import PIPELINES
from tests.pipelines.observe.metrics.measuring import Read, counted
from tests.pipelines.sources.changing import USERS, Changing, Seen
from tests.pipelines.standing import check_windows
from tidegate.expectations.pinned import pin
from tidegate.pipelines import Pipeline
from tidegate.pipelines.correct.correct import reopen
from tidegate.pipelines.correct.request import Selection
from tidegate.pipelines.definition import epochs, late, rejects, results
from tidegate.pipelines.definition.binding import has_windows
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.epoch import shard
from tidegate.pipelines.epoch.driver import Driver
from tidegate.pipelines.ledger import lease
from tidegate.pipelines.ledger.snapshots.head import list_snapshots
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.observe.metrics.catalog import COUNTERS
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing import Accumulation, CumulateEventTimeWindows, SlidingEventTimeWindows
from tidegate.windowing.columnar import OperatorChoice
from tidegate.windowing.time import to_millis

HISTORIES = int(os.environ.get("TIDEGATE_TEST_HISTORIES", "16"))
"""Number of histories after which a walk ends. Windows are computed for each user separately, so a history is what
happened to the rows of one user up to a check of the law.
"""

CHECKS = HISTORIES * 5 // 8
"""Maximum number of checks of a walk. Without a key, all users share one history."""


@contextmanager
def operator(name: str) -> Iterator[None]:
    """In this context shards are computed by the columnar operator, by the row operator, or, for both, by each in turn.
    The operators read each other's state, so all three must give the same result.
    """
    draw = random.Random(name)
    with pytest.MonkeyPatch.context() as planted:
        if name != "columnar":
            planted.setattr(
                shard,
                "choose_operator",
                lambda compute: OperatorChoice(name == "both" and draw.random() < 0.5, "planted"),
            )
        # The clock advances by hours between two commits, and there is no other driver to fence.
        planted.setattr(lease, "TIME_TO_LIVE", 10**10)
        yield


@dataclass
class Walk:
    """A pipeline over a random source, and what happened to it.

    Args:
        pipeline: the pipeline.
        changing: the source.
        driver: the driver, which holds the lease.
        metrics: the metrics of the driver; None if nothing is measured.
    """

    pipeline: Pipeline
    changing: Changing
    driver: Driver
    metrics: Read | None = None
    happened: list[str] = field(default_factory=list)
    epochs: dict[int, dict[str, Any]] = field(default_factory=dict)
    checks: int = 0
    histories: int = 0
    checked: dict[str, dict[Seen, int]] = field(default_factory=dict)

    def happen(self) -> None:
        self.happened.append(self.changing.happen())

    def reopen(self) -> None:
        self.happened.append("reopen")
        reopen(self.driver, Selection())

    def go_back(self) -> None:
        """Restore an earlier epoch, on any lineage; the stream continues from there."""
        tables = self.changing.lake.tables(self.pipeline)
        epoch = self.changing.draw.choice([entry.manifest["epoch"] for entry in list_snapshots(tables)])
        self.happened.append(f"restore {epoch}")
        restore(tables, find_snapshot(tables, str(epoch)), self.changing.lake.clock())

    def check(self) -> None:
        """Check the law, in some histories after late rows were reopened."""
        now = self.changing.rows_of(self.changing.version)
        if self.changing.draw.random() < 0.2 or (waits_without_late_rows(self.pipeline) and not self.is_right(now)):
            self.reopen()
        assert self.is_right(now), self.happened
        if has_windows(self.pipeline.compute):
            check_windows(self.changing.lake.tables(self.pipeline))
        self.check_side_tables(now)
        self.note_epochs()
        self.checks += 1
        by_user = {user: {row: count for row, count in now.items() if row[0] == user} for user in USERS}
        changed = sum(rows != self.checked.get(user, {}) for user, rows in by_user.items())
        self.histories += changed if self.pipeline.key else min(1, changed)
        self.checked = by_user

    @property
    def is_over(self) -> bool:
        """Return True if the walk has enough histories."""
        return self.histories >= HISTORIES or self.checks >= CHECKS

    def is_right(self, now: Counter[Seen]) -> bool:
        """Return True if the final windows are those of a backfill of the source's rows, up to the watermark."""
        lake, pipeline = self.changing.lake, self.pipeline
        watermark = lake.snapshot(pipeline).manifest.watermark
        merges = pipeline.compute.assigner.merges  # type: ignore[union-attr]
        end = watermark + (2 if merges else 1)
        harness = PipelineHarness(pipeline, EVENTS, EVENTS, derived(pipeline))
        if end > to_millis(DAY0):
            harness.backfill(self.evaluated(now), 0, end)
        rows = self.rows(results.NAME)
        if pipeline.compute.accumulation is Accumulation.DISCARDING:  # type: ignore[union-attr]
            published = put_together(results.final(results.unretracted(rows, pipeline.key), watermark))
        else:
            published = results.final(results.latest(rows, pipeline.key), watermark)
        return compared(published.to_pylist()) == compared(harness.final())

    def rows(self, table: str) -> pa.Table:
        """Return all rows of one of the pipeline's tables."""
        tables = self.changing.lake.tables(self.pipeline)
        return read_table(tables.warehouse, tables.newest(table))

    def evaluated(self, now: Counter[Seen]) -> list[dict[str, Any]]:
        """Return the rows of the source, without late ones that are in no window."""
        waiting = self.rows(late.NAME)
        late_rows = Counter(map(self.seen, waiting.filter(late.is_open(waiting)).to_pylist()))
        rows = []
        for user, at, value in now.elements():
            row = {"user": user, "at": at, "value": value}
            late_rows[self.seen(row)] -= 1
            if late_rows[self.seen(row)] < 0:
                rows.append(row)
        return rows

    def seen(self, row: dict[str, Any]) -> Seen:
        """Return what the pipeline reads of a row: without a key, no user."""
        return row["user"] if self.pipeline.key else None, row["at"], row["value"]

    def check_side_tables(self, rows: Counter[Seen]) -> None:
        """Tables late and rejects must not have rows that the source lacks, and rejects must have all unusable ones."""
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

    def note_epochs(self) -> None:
        """Keep the rows of table epochs, which a restore removes."""
        self.epochs |= {row["epoch"]: row for row in self.rows(epochs.NAME).to_pylist()}

    def check_metrics(self) -> None:
        """Metrics must have counted each epoch once, whatever its kind, even if it was undone."""
        if self.metrics is None:
            return
        self.note_epochs()
        counters = (counter for metric in COUNTERS for _, counter in metric.counts)
        sums = {name: sum(row[name] or 0 for row in self.epochs.values()) for name in counters}
        assert counted(self.metrics.series()) == sums, self.happened

    def check_counts(self) -> None:
        """Each row of table epochs must add up, and so must, for half of the walks, the ledger with the elements in
        windows.
        """
        lake, pipeline = self.changing.lake, self.pipeline
        self.check_metrics()
        assert conserved(lake.rows(pipeline, "epochs").to_pylist())
        if self.changing.draw.random() < 0.5:
            return
        ledger = pin(lake.tables(pipeline), pipeline).ledger
        assert ledger[ledger["counted"] != ledger["found"]].to_dict("records") == []


def put_together(panes: pa.Table) -> pa.Table:
    """Return the windows with panes that contain only a part of the elements: a row within the lateness adds another
    part.
    """
    windows = panes.group_by(["user", "window_start", "window_end"])
    whole = windows.aggregate([("events", "sum"), ("total", "sum"), ("largest", "max")])
    return whole.rename_columns(["user", "window_start", "window_end", "events", "total", "largest"])


def waits_without_late_rows(pipeline: Pipeline) -> bool:
    """Return True if a reopening may be needed that table late does not show. A row may be late for only some of its
    windows, and a session may open next to one that has closed.
    """
    assigner: Any = pipeline.compute.assigner  # type: ignore[union-attr]
    return assigner.merges or isinstance(assigner, SlidingEventTimeWindows | CumulateEventTimeWindows)


def derived(pipeline: Pipeline) -> Callable[[dict[str, Any]], dict[str, Any] | None]:
    """Return a function with the effect of the pipeline's `columns` and `where` on a row."""
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
    pipeline = replace(PIPELINES[name], parallelism=changing.draw.choice((1, 1, 2)))
    with changing.lake.driver(LOCAL, pipeline) as driver:
        metrics = Read(changing.lake, pipeline)
        driver.metrics = metrics.meter
        drawn = random.Random(f"windows {seed}")
        driver.windows = WindowsTable(
            partition_by=drawn.choice(("day", "month", "none")),
            early=drawn.random() < 0.5,  # type: ignore[arg-type]
        )
        yield Walk(pipeline, changing, driver, metrics)

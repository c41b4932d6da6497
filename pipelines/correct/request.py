"""The request for a recompute, and the resulting plan: the spans of keys to recompute, and their panes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.correct.changed_rows import ChangedRows
from tidegate.pipelines.correct.spans import islands
from tidegate.pipelines.definition.pipeline import Pipeline, order_seen_by
from tidegate.pipelines.epoch.job import ShardJob
from tidegate.pipelines.epoch.plan import EpochPlan
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.ledger.manifest import Manifest, Reopening
from tidegate.pipelines.ledger.snapshots.head import Snapshot
from tidegate.pipelines.ledger.tables.keys import key_groups
from tidegate.windowing.compute import CoProcess, KeyedProcess, Windows
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class Selection:
    """Selection of late rows by key and by the window that they would have been added to. The default selects all.

    Args:
        key: the key columns' values as strings, in order; None for every key.
        start: smallest start of the windows, int64 epoch milliseconds; None for no limit.
        end: limit of the window starts, exclusive, int64 epoch milliseconds; None for no limit.

    Raises:
        UsageError: the span is empty.
    """

    key: tuple[str, ...] | None = None
    start: Millis | None = None
    end: Millis | None = None

    def __post_init__(self) -> None:
        if self.start is not None and self.end is not None and self.start >= self.end:
            raise UsageError("--end is not after --start, so no window begins in between: give a later --end")


Asked: TypeAlias = Selection | ChangedRows
"""What a caller passes: a selection of late rows, or the rows that changed in the source."""


@dataclass(frozen=True)
class Work:
    """What is recomputed, and what was published for it; it is sent to the executors.

    Args:
        wanted: the spans to recompute, with the key columns: windows, or whole sessions.
        published: panes in these spans that were published and not retracted.
        margin: how far a session may reach beyond its span, milliseconds.
    """

    wanted: pa.Table
    published: pa.Table
    margin: Millis

    def of_shard(self, job: ShardJob, number: int) -> Work:
        """Return the work of one shard."""
        shard = job.shards[number]

        def own(rows: pa.Table) -> pa.Table:
            groups = key_groups(rows, job.key.names, job.max_parallelism)
            return rows.filter(pc.and_(pc.greater_equal(groups, shard.first), pc.less_equal(groups, shard.last)))

        return Work(own(self.wanted), own(self.published), self.margin)


@dataclass(frozen=True)
class RecomputePlan:
    """The plan of an epoch that recomputes windows.

    Args:
        asked: what the caller asked for.
        epoch: number, shards and clocks of the epoch, which reads in event order up to the watermark of the head.
        work: the spans to recompute, and what was published in them.
        reopening: the late rows that the epoch adds.
        late_rows: the number of late rows for each shard of the epoch.
        counts: further row counts for each shard of the epoch, by counter.
    """

    asked: Asked
    epoch: EpochPlan
    work: Work
    reopening: Reopening
    late_rows: tuple[int, ...]
    counts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def head(self) -> Snapshot:
        """The snapshot whose windows are corrected."""
        assert self.epoch.head is not None
        return self.epoch.head

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return self.epoch.bound.key.names

    @property
    def windows(self) -> Windows:
        """Windows that are recomputed."""
        return windows_of(self.epoch)

    @property
    def spans(self) -> pa.Table:
        """Spans of time of each key whose source rows are needed."""
        return islands(self.epoch.bound.key, self.work.wanted).table()


def windows_of(epoch: EpochPlan) -> Windows:
    """Return the windows of an epoch that recomputes windows."""
    assert isinstance(epoch.compute, Windows), epoch.compute
    return epoch.compute


def check_reopenable(pipeline: Pipeline, manifest: Manifest | None = None) -> Windows:
    """Return the windows of a pipeline after checking that its late rows can be reopened.

    Args:
        pipeline: the pipeline.
        manifest: the newest snapshot's, if what earlier epochs did is to be checked too.

    Raises:
        Refused: the results depend on the order of arrival, which is lost, or on a user's assigner; or no row is late.
    """
    windows = pipeline.compute
    if isinstance(windows, KeyedProcess | CoProcess):
        raise Refused(
            f"late rows of pipeline {pipeline.name!r} can't be reopened: its function has already continued without "
            "them, and its results can't be retracted. Give its watermark strategy a larger bound, or backfill it "
            "under another name"
        )
    if not isinstance(windows, Windows):
        raise Refused(
            f"late rows of pipeline {pipeline.name!r} can't be reopened: it is a join, and the elements that they "
            "would have been joined with are no longer in its state. Give its watermark strategy a larger bound, or "
            "backfill it under another name"
        )
    if not windows.assigner.is_event_time:
        raise Refused(
            f"pipeline {pipeline.name!r} has no late rows to reopen: its windows do not end by event time, so none of "
            "its rows is ever late"
        )
    if pipeline.on_error == "reject":
        raise Refused(
            f"late rows of pipeline {pipeline.name!r} can't be reopened: it has on_error = 'reject', and windows are "
            "recomputed from all rows of the source. Give its windows a longer allowed_lateness, or backfill it under "
            "another name"
        )
    if manifest is not None and manifest.unrepeatable is not None:
        raise Refused(
            f"late rows of pipeline {pipeline.name!r} can't be reopened: it has {manifest.unrepeatable}, and windows "
            "are recomputed from all rows of the source. Backfill it under another name"
        )
    if (reason := order_seen_by(windows)) is None:
        return windows
    raise Refused(
        f"late rows of pipeline {pipeline.name!r} can't be reopened: it has {reason}, so the result of a window "
        "depends on more than its elements. Give its windows a longer allowed_lateness, or backfill it under another "
        "name"
    )

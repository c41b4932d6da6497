"""A new epoch as typed stages, and the one function that makes a manifest of them.

    RowsRead    what was read: the positions, and the numbers of rows
    TimeMoved   how time moved: the watermark, the clock, the source partitions, the closed windows
    Computed    what was computed: the shards with their counters, and the code that ran
    Published   what is published: the files of each table, and the late rows that were reopened
    Withdrawn   what is withdrawn: rows of whole epochs, rows that were deleted from the source, forgotten keys

An epoch without new rows, such as a restore, takes the first three stages from its parent: `NewEpoch.without_rows`.
Nothing here reads or writes a table. `commit_epoch` in `commit.py` commits every kind of epoch.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from tidegate.pipelines.definition import late
from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.counters import OF_TASKS, ROWS_DELETED, ROWS_OUT, VERSIONS_SKIPPED
from tidegate.pipelines.definition.recorded import Position, Schemas, Shape
from tidegate.pipelines.definition.window_shape import kept_facts, kept_shape
from tidegate.pipelines.ledger.manifest import (
    DataFile,
    Deletion,
    Interval,
    Kind,
    Manifest,
    PartitionWatermark,
    Publish,
    RaisedLateness,
    Reopening,
    Shard,
    StaleInterval,
    line_after,
)
from tidegate.pipelines.ledger.migrations import library_version
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED
from tidegate.windowing.compute import Windows
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsRead:
    """What an epoch read.

    Args:
        positions: the position after the epoch, by source table.
        interval: the span of event time; None unless a backfill ran an interval.
        rows: number of rows read, whatever happened to them.
        rejected: number of rows in table rejects.
        dropped: number of rows for which `where` was not true.
        deleted: number of rows that were deleted from the source.
        skipped: number of versions of the source that were skipped.
    """

    positions: Mapping[str, Position]
    interval: Interval | None = None
    rows: int = 0
    rejected: int = 0
    dropped: int = 0
    deleted: int = 0
    skipped: int = 0

    @classmethod
    def nothing(cls, parent: Manifest) -> Self:
        """Return the stage of an epoch that stays at the positions of its parent."""
        return cls(positions=parent.positions)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeMoved:
    """Time after an epoch, as the manifest stores it. Times are int64 epoch milliseconds."""

    watermark: Millis
    clock: Millis
    partitions: Mapping[str, PartitionWatermark]
    inputs: Mapping[str, Millis]
    watermark_by: Mapping[str, str]
    stagger_offset: Millis | None
    closed_through: Millis | None
    raised_lateness: RaisedLateness | None

    @classmethod
    def still(cls, parent: Manifest) -> Self:
        """Return the stage of an epoch in which time stands still."""
        return cls(
            watermark=parent.watermark,
            clock=parent.processing_time,
            partitions=parent.partitions,
            inputs=parent.inputs,
            watermark_by=parent.watermark_by,
            stagger_offset=parent.stagger_offset,
            closed_through=parent.closed_through,
            raised_lateness=parent.raised_lateness,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """What a manifest stores about the code that ran; see `Manifest`."""

    fingerprint: str
    recomputed_by: str | None = None
    schemas: Schemas
    max_parallelism: int
    shape: Shape | None
    accumulation: str | None
    merges: bool | None
    placed_by: Mapping[str, str] | None
    ends_by_clock: bool

    @classmethod
    def of(cls, bound: BoundPipeline, stagger_offset: Millis | None) -> Self:
        """Return the facts of a pipeline."""
        compute = bound.compute
        return cls(
            fingerprint=bound.fingerprint,
            schemas=bound.schemas,
            max_parallelism=bound.pipeline.max_parallelism,
            shape=kept_shape(bound.pipeline, stagger_offset),
            **{"accumulation": None, "merges": None, "placed_by": None, **kept_facts(bound.pipeline)},
            ends_by_clock=isinstance(compute, Windows) and compute.ends_by_clock,
        )

    @classmethod
    def of_parent(cls, parent: Manifest) -> Self:
        """Return the facts of the code that ran over the state of a snapshot."""
        return cls(
            fingerprint=parent.fingerprint,
            schemas=parent.schemas,
            max_parallelism=parent.max_parallelism,
            shape=parent.shape,
            accumulation=parent.accumulation,
            merges=parent.merges,
            placed_by=parent.placed_by,
            ends_by_clock=parent.ends_by_clock,
        )

    def recomputing(self, bound: BoundPipeline, stagger_offset: Millis | None) -> Self:
        """Return the facts after a correction by a pipeline's code, which changes only some windows of the state."""
        now = Code.of(bound, stagger_offset)
        by = None if now.fingerprint == self.fingerprint else now.fingerprint
        return replace(
            self,
            recomputed_by=by,
            shape=now.shape,
            accumulation=now.accumulation,
            merges=now.merges,
            placed_by=now.placed_by,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What an epoch computed.

    Args:
        shards: the ranges of key groups, with the counters of their tasks.
        code: the code that ran.
        order: order in which events were read.
        rows_out: number of rows for table results.
        slices: True if the state may hold slices of windows.
        raised: True if this epoch or an ancestor rejected rows because user code raised an error.
        skipped: True if this epoch or an ancestor skipped a version of the source that changed rows.
        phases: seconds by phase.
        engine: name of the engine; None if none ran.
    """

    shards: tuple[Shard, ...]
    code: Code
    order: Literal["event", "arrival"]
    slices: bool
    raised: bool
    skipped: bool
    rows_out: int = 0
    phases: Mapping[str, float] = field(default_factory=dict)
    engine: str | None = None

    @classmethod
    def nothing(cls, parent: Manifest) -> Self:
        """Return the stage of an epoch that keeps the state of its parent."""
        return cls(
            shards=tuple(map(_uncounted, parent.shards)),
            code=Code.of_parent(parent),
            order=parent.order,
            slices=parent.slices,
            raised=parent.raised,
            skipped=parent.skipped,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What an epoch adds: files, by table, and late rows that are now in their windows."""

    files: Mapping[str, tuple[DataFile, ...]] = field(default_factory=dict)
    reopened: tuple[Reopening, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Withdrawn:
    """What an epoch takes away.

    Args:
        epochs: by table, the epochs whose rows are removed.
        stale_epochs: by table, the epochs whose rows become stale.
        deleted: by table, the rows that were deleted from the source.
        forgotten: marks of forgotten keys, whose rows are removed from every table.
        intervals: the intervals whose rows are stale after the epoch.
    """

    epochs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    stale_epochs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    deleted: Mapping[str, tuple[Deletion, ...]] = field(default_factory=dict)
    forgotten: tuple[str, ...] = ()
    intervals: tuple[StaleInterval, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEpoch:
    """An epoch that is to be committed: where it continues, and its stages.

    Args:
        pipeline: name of the pipeline.
        kind: kind of the epoch.
        epoch: its number.
        timeline: its timeline.
        parent: manifest of the snapshot that it continues from; None for a pipeline's first epoch.
        read: what was read.
        time: how time moved.
        computed: what was computed.
        published: what is published.
        withdrawn: what is withdrawn.
        run_id: the run that computed it.
        started_at: clock of the driver when the epoch began, int64 epoch milliseconds.
    """

    pipeline: str
    kind: Kind
    epoch: int
    timeline: int
    parent: Manifest | None
    read: RowsRead
    time: TimeMoved
    computed: Computed
    published: Published = Published()
    withdrawn: Withdrawn = Withdrawn()
    run_id: str
    started_at: Millis

    @classmethod
    def without_rows(cls, kind: Kind, parent: Manifest, now: Millis) -> Self:
        """Return the next epoch of a timeline, which keeps the state, positions and time of its parent."""
        return cls(
            pipeline=parent.pipeline,
            kind=kind,
            epoch=parent.epoch + 1,
            timeline=parent.timeline,
            parent=parent,
            read=RowsRead.nothing(parent),
            time=TimeMoved.still(parent),
            computed=Computed.nothing(parent),
            withdrawn=Withdrawn(intervals=parent.stale),
            run_id=uuid.uuid4().hex,
            started_at=now,
        )


def manifest_of(new: NewEpoch) -> Manifest:
    """Return the manifest of an epoch."""
    read, time, computed, code = new.read, new.time, new.computed, new.computed.code
    return Manifest(
        pipeline=new.pipeline,
        timeline=new.timeline,
        epoch=new.epoch,
        parent=None if new.parent is None else new.parent.epoch,
        line=line_after(new.parent, new.epoch),
        kind=new.kind,
        order=computed.order,
        interval=read.interval,
        positions=dict(read.positions),
        watermark=time.watermark,
        partitions=dict(time.partitions),
        inputs=dict(time.inputs),
        watermark_by=dict(time.watermark_by),
        processing_time=time.clock,
        stagger_offset=time.stagger_offset,
        max_parallelism=code.max_parallelism,
        shards=computed.shards,
        fingerprint=code.fingerprint,
        schemas=code.schemas,
        counters=_counters(read, computed),
        stale=new.withdrawn.intervals,
        publish={table: _changes(table, new.published, new.withdrawn) for table in PUBLISHED},
        phases=dict(computed.phases),
        closed_through=time.closed_through,
        raised_lateness=time.raised_lateness,
        shape=code.shape,
        ends_by_clock=code.ends_by_clock,
        run_id=new.run_id,
        started_at=new.started_at,
        library_version=library_version(),
        engine=computed.engine,
        slices=computed.slices,
        accumulation=code.accumulation,
        merges=code.merges,
        placed_by=None if code.placed_by is None else dict(code.placed_by),
        raised=computed.raised,
        skipped=computed.skipped,
        recomputed_by=code.recomputed_by,
    )


def _counters(read: RowsRead, computed: Computed) -> dict[str, int]:
    """Return the counters of an epoch: the sums of its shards, and what the driver counted."""
    return {
        **{name: sum(shard.counters.get(name, 0) for shard in computed.shards) for name in OF_TASKS},
        "events_in": read.rows,
        "rejected": read.rejected,
        "dropped": read.dropped,
        VERSIONS_SKIPPED: read.skipped,
        ROWS_DELETED: read.deleted,
        ROWS_OUT: computed.rows_out,
    }


def _changes(table: str, published: Published, withdrawn: Withdrawn) -> Publish:
    """Return the changes of an epoch to one table."""
    return Publish(
        files=published.files.get(table, ()),
        remove_epochs=withdrawn.epochs.get(table, ()),
        stale_epochs=withdrawn.stale_epochs.get(table, ()),
        reopened=published.reopened if table == late.NAME else (),
        deleted=withdrawn.deleted.get(table, ()),
        forgotten=withdrawn.forgotten,
    )


def _uncounted(shard: Shard) -> Shard:
    """Return a shard with all counters at 0 except open windows, for an epoch without new rows."""
    counters = {name: count if name == "open_windows" else 0 for name, count in shard.counters.items()}
    return shard.model_copy(update={"counters": counters})

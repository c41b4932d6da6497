"""Step 1 of an epoch: the plan, which says what to read, from which snapshot, and how time moves.

A plan changes nothing. Its slice is counted with one cheap aggregate, so that what the tasks report
can be held against it. `plan_interval` makes the plans of backfills, `plan_commits` those of streams.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace
from functools import cached_property

from pyspark.sql import DataFrame, SparkSession

from pipelines.binding import BoundPipeline, bind
from pipelines.epoch.steps import CommitStep, EventOrder
from pipelines.pipeline import Pipeline
from pipelines.snapshots.compatibility import check_restorable
from pipelines.snapshots.head import Snapshot
from pipelines.snapshots.manifest import Interval, Kind, Manifest, PartitionWatermark, Position, Shard, StaleInterval
from pipelines.sources.frames import SourceFrames
from pipelines.sources.log import SourceLog
from pipelines.tables.pipeline_tables import PipelineTables
from windowing.compute import Compute, Windows
from windowing.keys import key_group_range
from windowing.time import Millis


@dataclass(frozen=True)
class SliceFrames:
    """The rows of a slice.

    Args:
        safe: rows that can't be late: only the columns in use are read and shuffled.
        candidates: rows that may be late, which carry all columns along; None if there can be none.
        unusable: rows for the rejects table, with all columns; None if there are none.
    """

    safe: DataFrame | None
    candidates: DataFrame | None
    unusable: DataFrame | None


@dataclass(frozen=True)
class SliceCounts:
    """What the slice holds, counted before the tasks run."""

    usable: int = 0
    dropped: int = 0
    rejected: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """All rows."""
        return self.usable + self.dropped + sum(self.rejected.values())


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """Everything that the later steps need; nothing in it is decided again.

    `parent` is the snapshot to go on from and `head` the one that the commit follows: they differ
    where an interval is run again.
    """

    tables: PipelineTables
    bound: BoundPipeline
    parent: Snapshot | None
    head: Snapshot | None
    kind: Kind
    order: EventOrder | None = None
    interval: Interval | None = None
    positions: dict[str, Position]
    frames: SliceFrames
    counts: SliceCounts
    steps: tuple[CommitStep, ...]
    partitions: dict[str, PartitionWatermark]
    watermark_before: Millis
    shards: tuple[Shard, ...]
    replaced_epochs: tuple[int, ...] = ()
    stale: tuple[StaleInterval, ...] = ()
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    started_at: Millis

    @property
    def epoch(self) -> int:
        """Number of the epoch; it grows for ever, over restores too."""
        return 1 if self.head is None else self.head.manifest.epoch + 1

    @property
    def timeline(self) -> int:
        """The line of snapshots it belongs to: another one where it does not go on from the head."""
        if self.head is None:
            return 1
        return self.head.manifest.timeline + (0 if self.parent is self.head else 1)

    @property
    def clock_before(self) -> Millis:
        """Processing time of the snapshot that it goes on from."""
        return clock_of(self.parent)

    @property
    def watermark(self) -> Millis:
        """Event time after the epoch."""
        complete = [step.watermark for step in self.steps if step.complete]
        return complete[-1] if complete else self.watermark_before

    @property
    def clock(self) -> Millis:
        """Processing time of the epoch."""
        return self.steps[-1].clock

    @cached_property
    def compute(self) -> Compute:
        """What is computed; a stagger of its windows is drawn once in the pipeline's life, and kept in the manifest."""
        windows = self.bound.compute
        if not isinstance(windows, Windows):
            return windows
        draw = getattr(windows.assigner, "staggered", None)
        if draw is None:
            return windows
        known = None if self.parent is None else self.parent.manifest.stagger_offset
        drawn = draw(self.steps[0].clock) if known is None else replace(windows.assigner, stagger_offset=known)  # type: ignore[type-var]
        return replace(windows, assigner=drawn)

    @property
    def stagger_offset(self) -> Millis | None:
        """By how much the windows are staggered; None where they are aligned."""
        return getattr(getattr(self.compute, "assigner", None), "stagger_offset", None)


@dataclass(frozen=True)
class Source:
    """A pipeline's source as it is now: its log, its rows, its columns."""

    log: SourceLog
    frames: SourceFrames
    bound: BoundPipeline

    @classmethod
    def open(cls, spark: SparkSession, tables: PipelineTables, pipeline: Pipeline) -> Source:
        """Open the source and check the pipeline against it."""
        path = tables.warehouse.path(pipeline.source.table)
        log = SourceLog(tables.warehouse, path)
        frames = SourceFrames(spark, path, pipeline)
        return cls(log, frames, bind(pipeline, *frames.schemas(log.head)))

    def now(self) -> Source:
        """The source as it is now; what follows from its columns is found anew only where they changed."""
        log = self.log.now()
        if (log.table_id, log.columns) == (self.log.table_id, self.log.columns):
            return replace(self, log=log)
        return replace(self, log=log, bound=bind(self.bound.pipeline, *self.frames.schemas(log.head)))

    def position_of(self, manifest: Manifest) -> Position:
        """How far a snapshot has read this source, once it is sure that it can go on with this code and table.

        Raises:
            Refused: it can't; the message names what differs.
        """
        check_restorable(self.bound, manifest)
        position = manifest.position_in(self.bound.pipeline.source.table)
        self.log.check(position)
        return position

    def position(self, version: int, frontier: Millis | None = None, files: int = 0) -> dict[str, Position]:
        """A position in this source, as a manifest has it."""
        found = Position(version=version, frontier=frontier, files=files, table_id=self.log.table_id)
        return {self.bound.pipeline.source.table: found}


def cut_shards(shards: int, max_parallelism: int) -> tuple[Shard, ...]:
    """The key groups in contiguous ranges, one a shard."""
    ranges = [key_group_range(shard, shards, max_parallelism) for shard in range(shards)]
    return tuple(Shard(first=groups.first, last=groups.last) for groups in ranges)


def clock_of(snapshot: Snapshot | None) -> Millis:
    """Processing time of a snapshot; 0 before the first."""
    return 0 if snapshot is None else snapshot.manifest.processing_time

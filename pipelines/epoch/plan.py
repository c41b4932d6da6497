"""Step 1 of an epoch: the plan, which says what to read, from which snapshot, and how time moves.

A plan changes nothing. Its slice is counted by the files' statistics, or with one cheap aggregate of
Spark's, so that what the tasks report can be held against it. `plan_interval` makes the plans of
backfills, `plan_commits` those of streams.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from pyspark.sql import DataFrame

from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.epoch.closed import closed_by
from tidegate.pipelines.epoch.joint_frames import together
from tidegate.pipelines.epoch.steps import CommitStep, EventOrder
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import Interval, Kind, PartitionWatermark, Position, Shard, StaleInterval
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.compute import Compute, Windows
from tidegate.windowing.time import MIN_TIMESTAMP, Millis


@dataclass(frozen=True)
class SliceFrames:
    """The rows of a slice.

    Args:
        safe: rows that can't be late: only the columns in use are read and shuffled.
        candidates: rows that may be late, which carry all columns along; None if there can be none.
        unusable: rows for the rejects table, with all columns; None if there are none.
        files: all usable rows, where the tasks read the source's files themselves.
    """

    safe: DataFrame | None
    candidates: DataFrame | None
    unusable: DataFrame | None
    files: FileSlice | None = None

    @classmethod
    def together(cls, parts: Sequence[SliceFrames]) -> SliceFrames:
        """The rows of several slices with the same columns."""
        return cls(
            together(part.safe for part in parts),
            together(part.candidates for part in parts),
            together(part.unusable for part in parts),
            parts[0].files,
        )


@dataclass(frozen=True)
class SliceCounts:
    """What the slice holds, counted before the tasks run; `size` is the bytes of usable rows, as far as known."""

    usable: int = 0
    dropped: int = 0
    rejected: dict[str, int] = field(default_factory=dict)
    size: int = 0

    @property
    def total(self) -> int:
        """All rows."""
        return self.usable + self.dropped + sum(self.rejected.values())

    def __add__(self, other: SliceCounts) -> SliceCounts:
        statuses = {**self.rejected, **other.rejected}
        rejected = {status: self.rejected.get(status, 0) + other.rejected.get(status, 0) for status in statuses}
        return SliceCounts(self.usable + other.usable, self.dropped + other.dropped, rejected, self.size + other.size)


MOST_PARTITIONS = 10_000
"""Source partitions of a pipeline: each epoch writes a watermark for each, some 150 bytes."""


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
    input_watermarks: dict[str, Millis] = field(default_factory=dict)
    watermark_before: Millis
    shards: tuple[Shard, ...]
    replaced_epochs: tuple[int, ...] = ()
    stale: tuple[StaleInterval, ...] = ()
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    started_at: Millis

    def __post_init__(self) -> None:
        if len(self.partitions) > MOST_PARTITIONS:
            columns = sorted({one.watermark_by for one in self.bound.pipeline.inputs if one.watermark_by is not None})
            raise Refused(
                f"watermark_by={', '.join(map(repr, columns))} of {self.bound.pipeline.name} makes "
                f"{len(self.partitions)} source partitions, and a pipeline may have {MOST_PARTITIONS}: every snapshot "
                "holds the watermark of each. Name a column of fewer values, such as the gateway or the region that a "
                "row came from, or take watermark_by out; event time then goes on from the pipeline's watermark"
            )

    def replacing(self, head: Snapshot) -> EpochPlan:
        """The same plan as the beginning of a new timeline, in place of all that was published before."""
        return replace(self, head=head, replaced_epochs=tuple(range(1, head.manifest.epoch + 1)))

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
        assigner, drawn = windows.assigner, None if self.parent is None else self.parent.manifest.stagger_offset
        assigner = assigner.staggered(self.steps[0].clock) if drawn is None else assigner.with_stagger(drawn)
        return windows if assigner is windows.assigner else replace(windows, assigner=assigner)

    @cached_property
    def closed_through(self) -> Millis:
        """Windows that end by then were closed by the snapshot that it goes on from, and don't begin anew."""
        return MIN_TIMESTAMP if self.parent is None else closed_by(self.tables, self.bound, self.parent.manifest)

    @property
    def stagger_offset(self) -> Millis | None:
        """By how much the windows are staggered; None where they are aligned."""
        return self.compute.assigner.stagger_offset if isinstance(self.compute, Windows) else None


def clock_of(snapshot: Snapshot | None) -> Millis:
    """Processing time of a snapshot; 0 before the first."""
    return 0 if snapshot is None else snapshot.manifest.processing_time

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

from pyspark.sql import DataFrame, SparkSession

from pipelines.binding import BoundPipeline, bind_all
from pipelines.bound_input import BoundInput
from pipelines.epoch.joint_frames import together
from pipelines.epoch.steps import CommitStep, EventOrder
from pipelines.pipeline import Pipeline
from pipelines.snapshots.compatibility import check_restorable
from pipelines.snapshots.head import Snapshot
from pipelines.snapshots.manifest import Interval, Kind, Manifest, PartitionWatermark, Position, Shard, StaleInterval
from pipelines.sources.file_slice import FileSlice
from pipelines.sources.frames import SourceFrames
from pipelines.sources.log import SourceFile, SourceLog
from pipelines.sources.plain import slice_of, why_through_spark
from pipelines.tables.pipeline_tables import PipelineTables
from windowing.compute import Compute, Windows
from windowing.time import Millis


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
    """An input of a pipeline as it is now: its log, its rows, its columns; and the second input with it.

    Args:
        log: of the table.
        frames: over the table.
        bound: the pipeline.
        number: which input it is.
        right: the second input, where this is the first of two.
    """

    log: SourceLog
    frames: SourceFrames
    bound: BoundPipeline
    number: int = 0
    right: Source | None = None

    @classmethod
    def open(cls, spark: SparkSession, tables: PipelineTables, pipeline: Pipeline) -> Source:
        """Open the source (both, of two inputs) and check the pipeline against it."""
        paths = [tables.warehouse.path(one.source.table) for one in pipeline.inputs]
        logs = [SourceLog(tables.warehouse, path) for path in paths]
        frames = [SourceFrames(spark, path, pipeline, one) for path, one in zip(paths, pipeline.inputs, strict=True)]
        return cls._bound(pipeline, logs, frames)

    @classmethod
    def _bound(cls, pipeline: Pipeline, logs: Sequence[SourceLog], frames: Sequence[SourceFrames]) -> Source:
        bound = bind_all(pipeline, [one.schemas(log.head) for one, log in zip(frames, logs, strict=True)])
        right = cls(logs[1], frames[1], bound, 1) if len(logs) > 1 else None
        return cls(logs[0], frames[0], bound, 0, right)

    @property
    def inputs(self) -> tuple[Source, ...]:
        """Every input, in order."""
        return (self,) if self.right is None else (self, self.right)

    @property
    def input(self) -> BoundInput:
        """What is bound of this input alone."""
        return self.bound.inputs[self.number]

    @property
    def table(self) -> str:
        """The table that it reads, as a manifest names it."""
        return self.input.input.source.table

    def now(self) -> Source:
        """The source as it is now; what follows from its columns is found anew only where they changed."""
        logs = [one.log.now() for one in self.inputs]
        before = [(one.log.table_id, one.log.columns) for one in self.inputs]
        if before == [(log.table_id, log.columns) for log in logs]:
            right = None if self.right is None else replace(self.right, log=logs[1])
            return replace(self, log=logs[0], right=right)
        return self._bound(self.bound.pipeline, logs, [one.frames for one in self.inputs])

    @cached_property
    def files(self) -> FileSlice | None:
        """A slice of the source without any file yet, if the tasks can read its files themselves."""
        if why_through_spark(self.bound, self.log) is not None:
            return None
        return slice_of(self.bound, self.log)

    def rows_at(self, version: int) -> DataFrame:
        """The judged rows of a version, as one commit."""
        files = self.log.active(self.input.input.source.timestamp, version)
        ahead = self.bound.pipeline.max_ahead_millis
        # Statistics mostly say that no row can lie too far ahead of the time its file was written.
        none_ahead = all(file.newest is not None and file.newest <= file.written + ahead for file in files)
        return self.frames.judged(
            self.frames.snapshot(version), self.input.source, None if none_ahead else _written(files)
        )

    def rows_of(self, files: Sequence[SourceFile]) -> DataFrame:
        """The judged rows of files that commits added, as one commit."""
        frame = self.frames.files(self.log.head, [file.action for file in files])
        return self.frames.judged(frame, self.input.source, _written(files))

    def position_of(self, manifest: Manifest) -> Position:
        """How far a snapshot has read this input, once it is sure that it can go on with this code and table.

        Raises:
            Refused: it can't; the message names what differs.
        """
        check_restorable(self.bound, manifest)
        position = manifest.position_in(self.table)
        self.log.check(position)
        return position

    def position(self, version: int, frontier: Millis | None = None, files: int = 0) -> dict[str, Position]:
        """A position in this input, as a manifest has it."""
        return {self.table: Position(version=version, frontier=frontier, files=files, table_id=self.log.table_id)}


def _written(files: Sequence[SourceFile]) -> dict[str, tuple[int, Millis]]:
    """In event order a run is one commit, and a row is held against the time its file was written."""
    return {file.name: (0, file.written) for file in files}


def clock_of(snapshot: Snapshot | None) -> Millis:
    """Processing time of a snapshot; 0 before the first."""
    return 0 if snapshot is None else snapshot.manifest.processing_time

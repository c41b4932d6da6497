"""Step 1 of an epoch: what to read, from which snapshot, and how time moves. Runs on the driver.

A plan changes nothing. It counts the slice with one cheap aggregate, so that what the tasks report
can be held against it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from pipelines.binding import BoundPipeline, bind
from pipelines.epoch.steps import CommitStep, EventOrder
from pipelines.pipeline import Pipeline
from pipelines.snapshots.compatibility import check_restorable
from pipelines.snapshots.head import Snapshot
from pipelines.snapshots.manifest import Interval, Kind, Position, Shard, StaleInterval
from pipelines.sources.columns import STATUS, TIME
from pipelines.sources.frames import DROPPED, FIRST_TIME, LAST_TIME, OK, SourceFrames
from pipelines.sources.log import SourceCommit, SourceFile, SourceLog
from pipelines.tables.pipeline_tables import PipelineTables
from windowing.assigners import MergingWindowAssigner
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


@dataclass(frozen=True)
class EpochPlan:
    """Everything that the later steps need; nothing in it is decided again."""

    tables: PipelineTables
    bound: BoundPipeline
    parent: Snapshot | None
    head: Snapshot | None
    epoch: int
    timeline: int
    kind: Kind
    order: EventOrder | None
    interval: Interval | None
    positions: dict[str, Position]
    frames: SliceFrames
    counts: SliceCounts
    steps: tuple[CommitStep, ...]
    watermark_before: Millis
    clock_before: Millis
    shards: tuple[Shard, ...]
    replaced_epochs: tuple[int, ...]
    stale: tuple[StaleInterval, ...]
    run_id: str
    started_at: Millis

    @property
    def watermark(self) -> Millis:
        """Event time after the epoch."""
        return self.steps[-1].watermark

    @property
    def clock(self) -> Millis:
        """Processing time of the epoch."""
        return self.steps[-1].clock


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


def plan_interval(
    source: Source,
    tables: PipelineTables,
    interval: Interval,
    head: Snapshot | None,
    parent: Snapshot | None,
    now: Millis,
    shards: int,
    replaced: Sequence[StaleInterval] = (),
) -> EpochPlan:
    """Plan a backfill's run for `[start, end)` in event order.

    Args:
        source: the source as it is now; its head is the version that is read.
        tables: the pipeline's tables.
        interval: the span of event time.
        head: the snapshot that the commit will follow.
        parent: the snapshot that the run continues from: `head`, or an older one to run an interval again.
        now: the driver's clock.
        shards: how many shards to cut the key groups into.
        replaced: what later runs on the abandoned line published.
    """
    bound, pipeline = source.bound, source.bound.pipeline
    if parent is not None:
        check_restorable(bound, parent.manifest)
    position = parent.manifest.positions[pipeline.source.table] if parent is not None else Position(version=-1)
    recent = [] if parent is None else source.log.commits(position.version)
    frames, counts = _event_slice(source, interval, recent, first=parent is None)
    lag = 2 if isinstance(bound.windows.assigner, MergingWindowAssigner) else 1
    still_stale, gone = _stale_after(interval, [*(head.manifest.stale if head else ()), *replaced])
    return EpochPlan(
        tables=tables,
        bound=bound,
        parent=parent,
        head=head,
        epoch=_next_epoch(head),
        timeline=_timeline(head, parent),
        kind="backfill",
        order=EventOrder(lag),
        interval=interval,
        positions={pipeline.source.table: Position(version=source.log.head, frontier=interval.end)},
        frames=frames,
        counts=counts,
        steps=(CommitStep(max(now, _clock(parent)), interval.end - lag),),
        watermark_before=parent.manifest.watermark if parent is not None else interval.start - lag,
        clock_before=_clock(parent),
        shards=cut_shards(shards, pipeline.max_parallelism),
        replaced_epochs=gone,
        stale=still_stale,
        run_id=uuid.uuid4().hex,
        started_at=now,
    )


def cut_shards(shards: int, max_parallelism: int) -> tuple[Shard, ...]:
    """The key groups in contiguous ranges, one a shard."""
    ranges = [key_group_range(shard, shards, max_parallelism) for shard in range(shards)]
    return tuple(Shard(first=groups.first, last=groups.last) for groups in ranges)


def changed_rows(source: Source, interval: Interval, since: int) -> int:
    """How many rows of an interval's event times were committed after a version."""
    recent = source.log.commits(since)
    if not recent:
        return 0
    frame = source.frames.judged(_files(source, recent), source.bound.source, _origins(recent))
    return frame.where(F.col(STATUS).isin(OK, DROPPED) & _within(interval)).count()


def _event_slice(
    source: Source, interval: Interval, recent: Sequence[SourceCommit], first: bool
) -> tuple[SliceFrames, SliceCounts]:
    """The rows of an interval, the stragglers from before it, and what can't be used.

    Stragglers and unusable rows belong to the first run that sees their version; a first run sees all
    versions, and what lies before it is not its business.
    """
    frames, schema = source.frames, source.bound.source
    known = F.col(STATUS).isin(OK, DROPPED)
    active = source.log.active(source.bound.pipeline.source.timestamp)
    origins = {file.name: (0, file.written) for file in active} if _may_be_ahead(source, active) else None
    everything = frames.judged(frames.snapshot(source.log.head), schema, origins)
    inside = everything.where(known & _within(interval))
    if first:
        return _sliced(inside, everything.where(known & _placeless()), everything.where(~known))
    if not recent:
        return _sliced(inside, None, None)
    seen = frames.judged(_files(source, recent), schema, _origins(recent))
    before = _placeless() | (F.col(TIME) < interval.start)
    return _sliced(inside, seen.where(known & before), seen.where(~known))


def _sliced(
    inside: DataFrame, stragglers: DataFrame | None, unusable: DataFrame | None
) -> tuple[SliceFrames, SliceCounts]:
    parts = [("safe", inside), ("candidates", stragglers), ("unusable", unusable)]
    counted = [
        frame.groupBy(STATUS).agg(F.count("*").alias("rows")).withColumn("part", F.lit(name))
        for name, frame in parts
        if frame is not None
    ]
    together = counted[0]
    for frame in counted[1:]:
        together = together.unionByName(frame)
    found: dict[str, dict[str, int]] = {name: {} for name, _ in parts}
    for row in together.collect():
        found[row["part"]][row[STATUS]] = row["rows"]
    counts = SliceCounts(
        usable=sum(statuses.get(OK, 0) for statuses in found.values()),
        dropped=sum(statuses.get(DROPPED, 0) for statuses in found.values()),
        rejected=found["unusable"],
    )
    usable = F.col(STATUS) == OK
    return (
        SliceFrames(
            safe=inside.where(usable) if found["safe"].get(OK) else None,
            candidates=stragglers.where(usable) if stragglers is not None and found["candidates"].get(OK) else None,
            unusable=unusable if found["unusable"] else None,
        ),
        counts,
    )


def _origins(commits: Sequence[SourceCommit]) -> dict[str, tuple[int, Millis]]:
    """In event order a run is one commit, and a row is held against the time its file was written."""
    return {file.name: (0, file.written) for commit in commits for file in commit.files}


def _may_be_ahead(source: Source, files: Sequence[SourceFile]) -> bool:
    """Whether any file can hold a row that lies too far ahead of it; statistics mostly say no."""
    ahead = source.bound.pipeline.max_ahead_millis
    return any(file.newest is None or file.newest > file.written + ahead for file in files)


def _files(source: Source, commits: Sequence[SourceCommit]) -> DataFrame:
    return source.frames.files(source.log.head, [file.action for commit in commits for file in commit.files])


def _within(interval: Interval) -> Column:
    return (F.col(TIME) >= interval.start) & (F.col(TIME) < interval.end)


def _placeless() -> Column:
    """Times that lie in no interval; rows that `where` dropped may have them."""
    return F.col(TIME).isNull() | (F.col(TIME) < FIRST_TIME) | (F.col(TIME) >= LAST_TIME)


def _stale_after(
    interval: Interval, stale: Sequence[StaleInterval]
) -> tuple[tuple[StaleInterval, ...], tuple[int, ...]]:
    """What stays stale once an interval is published, and the epochs whose rows it replaces."""
    kept = tuple(item for item in stale if item.end > interval.end)
    return kept, tuple(epoch for item in stale if item.end <= interval.end for epoch in item.epochs)


def _next_epoch(head: Snapshot | None) -> int:
    return 1 if head is None else head.manifest.epoch + 1


def _timeline(head: Snapshot | None, parent: Snapshot | None) -> int:
    if head is None:
        return 1
    same = parent is not None and parent.manifest.epoch == head.manifest.epoch
    return head.manifest.timeline + (0 if same else 1)


def _clock(parent: Snapshot | None) -> Millis:
    return 0 if parent is None else parent.manifest.processing_time

"""The plan of a backfill's run for one interval of event time.

A run for [a, b) reads the rows of versions up to V with an event time in [a, b), and of the versions
that arrived since its parent those from before a (stragglers, judged against the watermark) and those
that can't be used. So each row is in exactly one run, however late its record came.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from pipelines.epoch.plan import EpochPlan, SliceCounts, SliceFrames, Source, clock_of, cut_shards
from pipelines.epoch.steps import CommitStep, EventOrder
from pipelines.snapshots.compatibility import check_restorable
from pipelines.snapshots.head import Snapshot
from pipelines.snapshots.manifest import Interval, Position, StaleInterval
from pipelines.sources.columns import DROPPED, FIRST_TIME, LAST_TIME, OK, STATUS, TIME
from pipelines.sources.log import SourceCommit, SourceFile
from pipelines.tables.pipeline_tables import PipelineTables
from windowing.time import Millis


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
        replaced: the run that this one replaces, and those after it.
    """
    bound, pipeline = source.bound, source.bound.pipeline
    if parent is None:
        recent = None
    else:
        check_restorable(bound, parent.manifest)
        recent = source.log.commits(parent.manifest.positions[pipeline.source.table].version)
    frames, counts = _slice(source, interval, recent)
    # An element at the end of the interval may still join a session that ends there.
    order = EventOrder.of(bound.windows)
    stale = [*(head.manifest.stale if head is not None else ()), *replaced]
    return EpochPlan(
        tables=tables,
        bound=bound,
        parent=parent,
        head=head,
        kind="backfill",
        order=order,
        interval=interval,
        positions={pipeline.source.table: Position(version=source.log.head, frontier=interval.end)},
        frames=frames,
        counts=counts,
        steps=(CommitStep(max(now, clock_of(parent)), interval.end - order.lag),),
        partitions={},
        watermark_before=parent.manifest.watermark if parent is not None else interval.start - order.lag,
        shards=cut_shards(shards, pipeline.max_parallelism),
        replaced_epochs=tuple(epoch for item in stale if item.end <= interval.end for epoch in item.epochs),
        stale=tuple(item for item in stale if item.end > interval.end),
        run_id=uuid.uuid4().hex,
        started_at=now,
    )


def changed_rows(source: Source, interval: Interval, since: int) -> int:
    """How many rows of an interval's event times were committed after a version."""
    recent = source.log.commits(since)
    if not recent:
        return 0
    frame = source.frames.judged(_files(source, recent), source.bound.source, _origins(recent))
    return frame.where(F.col(STATUS).isin(OK, DROPPED) & _within(interval)).count()


def _slice(
    source: Source, interval: Interval, recent: Sequence[SourceCommit] | None
) -> tuple[SliceFrames, SliceCounts]:
    """The rows of an interval, and of the recent versions the stragglers and what can't be used.

    A first run (recent is None) sees all versions, and what lies before it is not its business.
    """
    frames, schema = source.frames, source.bound.source
    known = F.col(STATUS).isin(OK, DROPPED)
    origins = origins_of(source, source.log.active(source.bound.pipeline.source.timestamp))
    everything = frames.judged(frames.snapshot(source.log.head), schema, origins)
    inside = everything.where(known & _within(interval))
    if recent is None:
        return _counted(inside, everything.where(known & _placeless()), everything.where(~known))
    if not recent:
        return _counted(inside, None, None)
    seen = frames.judged(_files(source, recent), schema, _origins(recent))
    before = _placeless() | (F.col(TIME) < interval.start)
    return _counted(inside, seen.where(known & before), seen.where(~known))


def _counted(
    inside: DataFrame, stragglers: DataFrame | None, unusable: DataFrame | None
) -> tuple[SliceFrames, SliceCounts]:
    """The parts of a slice that hold anything, and how much."""
    parts = [
        (name, frame) for name, frame in zip("isu", (inside, stragglers, unusable), strict=True) if frame is not None
    ]
    counts = [
        frame.groupBy(STATUS).agg(F.count("*").alias("rows")).withColumn("part", F.lit(name)) for name, frame in parts
    ]
    together = counts[0]
    for frame in counts[1:]:
        together = together.unionByName(frame)
    found: dict[str, dict[str, int]] = {"i": {}, "s": {}, "u": {}}
    for row in together.collect():
        found[row["part"]][row[STATUS]] = row["rows"]
    usable = F.col(STATUS) == OK
    return (
        SliceFrames(
            safe=inside.where(usable) if OK in found["i"] else None,
            candidates=stragglers.where(usable) if stragglers is not None and OK in found["s"] else None,
            unusable=unusable if found["u"] else None,
        ),
        SliceCounts(
            usable=found["i"].get(OK, 0) + found["s"].get(OK, 0),
            dropped=found["i"].get(DROPPED, 0) + found["s"].get(DROPPED, 0),
            rejected=found["u"],
        ),
    )


def _origins(commits: Sequence[SourceCommit]) -> dict[str, tuple[int, Millis]]:
    """In event order a run is one commit, and a row is held against the time its file was written."""
    return {file.name: (0, file.written) for commit in commits for file in commit.files}


def origins_of(source: Source, files: Sequence[SourceFile]) -> dict[str, tuple[int, Millis]] | None:
    """When each file was written, if any can hold a row that lies too far ahead of that; statistics mostly say no."""
    ahead = source.bound.pipeline.max_ahead_millis
    if all(file.newest is not None and file.newest <= file.written + ahead for file in files):
        return None
    return {file.name: (0, file.written) for file in files}


def _files(source: Source, commits: Sequence[SourceCommit]) -> DataFrame:
    return source.frames.files(source.log.head, [file.action for commit in commits for file in commit.files])


def _within(interval: Interval) -> Column:
    return (F.col(TIME) >= interval.start) & (F.col(TIME) < interval.end)


def _placeless() -> Column:
    """Times that lie in no interval; rows that `where` dropped may have them."""
    return F.col(TIME).isNull() | (F.col(TIME) < FIRST_TIME) | (F.col(TIME) >= LAST_TIME)

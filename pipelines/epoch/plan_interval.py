"""The plan of a backfill's run for one interval of event time.

A run for [a, b) reads the rows of versions up to V with an event time in [a, b). From the versions since its parent it
also reads the rows before a (stragglers, judged against the watermark) and the unusable rows. So exactly one run reads
each row, however late the row arrived.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidegate.pipelines.definition.event_columns import DROPPED, FIRST_TIME, LAST_TIME, OK, STATUS, TIME
from tidegate.pipelines.epoch.file_slices import of_interval
from tidegate.pipelines.epoch.joint_frames import joint_frame
from tidegate.pipelines.epoch.plan import EpochPlan, SliceCounts, SliceFrames, clock_of
from tidegate.pipelines.epoch.shards import cut_shards
from tidegate.pipelines.epoch.steps import CommitStep, EventOrder
from tidegate.pipelines.manifest import Interval, Manifest, StaleInterval
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.sources.commits import SourceCommit, SourceFile
from tidegate.pipelines.sources.open_input import OpenInput
from tidegate.pipelines.tables.columns import quoted
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import Millis

_INSIDE, _BEFORE, _UNUSABLE = "inside", "before", "unusable"
"""Parts of a slice: rows of the interval, stragglers from before it, rows for the rejects."""


def plan_interval(
    source: OpenInput,
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
        replaced: the interval that this run replaces, and the later intervals, which become stale.
    """
    bound, pipeline = source.bound, source.bound.pipeline
    sliced = []
    for input_ in source.inputs:
        recent = None if parent is None else input_.commits(input_.position_of(parent.manifest).version)
        is_plain = parent is None or input_.rejected_ahead(parent.manifest) is None
        if input_.files is not None and is_plain:
            sliced.append(of_interval(input_, input_.files, interval, recent))
        else:
            sliced.append(_slice(input_, interval, recent, None if parent is None else parent.manifest))
    counts = sum((counts for _, counts in sliced), SliceCounts())
    # An element at the end of the interval may still join a session that ends there.
    order = EventOrder.of(bound.compute)
    stale = [*(head.manifest.stale if head is not None else ()), *replaced]
    return EpochPlan(
        tables=tables,
        bound=bound,
        parent=parent,
        head=head,
        kind="backfill",
        order=order,
        interval=interval,
        positions={
            table: position
            for input_ in source.inputs
            for table, position in input_.position(input_.log.head, interval.end).items()
        },
        frames=SliceFrames.together([frames for frames, _ in sliced]),
        counts=counts,
        steps=(CommitStep(max(now, clock_of(parent)), interval.end - order.lag),),
        partitions={},
        watermark_before=parent.manifest.watermark if parent is not None else interval.start - order.lag,
        shards=cut_shards(shards, pipeline.max_parallelism, counts.usable, parent, counts.size),
        replaced_epochs=tuple(epoch for item in stale if item.end <= interval.end for epoch in item.epochs),
        stale=tuple(item for item in stale if item.end > interval.end),
        started_at=now,
    )


def changed_rows(source: OpenInput, interval: Interval, since: int) -> int:
    """Return the number of rows with an event time in an interval that were committed after a version."""
    recent = source.commits(since)
    if not recent:
        return 0
    return source.rows_of(_files(recent)).where(F.col(STATUS).isin(OK, DROPPED) & _within(interval)).count()


def _slice(
    source: OpenInput, interval: Interval, recent: Sequence[SourceCommit] | None, after: Manifest | None
) -> tuple[SliceFrames, SliceCounts]:
    """Return the rows of an interval, with the stragglers and the unusable rows of recent versions.

    A first run (recent is None) reads all versions, and leaves out the rows before its interval.
    """
    accepted = F.col(STATUS).isin(OK, DROPPED)
    everything = source.rows_at(source.log.head, after)
    inside = everything.where(may_lie_within(source, interval) & accepted & _within(interval))
    if recent is None:
        part = F.when(~accepted, _UNUSABLE).when(_within(interval), _INSIDE).when(_placeless(), _BEFORE)
        counts, (rows,) = _count((everything, part))
        source.check_read(source.log.active(source.input.input.source.timestamp), rows)
        return _sliced(source, counts, inside, everything.where(accepted & _placeless()), everything.where(~accepted))
    if not recent:
        return _sliced(source, _count((inside, F.lit(_INSIDE)))[0], inside, None, None)
    seen = source.rows_of(_files(recent))
    before = _placeless() | (F.col(TIME) < interval.start)
    counts, (_, rows) = _count((inside, F.lit(_INSIDE)), (seen, F.when(~accepted, _UNUSABLE).when(before, _BEFORE)))
    source.check_read(_files(recent), rows)
    return _sliced(source, counts, inside, seen.where(accepted & before), seen.where(~accepted))


def _count(*frames: tuple[DataFrame, Column]) -> tuple[dict[str, dict[str, int]], list[int]]:
    """Count the rows by part and status, and all rows of each frame. A column with null puts its row in no part."""
    counted = [
        frame.groupBy(F.lit(number).alias("frame"), part.alias("part"), STATUS).agg(F.count("*").alias("rows"))
        for number, (frame, part) in enumerate(frames)
    ]
    together = counted[0]
    for frame in counted[1:]:
        together = together.unionByName(frame)
    by_part: dict[str, dict[str, int]] = {_INSIDE: {}, _BEFORE: {}, _UNUSABLE: {}}
    rows = [0] * len(frames)
    for row in together.collect():
        rows[row["frame"]] += row["rows"]
        if row["part"] is not None:
            by_part[row["part"]][row[STATUS]] = row["rows"]
    return by_part, rows


def _sliced(
    source: OpenInput,
    counts: dict[str, dict[str, int]],
    inside: DataFrame,
    before: DataFrame | None,
    unusable: DataFrame | None,
) -> tuple[SliceFrames, SliceCounts]:
    """Return the parts of a slice that have rows, with their counts."""
    usable = F.col(STATUS) == OK

    def columns(frame: DataFrame) -> DataFrame:
        return joint_frame(source.bound, source.input, frame)

    return (
        SliceFrames(
            safe=columns(inside).where(usable) if OK in counts[_INSIDE] else None,
            candidates=columns(before).where(usable) if before is not None and OK in counts[_BEFORE] else None,
            unusable=columns(unusable) if unusable is not None and counts[_UNUSABLE] else None,
        ),
        SliceCounts(
            usable=counts[_INSIDE].get(OK, 0) + counts[_BEFORE].get(OK, 0),
            dropped=counts[_INSIDE].get(DROPPED, 0) + counts[_BEFORE].get(DROPPED, 0),
            rejected=counts[_UNUSABLE],
        ),
    )


def _files(commits: Sequence[SourceCommit]) -> list[SourceFile]:
    return [file for commit in commits for file in commit.files]


def _within(interval: Interval) -> Column:
    return (F.col(TIME) >= interval.start) & (F.col(TIME) < interval.end)


def may_lie_within(source: OpenInput, interval: Interval) -> Column:
    """Return a condition on the table's event-time column; by its statistics Delta skips files without rows to read."""
    if not source.has_instants:
        return F.lit(True)
    column = F.col(quoted(source.input.input.source.timestamp))
    return (column >= F.timestamp_millis(F.lit(interval.start))) & (column < F.timestamp_millis(F.lit(interval.end)))


def _placeless() -> Column:
    """Return the condition for a time that lies in no interval; rows that `where` dropped may have such times."""
    return F.col(TIME).isNull() | (F.col(TIME) < FIRST_TIME) | (F.col(TIME) >= LAST_TIME)

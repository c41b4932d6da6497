"""The plan of a hand-over: the stream takes what a backfill left, from its frontier on.

A backfill up to event time b at source version V has taken the rows before b, and put what can't be
used into the rejects. The rest of V is one last, open interval, pinned at V, at whose end the
watermark is the strategy's own; the stream goes on with version V + 1. No row is in both, none in neither.
"""

from __future__ import annotations

from pyspark.sql import functions as F

from pipelines.epoch.event_time import EventTime
from pipelines.epoch.plan import EpochPlan, SliceCounts, SliceFrames, Source, clock_of, cut_shards
from pipelines.epoch.plan_commits import measure
from pipelines.epoch.plan_interval import origins_of
from pipelines.epoch.steps import CommitStep
from pipelines.errors import Refused
from pipelines.snapshots.head import Snapshot
from pipelines.sources.columns import DROPPED, OK, STATUS, TIME
from pipelines.tables.pipeline_tables import PipelineTables
from windowing.time import Millis, show_millis


def plan_hand_over(source: Source, tables: PipelineTables, head: Snapshot, now: Millis, shards: int) -> EpochPlan:
    """Plan the epoch between a backfill and the stream that goes on from it.

    Args:
        source: the source as it is now.
        tables: the pipeline's tables.
        head: the snapshot of the backfill's last interval.
        now: the driver's clock.
        shards: how many shards to cut the key groups into.

    Raises:
        Refused: intervals behind the head were to be run again, or the pinned version can't be read any more.
    """
    bound, pipeline, manifest = source.bound, source.bound.pipeline, head.manifest
    position = source.position_of(manifest)
    if manifest.stale:
        first = min(manifest.stale, key=lambda interval: interval.start)
        again = f"--start '{show_millis(first.start)}' --end '{show_millis(first.end)}' --and-following"
        raise Refused(
            f"pipeline {pipeline.name!r} has {len(manifest.stale)} interval(s) that a correction left stale: run them "
            f"again before a stream goes on, `tidegate backfill {pipeline.name} {again}`"
        )
    assert position.frontier is not None
    files = source.log.active(pipeline.source.timestamp, position.version)
    frame = source.frames.judged(source.frames.snapshot(position.version), bound.source, origins_of(source, files))
    rest = frame.where(F.col(STATUS).isin(OK, DROPPED) & (F.col(TIME) >= position.frontier))
    found = measure(rest, pipeline)
    event_time = EventTime.restored(pipeline.watermark, manifest.watermark, clock_of(head), {})
    for partition, largest in sorted(found.largest.get(0, {}).items()):
        event_time.observe(partition, largest)
    step = CommitStep(clock_of(head), event_time.end_commit(clock_of(head)))
    return EpochPlan(
        tables=tables,
        bound=bound,
        parent=head,
        head=head,
        kind="stream",
        positions=source.position(position.version),
        frames=SliceFrames(rest.where(F.col(STATUS) == OK) if found.counts.get(OK) else None, None, None),
        counts=SliceCounts(usable=found.counts.get(OK, 0), dropped=found.counts.get(DROPPED, 0)),
        steps=(step,),
        partitions=event_time.snapshot(),
        watermark_before=manifest.watermark,
        shards=cut_shards(shards, pipeline.max_parallelism),
        started_at=now,
    )

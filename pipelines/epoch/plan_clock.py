"""The plan of a clock epoch: no data, and time goes on, so what is due fires.

Every run of a stream ends with one, and a continuous one makes them between its data: idle sources,
timers in processing time and generators that advance by themselves need no new row. The positions go on
over versions without data, which a source that is quiet for long gets from its maintenance.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidegate.pipelines.epoch.event_times import EventTimes
from tidegate.pipelines.epoch.plan import EpochPlan, SliceCounts, SliceFrames
from tidegate.pipelines.epoch.plan_commits import settled_position
from tidegate.pipelines.epoch.shards import cut_shards
from tidegate.pipelines.epoch.steps import CommitStep
from tidegate.pipelines.manifest import Manifest, Position
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.sources.source import Source
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import Millis, millis

_MAY_WAIT: Millis = 86_400_000
"""How long a position may stay before versions without data: Delta keeps log entries for a day at the very least."""


def plan_clock(source: Source, tables: PipelineTables, head: Snapshot, now: Millis, shards: int) -> EpochPlan | None:
    """Plan an epoch in which only the clock moves; None where nothing is due and none need be recorded.

    All of the source must be read: a backlog is no quiet time.

    Args:
        source: the source as it is now.
        tables: the pipeline's tables.
        head: the snapshot to go on from.
        now: the driver's clock.
        shards: how many shards to cut the key groups into.
    """
    pipeline, manifest = source.bound.pipeline, head.manifest
    for one in source.inputs:
        one.position_of(manifest)
    clock = max(now, manifest.processing_time)
    times = EventTimes.of(pipeline, manifest)
    watermark = times.advance(clock)
    positions = {
        table: position for one in source.inputs for table, position in settled_position(one, manifest).items()
    }
    recorded = clock - manifest.processing_time < millis(pipeline.checkpoint_interval, "checkpoint_interval")
    if recorded and not _is_due(manifest, watermark, clock) and not _must_pass(source, manifest, positions, clock):
        return None
    return without_data(source, tables, head, now, shards, positions, CommitStep(clock, watermark), times)


def without_data(
    source: Source,
    tables: PipelineTables,
    head: Snapshot,
    now: Millis,
    shards: int,
    positions: Mapping[str, Position],
    step: CommitStep,
    times: EventTimes,
) -> EpochPlan:
    """Return the plan of an epoch that reads nothing and takes one step of the clocks.

    Args:
        source: the source as it is now.
        tables: the pipeline's tables.
        head: the snapshot to go on from.
        now: the driver's clock.
        shards: how many shards to cut the key groups into.
        positions: how far each input has been read.
        step: the clock and the watermark that the epoch ends with.
        times: event time of the inputs.
    """
    pipeline, manifest = source.bound.pipeline, head.manifest
    return EpochPlan(
        tables=tables,
        bound=source.bound,
        parent=head,
        head=head,
        kind="clock",
        positions=dict(positions),
        frames=SliceFrames(None, None, None),
        counts=SliceCounts(),
        steps=(step,),
        partitions=times.partitions,
        input_watermarks=times.watermarks,
        watermark_before=manifest.watermark,
        shards=cut_shards(shards, pipeline.max_parallelism, 0, head),
        stale=manifest.stale,
        started_at=now,
    )


def _must_pass(source: Source, manifest: Manifest, positions: Mapping[str, Position], clock: Millis) -> bool:
    """Whether versions without data wait for so long that their log entries might be cleaned up."""
    return any(
        position.version > (read := manifest.position_in(one.table).version)
        and one.log.time_of(read + 1) + _MAY_WAIT <= clock
        for one in source.inputs
        for position in (positions[one.table],)
    )


def _is_due(manifest: Manifest, watermark: Millis, clock: Millis) -> bool:
    """Whether a timer of any shard fires by then."""
    return any(
        (shard.next_event_time_timer is not None and shard.next_event_time_timer <= watermark)
        or (shard.next_processing_time_timer is not None and shard.next_processing_time_timer <= clock)
        for shard in manifest.shards
    )

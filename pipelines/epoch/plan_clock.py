"""The plan of a clock epoch: it reads no data, but time advances, so timers that are due fire.

Each run of a stream ends with a clock epoch, and a continuous stream also makes them between its data. Idle sources,
timers in processing time, and generators that advance by themselves need no new row. The positions move past versions
without data, which maintenance adds to a source that gets no rows, and past versions that are to be ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tidegate.pipelines.epoch.event_times import EventTimes
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.plan import EpochPlan, SliceCounts
from tidegate.pipelines.epoch.plan_commits import settled_position
from tidegate.pipelines.epoch.shards import cut_shards
from tidegate.pipelines.epoch.steps import CommitStep
from tidegate.pipelines.manifest import Manifest, Position
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import Millis, millis

_MAY_WAIT: Millis = 86_400_000
"""Longest time that a position may stay before versions without data: Delta keeps log entries for at least a day."""


def plan_clock(
    source: OpenInput, tables: PipelineTables, head: Snapshot, now: Millis, shards: Callable[[], int]
) -> EpochPlan | None:
    """Plan an epoch in which only the clock moves; None if nothing is due and no clock epoch need be recorded.

    The source must be read completely, because unread rows must not look like a time without data.

    Args:
        source: the source as it is now.
        tables: the pipeline's tables.
        head: the snapshot to go on from.
        now: the driver's clock.
        shards: returns how many shards to cut the key groups into.
    """
    pipeline, manifest = source.bound.pipeline, head.manifest
    for input_ in source.inputs:
        input_.position_of(manifest)
    clock = max(now, manifest.processing_time)
    times = EventTimes.of(pipeline, manifest)
    watermark = times.advance(clock)
    positions = {
        table: position for input_ in source.inputs for table, position in settled_position(input_, manifest).items()
    }
    recorded = clock - manifest.processing_time < millis(pipeline.checkpoint_interval, "checkpoint_interval")
    must_pass = _must_pass(source, manifest, positions, clock) or source.skipped(manifest, positions) > 0
    if recorded and not _is_due(manifest, watermark, clock) and not must_pass:
        return None
    return without_data(source, tables, head, now, shards, positions, CommitStep(clock, watermark), times)


def without_data(
    source: OpenInput,
    tables: PipelineTables,
    head: Snapshot,
    now: Millis,
    shards: Callable[[], int],
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
        shards: returns how many shards to cut the key groups into.
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
        counts=SliceCounts(),
        steps=(step,),
        partitions=times.partitions,
        input_watermarks=times.watermarks,
        watermark_before=manifest.watermark,
        shards=cut_shards(shards(), pipeline.max_parallelism, 0, head),
        stale=manifest.stale,
        skipped=source.skipped(manifest, positions),
        started_at=now,
    )


def _must_pass(source: OpenInput, manifest: Manifest, positions: Mapping[str, Position], clock: Millis) -> bool:
    """Return True if versions without data are so old that Delta may soon remove their log entries."""
    return any(
        position.version > (read := manifest.position_in(input_.table).version)
        and input_.log.time_of(read + 1) + _MAY_WAIT <= clock
        for input_ in source.inputs
        for position in (positions[input_.table],)
    )


def _is_due(manifest: Manifest, watermark: Millis, clock: Millis) -> bool:
    """Return True if a timer of a shard fires up to the watermark or the clock."""
    return any(
        (shard.next_event_time_timer is not None and shard.next_event_time_timer <= watermark)
        or (shard.next_processing_time_timer is not None and shard.next_processing_time_timer <= clock)
        for shard in manifest.shards
    )

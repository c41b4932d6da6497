"""The plan of a clock epoch: it reads no data; time advances and due timers fire.

Each run of a stream ends with a clock epoch, and a continuous stream also runs them between its data. Idle sources,
processing-time timers, and generators that advance by themselves need no new rows. The positions move past versions
without data, which maintenance adds to a source without new rows, and past ignored versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.epoch.event_times import CommitStep, EventTimes
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.plan import Basis, EpochPlan
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.windowing.time import MAX_TIMESTAMP, Millis, millis

_MAY_WAIT: Millis = 86_400_000
"""Longest time for which a position stays before versions without data. Delta keeps log entries for at least a day."""


def plan_clock(basis: Basis) -> EpochPlan | None:
    """Plan an epoch in which only the clock advances. Return None if nothing is due and no position needs to move.

    The source must be read completely, because unread rows must not look like a time without data.
    """
    source, pipeline, manifest = basis.source, basis.pipeline, basis.of_head
    for input_ in source.inputs:
        input_.position_of(manifest)
    clock = max(basis.now, manifest.processing_time)
    times = EventTimes.of(pipeline, manifest)
    watermark = times.advance(clock)
    positions = {input_.table: input_.passed(manifest.position_in(input_.table)) for input_ in source.inputs}
    recorded = clock - manifest.processing_time < millis(pipeline.checkpoint_interval, "checkpoint_interval")
    must_pass = _must_pass(source, manifest, positions, clock) or source.skipped(manifest, positions) > 0
    if recorded and not _is_due(manifest, watermark, clock) and not must_pass:
        return None
    return basis.plan("clock", positions, (CommitStep(clock, watermark),), times)


def plan_end(basis: Basis) -> EpochPlan | None:
    """Plan an epoch that ends event time, so that all open windows fire and become final; None if it has ended.

    Flink sends the same watermark, `Watermark.MAX_WATERMARK`, when a bounded source has ended.
    """
    manifest = basis.of_head
    if manifest.watermark == MAX_TIMESTAMP:
        return None
    for input_ in basis.source.inputs:
        if input_.position_of(manifest).files:
            raise Refused(
                f"input of {manifest.pipeline} can't end within a commit of {input_.table!r}, which epoch "
                f"{manifest.epoch} read only in part: run `tidegate stream {manifest.pipeline} --available-now`, then "
                f"again"
            )
    times, clock = EventTimes.of(basis.pipeline, manifest), max(basis.now, manifest.processing_time)
    plan = basis.plan("clock", manifest.positions, (CommitStep(clock, MAX_TIMESTAMP),), times)
    return replace(plan, input_watermarks=dict.fromkeys(manifest.inputs, MAX_TIMESTAMP))


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

"""The plan of a hand-over: the stream reads the rows that a backfill left, from its frontier on.

A backfill up to event time b at source version V has read the rows before b, and rejected the unusable rows. The
hand-over reads the other rows of V as one last, open interval; at its end the watermark is that of the pipeline's
strategy. Then the stream continues with version V + 1. So backfill and stream together read each row exactly once.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.pipelines.definition.event_columns import DROPPED
from tidegate.pipelines.epoch.event_times import EventTimes
from tidegate.pipelines.epoch.file_slices import of_version
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.plan import EpochPlan, SliceCounts, SliceRows, clock_of
from tidegate.pipelines.epoch.seen_events import SeenEvents
from tidegate.pipelines.epoch.shards import cut_shards
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import Manifest
from tidegate.pipelines.snapshots.head import Snapshot, lineage
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import MAX_TIMESTAMP, Millis, show_millis


def plan_hand_over(
    source: OpenInput, tables: PipelineTables, head: Snapshot, now: Millis, shards: Callable[[], int]
) -> EpochPlan:
    """Plan the epoch between a backfill and the stream that goes on from it.

    Args:
        source: the source as it is now.
        tables: the pipeline's tables.
        head: the snapshot of the backfill's last interval.
        now: the driver's clock.
        shards: returns how many shards to cut the key groups into.

    Raises:
        Refused: the input has ended, intervals behind the head must be run again first, or the version that the
            backfill read can't be read any more.
    """
    bound, pipeline, manifest = source.bound, source.bound.pipeline, head.manifest
    if manifest.watermark == MAX_TIMESTAMP:
        line = (entry.manifest for entry in lineage(tables, manifest.epoch))
        before = next((earlier["epoch"] for earlier in line if earlier["watermark"] != MAX_TIMESTAMP), "EPOCH")
        raise Refused(
            f"pipeline {pipeline.name!r} can't go on as a stream: its input has ended at epoch {manifest.epoch}, so "
            "all that comes would be late. Go back to before the end with "
            f"`tidegate restore {pipeline.name} {before}`, then start the stream"
        )
    if manifest.stale:
        first = min(manifest.stale, key=lambda interval: interval.start)
        again = f"--start '{show_millis(first.start)}' --end '{show_millis(first.end)}' --and-following"
        raise Refused(
            f"pipeline {pipeline.name!r} has {len(manifest.stale)} interval(s) that a correction left stale: run them "
            f"again before a stream goes on, `tidegate backfill {pipeline.name} {again}`"
        )
    times, clock = EventTimes.restored(pipeline, manifest.watermark, clock_of(head), {}, {}), clock_of(head)
    rests = [_rest(input_, manifest) for input_ in source.inputs]
    measures = [source.measure(rest, with_rejects=False) for rest in rests]
    seen = [
        SeenEvents(source.engine, rest, input_.input, input_.number).of(0) if input_.input.reads_events else ()
        for input_, rest in zip(source.inputs, rests, strict=True)
    ]
    parts = [part for rest, measured in zip(rests, measures, strict=True) if measured.usable for part in rest.parts]
    step = times.end_together([measured.largest.get(0, {}) for measured in measures], clock, seen)
    positions = {
        table: position
        for input_ in source.inputs
        for table, position in input_.position(input_.log.settled(manifest.position_in(input_.table).version)).items()
    }
    counts = SliceCounts(
        usable=sum(measured.usable for measured in measures),
        dropped=sum(measured.counts.get(DROPPED, 0) for measured in measures),
        size=sum(measured.size for measured in measures),
    )
    return EpochPlan(
        tables=tables,
        bound=bound,
        parent=head,
        head=head,
        kind="stream",
        positions=positions,
        rows=SliceRows.of(source.files, parts),
        counts=counts,
        steps=(step,),
        partitions=times.partitions,
        input_watermarks=times.watermarks,
        watermark_before=manifest.watermark,
        shards=cut_shards(shards(), pipeline.max_parallelism, counts.usable, head, counts.size),
        skipped=source.skipped(manifest, positions),
        started_at=now,
    )


def _rest(source: OpenInput, manifest: Manifest) -> FileSlice:
    """Return the rows that the backfill left in the version that it read: those from the frontier on."""
    position = source.settled(source.position_of(manifest))
    assert position.frontier is not None
    return of_version(source, position.version, manifest, since=position.frontier)

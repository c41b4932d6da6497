"""The plan of a hand-over: the stream takes what a backfill left, from its frontier on.

A backfill up to event time b at source version V has taken the rows before b, and put what can't be
used into the rejects. The rest of V is one last, open interval, pinned at V, at whose end the
watermark is the strategy's own; the stream goes on with version V + 1. No row is in both, none in neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidegate.pipelines.definition.event_columns import DROPPED, OK, STATUS, TIME
from tidegate.pipelines.epoch.event_times import EventTimes
from tidegate.pipelines.epoch.file_slices import of_rest
from tidegate.pipelines.epoch.joint_frames import joint_frame, together
from tidegate.pipelines.epoch.plan import EpochPlan, SliceCounts, SliceFrames, clock_of
from tidegate.pipelines.epoch.plan_commits import measure
from tidegate.pipelines.epoch.seen_events import SeenEvents
from tidegate.pipelines.epoch.shards import cut_shards
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import Manifest
from tidegate.pipelines.snapshots.head import Snapshot, lineage
from tidegate.pipelines.sources.file_measure import measure_files
from tidegate.pipelines.sources.source import Source
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import MAX_TIMESTAMP, Millis, show_millis
from tidegate.windowing.watermarks import SeenEvent


def plan_hand_over(source: Source, tables: PipelineTables, head: Snapshot, now: Millis, shards: int) -> EpochPlan:
    """Plan the epoch between a backfill and the stream that goes on from it.

    Args:
        source: the source as it is now.
        tables: the pipeline's tables.
        head: the snapshot of the backfill's last interval.
        now: the driver's clock.
        shards: how many shards to cut the key groups into.

    Raises:
        Refused: the input has ended, intervals behind the head were to be run again, or the pinned version can't be
            read any more.
    """
    bound, pipeline, manifest = source.bound, source.bound.pipeline, head.manifest
    if manifest.watermark == MAX_TIMESTAMP:
        line = (entry.manifest for entry in lineage(tables, manifest.epoch))
        before = next((told["epoch"] for told in line if told["watermark"] != MAX_TIMESTAMP), "EPOCH")
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
    seen: list[Iterable[SeenEvent]] = [() for _ in source.inputs]
    if source.files is not None and source.rejected_ahead(manifest) is None:
        files = of_rest(source, source.files, source.settled(source.position_of(manifest)))
        found = [measure_files(files, source.input.input.watermark_by, with_rejects=False)]
        frames = SliceFrames(None, None, None, replace(files, traced=False) if found[0].usable else None)
    else:
        rests = [(one, _rest(one, manifest)) for one in source.inputs]
        found = [measure([rest]) for rest in rests]
        seen = [SeenEvents(rest, one.input).of(0) if one.input.reads_events else () for one, rest in rests]
        usable = [
            joint_frame(bound, one.input, rest).where(F.col(STATUS) == OK)
            for (one, rest), measured in zip(rests, found, strict=True)
            if measured.usable
        ]
        frames = SliceFrames(together(usable), None, None)
    step = times.end_together([measured.largest.get(0, {}) for measured in found], clock, seen)
    counts = SliceCounts(
        usable=sum(measured.usable for measured in found),
        dropped=sum(measured.counts.get(DROPPED, 0) for measured in found),
        size=sum(measured.size for measured in found),
    )
    return EpochPlan(
        tables=tables,
        bound=bound,
        parent=head,
        head=head,
        kind="stream",
        positions={
            table: position
            for one in source.inputs
            for table, position in one.position(one.log.settled(manifest.position_in(one.table).version)).items()
        },
        frames=frames,
        counts=counts,
        steps=(step,),
        partitions=times.partitions,
        input_watermarks=times.watermarks,
        watermark_before=manifest.watermark,
        shards=cut_shards(shards, pipeline.max_parallelism, counts.usable, head, counts.size),
        started_at=now,
    )


def _rest(source: Source, manifest: Manifest) -> DataFrame:
    """The rows of an input that the backfill left: of the version that it read, from its frontier on."""
    position = source.settled(source.position_of(manifest))
    assert position.frontier is not None
    after = F.col(STATUS).isin(OK, DROPPED) & (F.col(TIME) >= position.frontier)
    return source.rows_at(position.version, manifest).where(after)

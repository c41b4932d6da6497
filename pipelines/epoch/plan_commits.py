"""The plan of a stream's epoch: source commits in their order.

Watermarks and the clock move at the end of each commit, and a row is judged against the watermark before its commit.
So the result does not depend on how the commits are divided into epochs. If event time advances by itself, it advances
to the time of a commit before the rows of the commit are judged. So the result does not depend on clock epochs between
the commits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.event_columns import COMMIT, DROPPED, OK, STATUS, TIME
from tidegate.pipelines.epoch.closed import closed_by
from tidegate.pipelines.epoch.event_times import EventTimes
from tidegate.pipelines.epoch.file_slices import may_be_late, of_commits, unusable_rows
from tidegate.pipelines.epoch.joint_frames import joint_frame, together
from tidegate.pipelines.epoch.plan import EpochPlan, SliceCounts, SliceFrames
from tidegate.pipelines.epoch.read_commits import ReadCommit, in_steps, steps_of
from tidegate.pipelines.epoch.seen_events import SeenEvents, moves_watermark, partition_of
from tidegate.pipelines.epoch.shards import cut_shards
from tidegate.pipelines.manifest import Manifest, Position
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.sources.file_measure import measure_files
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.measures import Measures
from tidegate.pipelines.sources.open_input import OpenInput
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import MIN_TIMESTAMP, Millis


def plan_commits(
    source: OpenInput,
    tables: PipelineTables,
    commits: Sequence[ReadCommit],
    head: Snapshot | None,
    now: Millis,
    shards: int,
) -> EpochPlan:
    """Plan an epoch of a stream.

    Args:
        source: the source as it is now.
        tables: the pipeline's tables.
        commits: the commits to read, in order; only the last may be incomplete.
        head: the snapshot to go on from.
        now: the driver's clock.
        shards: how many shards to cut the key groups into.
    """
    bound, pipeline = source.bound, source.bound.pipeline
    manifest = None if head is None else head.manifest
    if manifest is not None:
        for input_ in source.inputs:
            input_.position_of(manifest)
    before = MIN_TIMESTAMP if manifest is None else manifest.watermark
    times = EventTimes.of(pipeline, manifest)
    commits = in_steps(commits, times)
    inputs = [part for part in source.inputs if any(commit.number == part.number for commit in commits)]
    files = None if source.files is None else of_commits(source.files, commits)
    frames = [] if files is not None else [(input_, _judged(input_, commits)) for input_ in inputs]
    measures = measure(frames) if files is None else measure_files(files, source.input.input.watermark_by)
    for input_, _ in frames:
        reads = _commits_of(input_, commits)
        rows = sum(measures.rows.get(read.step, 0) for read in reads)
        input_.check_read([file for read in reads for file in read.files], rows)
    seen = {input_.number: SeenEvents(frame, input_.input) for input_, frame in frames if input_.input.reads_events}
    steps = steps_of(
        commits, times, measures.largest, lambda read: seen[read.number].of(read.step) if read.number in seen else ()
    )
    closed = MIN_TIMESTAMP if manifest is None else closed_by(tables, bound, manifest)
    late = may_be_late(measures, [before, *(step.watermark for step in steps)], bound.lateness, closed)
    return EpochPlan(
        tables=tables,
        bound=bound,
        parent=head,
        head=head,
        kind="stream",
        positions={
            table: position
            for input_ in source.inputs
            for table, position in _position(input_, commits, manifest).items()
        },
        frames=_slices(bound, frames, measures, late)
        if files is None
        else _of_files(source, commits, files, measures, late),
        counts=SliceCounts(measures.usable, measures.counts.get(DROPPED, 0), measures.rejected, measures.size),
        steps=steps,
        partitions=times.partitions,
        input_watermarks=times.watermarks,
        watermark_before=before,
        shards=cut_shards(shards, pipeline.max_parallelism, measures.usable, head, measures.size),
        stale=() if manifest is None else manifest.stale,
        started_at=now,
    )


def measure(frames: Sequence[tuple[OpenInput, DataFrame]]) -> Measures:
    """Count the judged rows of inputs with one cheap aggregate; each commit index belongs to one input."""
    grouped = together(
        frame.groupBy(COMMIT, STATUS, partition_of(input_.input).alias("partition")).agg(
            F.count("*").alias("rows"),
            F.min(TIME).alias("smallest"),
            F.max(F.when(moves_watermark(input_.input), F.col(TIME))).alias("largest"),
        )
        for input_, frame in frames
    )
    measures = Measures()
    for row in () if grouped is None else grouped.collect():
        measures.add(row[COMMIT], row[STATUS], row["rows"], row["partition"], row["smallest"], row["largest"])
    return measures


def _judged(source: OpenInput, commits: Sequence[ReadCommit]) -> DataFrame:
    """Return the judged rows of one input's commits."""
    reads = _commits_of(source, commits)
    return source.frames.judged(
        source.frames.files(source.log.head, [file.action for read in reads for file in read.files]),
        source.input.source,
        {file.path: (read.step, read.commit.time) for read in reads for file in read.files},
    )


def _slices(
    bound: BoundPipeline, frames: Sequence[tuple[OpenInput, DataFrame]], measures: Measures, late: Mapping[int, Millis]
) -> SliceFrames:
    """Return the slice as frames. Rows that may be late have all columns; `late` has their latest time by commit."""
    frame = together(joint_frame(bound, input_.input, frame) for input_, frame in frames)
    assert frame is not None
    usable, may_be_late = F.col(STATUS) == OK, F.lit(False)
    for index, time in late.items():
        may_be_late = may_be_late | ((F.col(COMMIT) == index) & (F.col(TIME) <= time))
    return SliceFrames(
        safe=frame.where(usable & ~may_be_late) if measures.usable else None,
        candidates=frame.where(usable & may_be_late) if late else None,
        unusable=unusable_rows(frame) if measures.rejected else None,
    )


def _of_files(
    source: OpenInput,
    commits: Sequence[ReadCommit],
    files: FileSlice,
    measures: Measures,
    late: Mapping[int, Millis],
) -> SliceFrames:
    """Return the slice as files, which the tasks read themselves; Spark reads only the rejected rows."""
    return SliceFrames(
        safe=None,
        candidates=None,
        unusable=unusable_rows(_judged(source, commits)) if measures.rejected else None,
        files=replace(files, traced=bool(late)) if measures.usable else None,
    )


def _position(source: OpenInput, commits: Sequence[ReadCommit], manifest: Manifest | None) -> dict[str, Position]:
    reads = _commits_of(source, commits)
    if not reads:
        return source.position(-1) if manifest is None else settled_position(source, manifest)
    version = reads[-1].commit.version
    if not reads[-1].complete:
        return source.position(version - 1, files=reads[-1].end)
    return source.position(source.log.settled(version))


def _commits_of(source: OpenInput, commits: Sequence[ReadCommit]) -> list[ReadCommit]:
    """Return those commits that belong to an input."""
    return [read for read in commits if read.number == source.number]


def settled_position(source: OpenInput, manifest: Manifest) -> dict[str, Position]:
    """Return the position of an unread input, moved past the versions without data that follow it."""
    return {source.table: source.passed(manifest.position_in(source.table))}

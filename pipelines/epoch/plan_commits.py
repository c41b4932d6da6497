"""The plan of a stream's epoch: source commits in the order in which they were made.

Watermarks and the clock move at the end of each commit, and a row is judged against the watermark
before its own commit, so it does not matter how the commits are cut into epochs. Where event time goes
on by itself it does so up to a commit's time before the rows of that commit are judged, so it does not
matter who looked in between.
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
from tidegate.pipelines.sources.source import Source
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import MIN_TIMESTAMP, Millis


def plan_commits(
    source: Source,
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
        commits: what to read, in order; only the last may be incomplete.
        head: the snapshot to go on from.
        now: the driver's clock.
        shards: how many shards to cut the key groups into.
    """
    bound, pipeline = source.bound, source.bound.pipeline
    manifest = None if head is None else head.manifest
    if manifest is not None:
        for one in source.inputs:
            one.position_of(manifest)
    before = MIN_TIMESTAMP if manifest is None else manifest.watermark
    times = EventTimes.of(pipeline, manifest)
    commits = in_steps(commits, times)
    read = [one for one in source.inputs if any(commit.number == one.number for commit in commits)]
    files = None if source.files is None else of_commits(source.files, commits)
    frames = [] if files is not None else [(one, _judged(one, commits)) for one in read]
    found = measure(frames) if files is None else measure_files(files, source.input.input.watermark_by)
    for one, _ in frames:
        own = [commit for commit in commits if commit.number == one.number]
        one.check_read([file for commit in own for file in commit.files], sum(found.rows.get(of.step, 0) for of in own))
    seen = {one.number: SeenEvents(frame, one.input) for one, frame in frames if one.input.reads_events}
    steps = steps_of(
        commits, times, found.largest, lambda read: seen[read.number].of(read.step) if read.number in seen else ()
    )
    closed = MIN_TIMESTAMP if manifest is None else closed_by(tables, bound, manifest)
    late = may_be_late(found, [before, *(step.watermark for step in steps)], bound.lateness, closed)
    return EpochPlan(
        tables=tables,
        bound=bound,
        parent=head,
        head=head,
        kind="stream",
        positions={
            table: position for one in source.inputs for table, position in _position(one, commits, manifest).items()
        },
        frames=_slices(bound, frames, found, late) if files is None else _of_files(source, commits, files, found, late),
        counts=SliceCounts(found.usable, found.counts.get(DROPPED, 0), found.rejected, found.size),
        steps=steps,
        partitions=times.partitions,
        input_watermarks=times.watermarks,
        watermark_before=before,
        shards=cut_shards(shards, pipeline.max_parallelism, found.usable, head, found.size),
        stale=() if manifest is None else manifest.stale,
        started_at=now,
    )


def measure(frames: Sequence[tuple[Source, DataFrame]]) -> Measures:
    """Count the judged rows of inputs, no two of which share a commit: one cheap aggregate."""
    grouped = together(
        frame.groupBy(COMMIT, STATUS, partition_of(one.input).alias("partition")).agg(
            F.count("*").alias("rows"),
            F.min(TIME).alias("smallest"),
            F.max(F.when(moves_watermark(one.input), F.col(TIME))).alias("largest"),
        )
        for one, frame in frames
    )
    found = Measures()
    for row in () if grouped is None else grouped.collect():
        found.add(row[COMMIT], row[STATUS], row["rows"], row["partition"], row["smallest"], row["largest"])
    return found


def _judged(source: Source, commits: Sequence[ReadCommit]) -> DataFrame:
    """The rows of one input's commits."""
    own = [read for read in commits if read.number == source.number]
    return source.frames.judged(
        source.frames.files(source.log.head, [file.action for read in own for file in read.files]),
        source.input.source,
        {file.path: (read.step, read.commit.time) for read in own for file in read.files},
    )


def _slices(
    bound: BoundPipeline, frames: Sequence[tuple[Source, DataFrame]], found: Measures, late: Mapping[int, Millis]
) -> SliceFrames:
    """Rows that lie at or behind the watermark before their commit may be late, and carry all columns."""
    frame = together(joint_frame(bound, one.input, frame) for one, frame in frames)
    assert frame is not None
    usable, may_be_late = F.col(STATUS) == OK, F.lit(False)
    for index, time in late.items():
        may_be_late = may_be_late | ((F.col(COMMIT) == index) & (F.col(TIME) <= time))
    return SliceFrames(
        safe=frame.where(usable & ~may_be_late) if found.usable else None,
        candidates=frame.where(usable & may_be_late) if late else None,
        unusable=unusable_rows(frame) if found.rejected else None,
    )


def _of_files(
    source: Source,
    commits: Sequence[ReadCommit],
    files: FileSlice,
    found: Measures,
    late: Mapping[int, Millis],
) -> SliceFrames:
    """The same, where the tasks read the files themselves; Spark reads only what is rejected."""
    return SliceFrames(
        safe=None,
        candidates=None,
        unusable=unusable_rows(_judged(source, commits)) if found.rejected else None,
        files=replace(files, traced=bool(late)) if found.usable else None,
    )


def _position(source: Source, commits: Sequence[ReadCommit], manifest: Manifest | None) -> dict[str, Position]:
    own = [read for read in commits if read.number == source.number]
    if not own:
        return source.position(-1) if manifest is None else settled_position(source, manifest)
    version = own[-1].commit.version
    if not own[-1].complete:
        return source.position(version - 1, files=own[-1].end)
    return source.position(source.log.settled(version))


def settled_position(source: Source, manifest: Manifest) -> dict[str, Position]:
    """The position of an input of which nothing is read, past the versions without data that came since.

    A position before them would need their log entries, which the source cleans up in time.
    """
    position = manifest.position_in(source.table)
    if not position.files:
        position = position.model_copy(update={"version": source.log.settled(position.version)})
    return {source.table: position}

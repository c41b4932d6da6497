"""The plan of a stream's epoch: source commits in the order in which they were made.

Watermarks and the clock move at the end of each commit, and a row is judged against the watermark
before its own commit, so it does not matter how the commits are cut into epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipelines.binding import BoundPipeline
from pipelines.bound_input import BoundInput
from pipelines.epoch.event_times import EventTimes
from pipelines.epoch.joint_frames import joint_frame, together
from pipelines.epoch.plan import EpochPlan, SliceCounts, SliceFrames, Source, cut_shards
from pipelines.epoch.seen_events import SeenEvents, partition_of
from pipelines.snapshots.head import Snapshot
from pipelines.snapshots.manifest import Manifest, Position
from pipelines.sources.columns import COMMIT, DROPPED, OK, STATUS, TIME
from pipelines.sources.log import SourceCommit, SourceFile
from pipelines.tables.pipeline_tables import PipelineTables
from windowing.time import MIN_TIMESTAMP, Millis


@dataclass(frozen=True)
class ReadCommit:
    """A source commit, or the part of it that an epoch reads.

    Args:
        commit: the commit.
        files: those of its files that are read.
        end: how many of its files are read after them, those of earlier epochs included.
        complete: whether nothing of it is left to read after them.
        number: of the input whose commit it is.
    """

    commit: SourceCommit
    files: tuple[SourceFile, ...]
    end: int
    complete: bool
    number: int = 0


@dataclass
class Measures:
    """What one cheap aggregate tells of a slice: counts, and the times of each commit by source partition."""

    counts: dict[str, int] = field(default_factory=dict)
    largest: dict[int, dict[str, Millis]] = field(default_factory=dict)
    smallest: dict[int, Millis] = field(default_factory=dict)

    @classmethod
    def of(cls, parts: Sequence[tuple[BoundInput, DataFrame]]) -> Measures:
        """Count the judged rows of inputs; no two share a commit."""
        grouped = together(
            frame.groupBy(COMMIT, STATUS, partition_of(one).alias("partition")).agg(
                F.count("*").alias("rows"), F.min(TIME).alias("smallest"), F.max(TIME).alias("largest")
            )
            for one, frame in parts
        )
        found = cls()
        for row in () if grouped is None else grouped.collect():
            found.counts[row[STATUS]] = found.counts.get(row[STATUS], 0) + row["rows"]
            if row[STATUS] == OK:
                commit = row[COMMIT]
                found.largest.setdefault(commit, {})[row["partition"]] = row["largest"]
                found.smallest[commit] = min(found.smallest.get(commit, row["smallest"]), row["smallest"])
        return found


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
    read = [one for one in source.inputs if any(commit.number == one.number for commit in commits)]
    frames = [_judged(one, commits) for one in read]
    found = Measures.of([(one.input, frame) for one, frame in zip(read, frames, strict=True)])
    seen = {
        one.number: SeenEvents(frame, one.input)
        for one, frame in zip(read, frames, strict=True)
        if one.input.reads_events
    }
    times = EventTimes.of(pipeline, manifest)
    steps = tuple(
        times.step(
            commit.number,
            found.largest.get(index, {}),
            commit.commit.time,
            commit.complete,
            seen[commit.number].of(index) if commit.number in seen else (),
        )
        for index, commit in enumerate(commits)
    )
    frame = together(joint_frame(bound, one.input, frame) for one, frame in zip(read, frames, strict=True))
    assert frame is not None
    return EpochPlan(
        tables=tables,
        bound=bound,
        parent=head,
        head=head,
        kind="stream",
        positions={
            table: position for one in source.inputs for table, position in _position(one, commits, manifest).items()
        },
        frames=_slices(frame, bound, found, [before, *(step.watermark for step in steps)]),
        counts=SliceCounts(
            usable=found.counts.get(OK, 0),
            dropped=found.counts.get(DROPPED, 0),
            rejected={status: rows for status, rows in found.counts.items() if status not in (OK, DROPPED)},
        ),
        steps=steps,
        partitions=times.partitions,
        input_watermarks=times.watermarks,
        watermark_before=before,
        shards=cut_shards(shards, pipeline.max_parallelism),
        stale=() if manifest is None else manifest.stale,
        started_at=now,
    )


def _judged(source: Source, commits: Sequence[ReadCommit]) -> DataFrame:
    """The rows of one input's commits."""
    own = [(index, read) for index, read in enumerate(commits) if read.number == source.number]
    return source.frames.judged(
        source.frames.files(source.log.head, [file.action for _, read in own for file in read.files]),
        source.input.source,
        {file.name: (index, read.commit.time) for index, read in own for file in read.files},
    )


def _slices(frame: DataFrame, bound: BoundPipeline, found: Measures, watermarks: Sequence[Millis]) -> SliceFrames:
    """Rows that lie at or behind the watermark before their commit may be late, and carry all columns."""
    usable, may_be_late = F.col(STATUS) == OK, F.lit(False)
    limits = {} if bound.lateness is None else {index: watermarks[index] - bound.lateness for index in found.smallest}
    reached = {index: limit for index, limit in limits.items() if found.smallest[index] <= limit}
    for index, limit in reached.items():
        may_be_late = may_be_late | ((F.col(COMMIT) == index) & (F.col(TIME) <= limit))
    rejected = any(status not in (OK, DROPPED) for status in found.counts)
    return SliceFrames(
        safe=frame.where(usable & ~may_be_late) if found.counts.get(OK) else None,
        candidates=frame.where(usable & may_be_late) if reached else None,
        unusable=frame.where(~F.col(STATUS).isin(OK, DROPPED)) if rejected else None,
    )


def _position(source: Source, commits: Sequence[ReadCommit], manifest: Manifest | None) -> dict[str, Position]:
    own = [read for read in commits if read.number == source.number]
    if not own:
        return source.position(-1) if manifest is None else {source.table: manifest.position_in(source.table)}
    version = own[-1].commit.version
    return source.position(version) if own[-1].complete else source.position(version - 1, files=own[-1].end)

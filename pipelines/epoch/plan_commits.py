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
from pipelines.epoch.event_time import ONLY_PARTITION, EventTime
from pipelines.epoch.plan import EpochPlan, SliceCounts, SliceFrames, Source, clock_of, cut_shards
from pipelines.pipeline import Pipeline
from pipelines.snapshots.head import Snapshot
from pipelines.snapshots.manifest import Position
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
    """

    commit: SourceCommit
    files: tuple[SourceFile, ...]
    end: int
    complete: bool


@dataclass
class Measures:
    """What one aggregate tells of a slice: counts, and the times of each commit."""

    counts: dict[str, int] = field(default_factory=dict)
    largest: dict[int, dict[str, Millis]] = field(default_factory=dict)
    smallest: dict[int, Millis] = field(default_factory=dict)


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
        source.position_of(manifest)
    before = MIN_TIMESTAMP if manifest is None else manifest.watermark
    event_time = EventTime.restored(
        pipeline.watermark, before, clock_of(head), {} if manifest is None else manifest.partitions
    )
    frame = source.frames.judged(
        source.frames.files(source.log.head, [file.action for read in commits for file in read.files]),
        bound.source,
        {file.name: (index, read.commit.time) for index, read in enumerate(commits) for file in read.files},
    )
    found = measure(frame, pipeline)
    steps = tuple(
        event_time.step(found.largest.get(index, {}), read.commit.time, read.complete)
        for index, read in enumerate(commits)
    )
    return EpochPlan(
        tables=tables,
        bound=bound,
        parent=head,
        head=head,
        kind="stream",
        positions=_position(source, commits[-1]),
        frames=_slices(frame, bound, found, [before, *(step.watermark for step in steps)]),
        counts=SliceCounts(
            usable=found.counts.get(OK, 0),
            dropped=found.counts.get(DROPPED, 0),
            rejected={status: rows for status, rows in found.counts.items() if status not in (OK, DROPPED)},
        ),
        steps=steps,
        partitions=event_time.snapshot(),
        watermark_before=before,
        shards=cut_shards(shards, pipeline.max_parallelism),
        stale=() if manifest is None else manifest.stale,
        started_at=now,
    )


def measure(frame: DataFrame, pipeline: Pipeline) -> Measures:
    """Count the rows of a judged slice, and find the times of each of its commits: one cheap aggregate."""
    by = F.lit(ONLY_PARTITION) if pipeline.watermark_by is None else F.col(f"`{pipeline.watermark_by}`").cast("string")
    grouped = frame.groupBy(COMMIT, STATUS, F.coalesce(by, F.lit("null")).alias("partition")).agg(
        F.count("*").alias("rows"), F.min(TIME).alias("smallest"), F.max(TIME).alias("largest")
    )
    found = Measures()
    for row in grouped.collect():
        found.counts[row[STATUS]] = found.counts.get(row[STATUS], 0) + row["rows"]
        if row[STATUS] == OK:
            commit = row[COMMIT]
            found.largest.setdefault(commit, {})[row["partition"]] = row["largest"]
            found.smallest[commit] = min(found.smallest.get(commit, row["smallest"]), row["smallest"])
    return found


def _slices(frame: DataFrame, bound: BoundPipeline, found: Measures, watermarks: Sequence[Millis]) -> SliceFrames:
    """Rows that lie at or behind the watermark before their commit may be late, and carry all columns."""
    usable = F.col(STATUS) == OK
    may_be_late, some = F.lit(False), False
    lateness = bound.lateness
    for index, smallest in found.smallest.items() if lateness is not None else ():
        bound_for_late = watermarks[index] - (lateness or 0)
        if smallest <= bound_for_late:
            may_be_late = may_be_late | ((F.col(COMMIT) == index) & (F.col(TIME) <= bound_for_late))
            some = True
    rejected = any(status not in (OK, DROPPED) for status in found.counts)
    return SliceFrames(
        safe=frame.where(usable & ~may_be_late) if found.counts.get(OK) else None,
        candidates=frame.where(usable & may_be_late) if some else None,
        unusable=frame.where(~F.col(STATUS).isin(OK, DROPPED)) if rejected else None,
    )


def _position(source: Source, last: ReadCommit) -> dict[str, Position]:
    version = last.commit.version
    return source.position(version) if last.complete else source.position(version - 1, files=last.end)

"""The plan of a stream's epoch: source commits in their order.

Watermarks and the clock move at the end of each commit, and a row is judged against the watermark before its commit.
So the result does not depend on how the commits are divided into epochs. If event time advances by itself, it advances
to the time of a commit before the rows of the commit are judged. So the result does not depend on clock epochs between
the commits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate.pipelines.definition.event_columns import DROPPED
from tidegate.pipelines.epoch.closed import closed_by
from tidegate.pipelines.epoch.event_times import EventTimes
from tidegate.pipelines.epoch.file_slices import may_be_late, of_commits, rejecting
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.plan import EpochPlan, SliceCounts, SliceRows
from tidegate.pipelines.epoch.read_commits import ReadCommit, in_steps, steps_of
from tidegate.pipelines.epoch.seen_events import SeenEvents
from tidegate.pipelines.epoch.shards import cut_shards
from tidegate.pipelines.manifest import Manifest, Position
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import MIN_TIMESTAMP, Millis


def plan_commits(
    source: OpenInput,
    tables: PipelineTables,
    commits: Sequence[ReadCommit],
    head: Snapshot | None,
    now: Millis,
    shards: Callable[[], int],
) -> EpochPlan:
    """Plan an epoch of a stream.

    Args:
        source: the source as it is now.
        tables: the pipeline's tables.
        commits: the commits to read, in order; only the last may be incomplete.
        head: the snapshot to go on from.
        now: the driver's clock.
        shards: returns how many shards to cut the key groups into.
    """
    bound, pipeline = source.bound, source.bound.pipeline
    manifest = None if head is None else head.manifest
    if manifest is not None:
        for input_ in source.inputs:
            input_.position_of(manifest)
    before = MIN_TIMESTAMP if manifest is None else manifest.watermark
    times = EventTimes.of(pipeline, manifest)
    commits = in_steps(commits, times)
    files = of_commits(source.files, commits)
    measures = source.measure(files)
    seen = {
        input_.number: SeenEvents(source.engine, files, input_.input, input_.number)
        for input_ in source.inputs
        if input_.input.reads_events and any(commit.number == input_.number for commit in commits)
    }
    steps = steps_of(
        commits, times, measures.largest, lambda read: seen[read.number].of(read.step) if read.number in seen else ()
    )
    closed = MIN_TIMESTAMP if manifest is None else closed_by(tables, bound, manifest)
    late = may_be_late(measures, [before, *(step.watermark for step in steps)], bound.lateness, closed)
    positions = {
        table: position for input_ in source.inputs for table, position in _position(input_, commits, manifest).items()
    }
    return EpochPlan(
        tables=tables,
        bound=bound,
        parent=head,
        head=head,
        kind="stream",
        positions=positions,
        rows=SliceRows.of(files, files.parts if measures.usable else (), late, rejecting(files, measures)),
        counts=SliceCounts(measures.usable, measures.counts.get(DROPPED, 0), measures.rejected, measures.size),
        steps=steps,
        partitions=times.partitions,
        input_watermarks=times.watermarks,
        watermark_before=before,
        shards=cut_shards(shards(), pipeline.max_parallelism, measures.usable, head, measures.size),
        stale=() if manifest is None else manifest.stale,
        skipped=source.skipped(manifest, positions),
        started_at=now,
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

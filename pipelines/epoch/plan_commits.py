"""The plans of a stream's epochs: source commits in order, or only the clock.

Watermarks and the clock advance at the end of each commit, and the watermark before its commit decides whether a row is
late. So the result does not depend on how the commits are divided into epochs. If event time advances by itself, it
advances to the time of a commit before the lateness of the commit's rows is decided. So the result does not depend on
clock epochs between commits.

A clock epoch reads no data: time advances and due timers fire. Each run of a stream ends with one, and a continuous
stream also runs them between its data. Idle sources, processing-time timers, and generators that advance by themselves
need no new rows. The positions move past versions without data, which maintenance adds to a source without new rows,
and past ignored versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.epoch.closed import closed_by
from tidegate.pipelines.epoch.event_times import CommitStep, SeenEvents, step_of, step_until, times_of
from tidegate.pipelines.epoch.file_slices import may_be_late, rejecting
from tidegate.pipelines.epoch.job import naming
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.plan import Basis, EpochPlan, SliceRows
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.sources.commits import FilePart, SourceCommit, SourceFile
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis, millis
from tidegate.windowing.watermarks import EventTimes, SeenEvent

_MAY_WAIT: Millis = 86_400_000
"""Longest time for which a position stays before versions without data. Delta keeps log entries for at least a day."""


@dataclass(frozen=True)
class ReadCommit:
    """A source commit, or the part of it that an epoch reads.

    Args:
        commit: the commit.
        files: the files of the commit that the epoch reads.
        end: number of the commit's files that are read at the end of the epoch, including those of earlier epochs.
        complete: True if no files of the commit are left to read.
        number: number of the commit's input.
        step: number of the commit's step within the epoch.
    """

    commit: SourceCommit
    files: tuple[SourceFile, ...]
    end: int
    complete: bool
    number: int = 0
    step: int = 0

    @property
    def begins(self) -> bool:
        """True if no earlier epoch read files of the commit."""
        return self.end == len(self.files)

    @property
    def is_change(self) -> bool:
        """True if the commit changed rows, and no epoch has corrected their windows yet."""
        return self.commit.changes and self.begins


def in_steps(commits: Sequence[ReadCommit], times: EventTimes) -> tuple[ReadCommit, ...]:
    """Return commits with the numbers of their steps.

    If event time may advance by itself, a step without rows comes before the first part of each commit. So a stream
    that runs clock epochs between commits has the same result as one that reads all commits together.
    """
    numbered: list[ReadCommit] = []
    for number, read in enumerate(commits):
        before = numbered[-1].step + 1 if number else 0
        numbered.append(replace(read, step=before + (times.move_by_clock and read.begins)))
    return tuple(numbered)


def steps_of(
    commits: Sequence[ReadCommit],
    times: EventTimes,
    largest: Mapping[int, Mapping[str, Millis]],
    events: Callable[[ReadCommit], Iterable[SeenEvent]],
) -> tuple[CommitStep, ...]:
    """Advance event time over commits, and return the steps.

    `times` are modified. `events` returns the events of a commit, ordered by time, for a strategy that reads them.
    """
    steps: list[CommitStep] = []
    for read in commits:
        committed = read.commit.time
        if len(steps) < read.step:
            steps.append(step_until(times, committed))
        steps.append(step_of(times, read.number, largest.get(read.step, {}), committed, read.complete, events(read)))
    return tuple(steps)


def of_commits(files: FileSlice, commits: Sequence[ReadCommit]) -> FileSlice:
    """Return the slice of a stream's epoch."""
    return files.of(
        FilePart.of(file, read.step, read.commit.time, input=read.number, version=read.commit.version)
        for read in commits
        for file in read.files
    )


def plan_commits(basis: Basis, commits: Sequence[ReadCommit]) -> EpochPlan:
    """Plan an epoch of a stream, which reads commits in order; only the last may be incomplete."""
    source, pipeline, manifest = basis.source, basis.pipeline, basis.manifest
    if manifest is not None:
        for input_ in source.inputs:
            input_.position_of(manifest)
    before = MIN_TIMESTAMP if manifest is None else manifest.watermark
    times = times_of(pipeline, manifest)
    commits = in_steps(commits, times)
    files = of_commits(source.files, commits)
    measures = source.measure(files)
    seen = {
        input_.number: SeenEvents(source.engine, files, input_.input, input_.number)
        for input_ in source.inputs
        if input_.input.reads_events and any(commit.number == input_.number for commit in commits)
    }
    with naming(pipeline.name):
        steps = steps_of(
            commits,
            times,
            measures.largest,
            lambda read: seen[read.number].of(read.step) if read.number in seen else (),
        )
    closed = MIN_TIMESTAMP if manifest is None else closed_by(source.bound, manifest)
    late = may_be_late(measures, [before, *(step.watermark for step in steps)], source.bound.lateness, closed)
    positions = {input_.table: _position(input_, commits, manifest) for input_ in source.inputs}
    rows = SliceRows.of(files, files.parts if measures.usable else (), late, rejecting(files, measures))
    return basis.plan("stream", positions, steps, times, rows, measures.slice_counts)


def _position(source: OpenInput, commits: Sequence[ReadCommit], manifest: Manifest | None) -> Position:
    reads = [read for read in commits if read.number == source.number]
    if not reads:
        return source.position(-1) if manifest is None else source.passed(manifest.position_in(source.table))
    version = reads[-1].commit.version
    if not reads[-1].complete:
        return source.position(version - 1, files=reads[-1].end)
    return source.position(source.passed_version(version))


def plan_clock(basis: Basis) -> EpochPlan | None:
    """Plan an epoch in which only the clock advances. Return None if nothing is due and no position needs to move.

    The source must be read completely, because unread rows must not look like a time without data.
    """
    source, pipeline, manifest = basis.source, basis.pipeline, basis.of_head
    for input_ in source.inputs:
        input_.position_of(manifest)
    clock = max(basis.now, manifest.processing_time)
    times = times_of(pipeline, manifest)
    with naming(pipeline.name):
        step = step_until(times, clock)
    positions = {input_.table: input_.passed(manifest.position_in(input_.table)) for input_ in source.inputs}
    recorded = clock - manifest.processing_time < millis(pipeline.checkpoint_interval, "checkpoint_interval")
    must_pass = _must_pass(source, manifest, positions, clock) or source.skipped(manifest, positions) > 0
    if recorded and not _is_due(manifest, step.watermark, clock) and not must_pass:
        return None
    return basis.plan("clock", positions, (step,), times)


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
                f"{manifest.epoch} read only in part",
                Remedy(Act.READ_ON, manifest.pipeline),
            )
    times, clock = times_of(basis.pipeline, manifest), max(basis.now, manifest.processing_time)
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

"""The plan of a stream's epoch: source commits in order.

Watermarks and the clock advance at the end of each commit, and the watermark before its commit decides whether a row is
late. So the result does not depend on how the commits are divided into epochs. If event time advances by itself, it
advances to the time of a commit before the lateness of the commit's rows is decided. So the result does not depend on
clock epochs between commits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.epoch.closed import closed_by
from tidegate.pipelines.epoch.event_times import CommitStep, EventTimes, SeenEvents
from tidegate.pipelines.epoch.file_slices import may_be_late, rejecting
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.plan import Basis, EpochPlan, SliceRows
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.sources.commits import FilePart, SourceCommit, SourceFile
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.watermarks import SeenEvent


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
            steps.append(times.until(committed))
        steps.append(times.step(read.number, largest.get(read.step, {}), committed, read.complete, events(read)))
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
    closed = MIN_TIMESTAMP if manifest is None else closed_by(basis.tables, source.bound, manifest)
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

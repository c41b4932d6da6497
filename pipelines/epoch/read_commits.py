"""The source commits that a stream's epoch reads, and the steps of time that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.pipelines.epoch.event_times import EventTimes
from tidegate.pipelines.epoch.steps import CommitStep
from tidegate.pipelines.sources.commits import SourceCommit, SourceFile
from tidegate.windowing.time import Millis
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
    that ran clock epochs between the commits has the same result as a stream that read all commits together.
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

    Args:
        commits: commits in order, with the numbers of their steps.
        times: event times before the commits; the call advances them.
        largest: event time of the latest usable row, by step and source partition.
        events: returns the events of a commit, ordered by time, for a strategy that reads them.
    """
    steps: list[CommitStep] = []
    for read in commits:
        committed = read.commit.time
        if len(steps) < read.step:
            steps.append(times.until(committed))
        steps.append(times.step(read.number, largest.get(read.step, {}), committed, read.complete, events(read)))
    return tuple(steps)

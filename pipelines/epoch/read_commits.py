"""The source commits that a stream's epoch reads, and the steps in which time moves over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tidegate.pipelines.epoch.event_times import EventTimes
from tidegate.pipelines.epoch.steps import CommitStep
from tidegate.pipelines.sources.log import SourceCommit, SourceFile
from tidegate.windowing.time import Millis
from tidegate.windowing.watermarks import SeenEvent


@dataclass(frozen=True)
class ReadCommit:
    """A source commit, or the part of it that an epoch reads.

    Args:
        commit: the commit.
        files: those of its files that are read.
        end: how many of its files are read after them, those of earlier epochs included.
        complete: whether nothing of it is left to read after them.
        number: of the input whose commit it is.
        step: number of its step within the epoch.
    """

    commit: SourceCommit
    files: tuple[SourceFile, ...]
    end: int
    complete: bool
    number: int = 0
    step: int = 0

    @property
    def begins(self) -> bool:
        """Whether nothing of it was read before."""
        return self.end == len(self.files)


def in_steps(commits: Sequence[ReadCommit], times: EventTimes) -> tuple[ReadCommit, ...]:
    """Commits with the numbers of their steps.

    Where event time may go on by itself, a step in which it does comes before each commit: what a stream found that
    looked in between is so found by all.
    """
    found: list[ReadCommit] = []
    for number, read in enumerate(commits):
        before = found[-1].step + 1 if number else 0
        found.append(replace(read, step=before + (times.move_by_clock and read.begins)))
    return tuple(found)


def steps_of(
    commits: Sequence[ReadCommit],
    times: EventTimes,
    largest: Mapping[int, Mapping[str, Millis]],
    events: Callable[[ReadCommit], Iterable[SeenEvent]],
) -> tuple[CommitStep, ...]:
    """Move event time over commits, and tell the steps.

    Args:
        commits: in order, with their steps.
        times: before them; moved to their end.
        largest: event time of the latest usable row, by step and source partition.
        events: of a commit by time, for a strategy that reads them.
    """
    steps: list[CommitStep] = []
    for read in commits:
        committed = read.commit.time
        if len(steps) < read.step:
            steps.append(times.until(committed))
        steps.append(times.step(read.number, largest.get(read.step, {}), committed, read.complete, events(read)))
    return tuple(steps)

"""The commits that a stream's next epoch reads: the first unread ones, up to the limits.

An epoch ends inside a commit only if the order of the commit's rows does not matter (docs/decisions/sessions.md). The
commits of two inputs are read whole, in the order of their times. The limits don't change results.

    unread files (commit: files)   limit      epochs
    1: a b   2: c d                3 files    a b c | d         windows that may split a commit
    1: a b   2: c d                3 files    a b | c d         sessions
    1: a b c                       2 files    a b c             sessions: the first commit is always read
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.plan_commits import ReadCommit
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.sources.base import ReplacedSource, Source
from tidegate.pipelines.sources.commits import SourceFile, in_order

UNREAD = Position(version=-1)
"""Position of an unread source."""

Ends: TypeAlias = Sequence[Position]
"""Position in each input's source at which a run ends: the head when the run began."""


def next_commits(
    source: OpenInput, positions: Sequence[Position], limits: EpochLimits, ends: Ends | None = None
) -> list[ReadCommit]:
    """Return the commits that the next epoch reads, in order, or none if everything has been read.

    A commit that changed rows is returned alone. After its correction, it is returned once more, without files, to move
    the watermark.

    Args:
        source: the source as it is now.
        positions: the position in each input.
        limits: the limits of an epoch.
        ends: positions of the heads at the start of a run, which reads nothing after them.

    Raises:
        Refused: an unread version removed or changed data, or its log entry or one of its files no longer exists.
    """
    unread = [input_.log.unread(position.version) for input_, position in zip(source.inputs, positions, strict=True)]
    until = [input_.log.head for input_ in source.inputs]
    if ends is not None:
        until = [_until(input_.log, end) for input_, end in zip(source.inputs, ends, strict=True)]
    whole = source.right is not None or not source.bound.may_split_commits
    budget, taken = _Budget(limits), list[ReadCommit]()
    for number, commit in in_order(unread):
        # A later commit of the other input waits too, so that the order is the same as in a run without an end.
        if commit.version > until[number]:
            break
        begin = positions[number].files if commit.version == positions[number].version + 1 else 0
        if commit.changes:
            if begin:
                taken.append(ReadCommit(commit, (), len(commit.files), True, number))
                continue
            return taken or [ReadCommit(commit, commit.files, len(commit.files), True, number)]
        end = begin + budget.take(commit.files[begin:], whole)
        complete = end == len(commit.files)
        if end > begin:
            taken.append(ReadCommit(commit, commit.files[begin:end], end, complete, number))
        if not complete:
            break
    return taken


def _until(log: Source, end: Position) -> int:
    """Return the version at which a run ends; -1 leaves a source that was replaced since then to the next run."""
    try:
        log.check(end)
    except ReplacedSource:
        return -1
    except Refused:
        # A table that was restored to an older version has no commits up to the end; the next run checks this.
        return log.head
    return end.version


@dataclass
class _Budget:
    """The files, bytes, commits and rows taken for an epoch, and its limits."""

    limits: EpochLimits
    files: int = 0
    bytes: int = 0
    commits: int = 0
    rows: int = 0

    def take(self, files: Sequence[SourceFile], whole: bool) -> int:
        """Take the first files of the next commit, and return their number.

        Args:
            files: the unread files of the commit.
            whole: True takes all of them or none.
        """
        fitting, count, size, rows = 0, self.files, self.bytes, self.rows
        for file in files:
            count, size, rows = count + 1, size + (file.size or 0), rows + (file.rows or 0)
            if not self._has_room_for(count, size, rows):
                break
            fitting += 1
        if whole and fitting < len(files):
            fitting = 0
        if not fitting and not self.commits:
            fitting = len(files) if whole else 1
        self.files += fitting
        self.bytes += sum(file.size or 0 for file in files[:fitting])
        self.rows += sum(file.rows or 0 for file in files[:fitting])
        self.commits += fitting > 0
        return fitting

    def _has_room_for(self, files: int, size: int, rows: int) -> bool:
        limits = self.limits
        return (
            (limits.files is None or files <= limits.files)
            and (limits.bytes is None or size <= limits.bytes)
            and (limits.rows is None or rows <= limits.rows)
            and (limits.commits is None or self.commits < limits.commits)
        )

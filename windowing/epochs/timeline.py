"""Time in an epoch: how watermark and clock move from commit to commit, asked for many elements and timers at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tidegate.windowing.aggregates.vectorised import Bools, Int64s
from tidegate.windowing.time import MAX_TIMESTAMP, Millis


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The watermarks of an epoch, commit by commit, or following the elements in event order; and its clocks.

    Args:
        before: watermark that the elements of each commit are judged against; int64, never falling.
        complete: whether each commit ends within the epoch. Rows that follow one that does not are of it too.
        final: the watermark after the epoch.
        clocks: processing time before the elements of each commit, int64 epoch milliseconds.
        clock: processing time before the epoch.
        lag: None where the watermark moves at the end of commits. Else it follows the elements of the
            one commit: before one at t it moves to `t - lag`, and what is due fires at its own time.
    """

    before: Int64s
    complete: Bools
    final: Millis
    clocks: Int64s
    clock: Millis = 0
    lag: Millis | None = None

    @classmethod
    def of_commits(
        cls,
        watermark: Millis,
        commits: Sequence[tuple[Millis, bool]],
        *,
        clocks: Sequence[Millis] | None = None,
        clock: Millis = 0,
    ) -> Timeline:
        """Return the timeline of commits in order.

        Args:
            watermark: before the epoch.
            commits: the watermark after each, and whether it is complete.
            clocks: processing time before each; None where the clock does not move.
            clock: processing time before the epoch.
        """
        reached = [watermark]
        for after, complete in commits:
            reached.append(max(reached[-1], after) if complete else reached[-1])
        return cls(
            before=np.array(reached[:-1], np.int64),
            complete=np.array([complete for _, complete in commits], np.bool_),
            final=reached[-1],
            clocks=np.array([clock] * len(commits) if clocks is None else clocks, np.int64),
            clock=clock,
        )

    @classmethod
    def in_event_order(
        cls, watermark: Millis, after: Millis, lag: Millis, *, now: Millis | None = None, clock: Millis = 0
    ) -> Timeline:
        """Return the timeline of one commit whose elements move the watermark.

        Args:
            watermark: before the epoch.
            after: the watermark after it, at least `newest - lag`.
            lag: see `Timeline`.
            now: processing time before the elements; None where the clock does not move.
            clock: processing time before the epoch.
        """
        return cls(
            before=np.array([watermark], np.int64),
            complete=np.ones(1, np.bool_),
            final=max(watermark, after),
            clocks=np.array([clock if now is None else now], np.int64),
            clock=clock,
            lag=lag,
        )

    def part(self, watermark: Millis, first: int, last: int, ended: bool) -> Timeline:
        """Return the timeline of some commits of this one.

        Args:
            watermark: before them.
            first: the first commit.
            last: the last commit, included.
            ended: whether that one ends within the part.
        """
        complete = [bool(flag) for flag in self.complete[first : last + 1]]
        complete[-1] = ended
        return Timeline.of_commits(
            watermark,
            list(zip(self.moves[first : last + 1].tolist(), complete, strict=True)),
            clocks=self.clocks[first : last + 1].tolist(),
            clock=self.clock if first == 0 else int(self.clocks[first - 1]),
        )

    @property
    def initial(self) -> Millis:
        """The watermark before the epoch."""
        return int(self.before[0]) if len(self.before) else self.final

    def seen_by(self, timestamps: Int64s, commits: Int64s) -> Int64s:
        """The watermark that each element is judged against."""
        if self.lag is not None:
            return np.maximum(timestamps - self.lag, self.initial)
        if len(self.before) == 1:
            return np.full(len(timestamps), self.before[0])
        return self.before[commits]

    def commits_of(self, timestamps: Int64s, commits: Int64s) -> Int64s:
        """The commit that each element counts to.

        In event order a commit ends when the watermark first moves: those that don't move it are in the
        first, and all others, which can't be late, in a second.
        """
        if self.lag is None:
            return commits
        return (timestamps - self.lag > self.initial).astype(np.int64)

    def reaches(self, times: Int64s) -> Bools:
        """Tell of each time whether a timer of it, set before, has fired by the end; the end of time never comes."""
        return (times <= self.final) & (times < MAX_TIMESTAMP)

    def firings(self, times: Int64s) -> Int64s:
        """The watermark at which a timer of each time fires; only for times that are reached."""
        if self.lag is not None:
            return times
        return self.moves[self.moves_at(times)]

    @property
    def moves(self) -> Int64s:
        """The watermark after each commit."""
        return np.append(self.before[1:], self.final)

    @property
    def moved(self) -> int:
        """The number of commits that are complete, and moved the watermark at their end."""
        return int(np.count_nonzero(self.complete))

    def moves_at(self, times: Int64s) -> Int64s:
        """The commit at whose end a timer of each time fires; only for times that are reached."""
        return np.searchsorted(self.moves, times)

"""Time in an epoch: how watermark and clock advance from commit to commit, for many elements and timers at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from tidegate.windowing.aggregates.vectorised import Bools, Int64s
from tidegate.windowing.time import MAX_TIMESTAMP, Millis


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The watermarks and clocks of an epoch. The watermark advances commit by commit, or follows the elements.

    Args:
        before: watermark before the elements of each commit, which decides whether they are late; int64, never
            decreases.
        complete: true for each commit that ends within the epoch. Elements that follow an incomplete commit belong to
            it too.
        final: the watermark after the epoch.
        clocks: processing time before the elements of each commit, int64 epoch milliseconds.
        clock: processing time before the epoch.
        lag: None if the watermark advances at the end of commits. Otherwise the epoch has a single commit and the
            watermark follows its elements: before an element at t it advances to `t - lag`, but not beyond `final`, and
            each timer fires at its own time.
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
            watermark: watermark before the epoch.
            commits: the watermark after each commit, and True if the commit is complete.
            clocks: processing time before each commit; None if the clock stands still.
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
        """Return the timeline of a single commit whose elements advance the watermark.

        Args:
            watermark: watermark before the epoch.
            after: watermark after the epoch. Elements may be later if open windows are recomputed.
            lag: see `Timeline`.
            now: processing time before the elements; None if the clock stands still.
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
        """Return the timeline of a range of commits.

        Both bounds are included. If `ended`, the last commit ends within the part.
        """
        complete = [bool(flag) for flag in self.complete[first : last + 1]]
        complete[-1] = ended
        return Timeline.of_commits(
            watermark,
            list(zip(self.moves[first : last + 1].tolist(), complete, strict=True)),
            clocks=self.clocks[first : last + 1].tolist(),
            clock=self.clock if first == 0 else int(self.clocks[first - 1]),
        )

    def held(self) -> Timeline:
        """Return the timeline of the first elements of an epoch in event order, when the others have yet to come.

        The watermark does not advance, and timers of the end of the commit don't fire: no element is late because of
        the watermark that another element of the epoch reaches.
        """
        return replace(self, complete=np.zeros(1, np.bool_), final=self.initial)

    @property
    def initial(self) -> Millis:
        """Watermark before the epoch."""
        return int(self.before[0]) if len(self.before) else self.final

    def following(self, timestamp: Millis) -> Millis:
        """Return the watermark to which an element advances event time, in event order."""
        assert self.lag is not None
        return min(timestamp - self.lag, self.final)

    def seen_by(self, timestamps: Int64s, commits: Int64s) -> Int64s:
        """Return the watermark before each element, which decides whether the element is late."""
        if self.lag is not None:
            return np.maximum(timestamps - self.lag, self.initial)
        if len(self.before) == 1:
            return np.full(len(timestamps), self.before[0])
        return self.before[commits]

    def commits_of(self, timestamps: Int64s, commits: Int64s) -> Int64s:
        """Return the commit that each element belongs to.

        In event order the first commit ends when the watermark first advances. It has the elements that don't advance
        the watermark; the second commit has all others, which can't be late.
        """
        if self.lag is None:
            return commits
        return (timestamps - self.lag > self.initial).astype(np.int64)

    def reaches(self, times: Int64s) -> Bools:
        """Return a flag for each time: whether a timer for it fires by the end of the epoch (not the end of time)."""
        return (times <= self.final) & (times < MAX_TIMESTAMP)

    def firings(self, times: Int64s) -> Int64s:
        """Return, for each timer's time, the watermark at which the timer fires. The epoch must reach every time."""
        if self.lag is not None:
            return times
        return self.moves[self.moves_at(times)]

    @property
    def moves(self) -> Int64s:
        """Watermark after each commit."""
        return np.append(self.before[1:], self.final)

    @property
    def moved(self) -> int:
        """Number of complete commits, each of which advanced the watermark at its end."""
        return int(np.count_nonzero(self.complete))

    def moves_at(self, times: Int64s) -> Int64s:
        """Return, for each timer's time, the commit at whose end the timer fires. The epoch must reach every time."""
        return np.searchsorted(self.moves, times)

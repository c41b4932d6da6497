"""The windows of rows, in the order in which the rows arrived: which rows are late, and which windows fire too soon."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt

from tidegate.pipelines.ask.arrivals import Arrived, Int64s, Watermarks
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.columnar.order import begins, numbers_of, running_max, sort_groups, sort_order
from tidegate.windowing.lateness import are_late, cleanup_times, is_late
from tidegate.windowing.time import Millis

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Grouped:
    """Rows with their windows.

    Args:
        commits: commit of each row.
        partitions: source partition of each row.
        lasts: last millisecond of the last window of each row.
        ends: end of each window.
        first: commit that opened each window, unless it was late.
        last: last commit with a row of the window.
        clusters: the sessions; None if windows don't merge.
    """

    commits: Int64s
    partitions: Int64s
    lasts: Int64s
    ends: Int64s
    first: Int64s
    last: Int64s
    clusters: RowClusters | None = None

    def late(self, lateness: Millis | None, times: Watermarks) -> tuple[Bools, int]:
        """Return a flag for each row (whether it is late), and the number of windows that are wrong at first."""
        if lateness is None:
            return np.zeros(len(self.commits), np.bool_), 0
        late = are_late(self.lasts, lateness, times.before[self.commits])
        if self.clusters is not None:
            return self.clusters.late(late, lateness, times)
        return late, int(np.count_nonzero(times.before[self.last] >= self.ends - 1))

    def opened_and_closed(self, lateness: Millis | None, times: Watermarks) -> Int64s:
        """Return, for each commit, how many windows are open after it that were not before, less those that closed."""
        cleanups = cleanup_times(self.ends - 1, lateness or 0)
        opened = cleanups > times.before[self.first]
        commits = len(times.before)
        closed = np.maximum(np.searchsorted(times.after, cleanups[opened]), self.first[opened])
        # A window that no commit closes has no entry.
        changes = np.bincount(self.first[opened], minlength=commits) - np.bincount(closed, minlength=commits)[:commits]
        return changes.astype(np.int64)


@dataclass(frozen=True)
class RowClusters:
    """The sessions that all rows form: rows in the order of key and time, and the bounds of each session.

    Args:
        times: event time of each row.
        ends: end of the session that the row would open.
        commits: commit of each row.
        starts: number of the first row of each session, followed by the number of rows.
        first, last: first and last commit of each session.
        soonest: smallest of `ends` in each session, before which no part of it can fire.
        one_gap: True if all rows have the same gap.
    """

    times: Int64s
    ends: Int64s
    commits: Int64s
    starts: Int64s
    first: Int64s
    last: Int64s
    soonest: Int64s
    one_gap: bool

    def late(self, alone: Bools, lateness: Millis, times: Watermarks) -> tuple[Bools, int]:
        """Return a flag for each row (whether it is late), and the number of wrong sessions.

        Args:
            alone: flags of the rows that are late unless they touch an open session.
            lateness: allowed lateness, milliseconds.
            times: watermarks of the commits.
        """
        late, before = np.zeros(len(alone), np.bool_), times.before
        # No part of a session can fire before the earliest end of its rows.
        doubtful = np.flatnonzero(before[self.last] >= self.soonest - 1)
        wrong = self._wrong(doubtful, times) if self.one_gap else 0
        with_late = np.unique(np.searchsorted(self.starts, np.flatnonzero(alone), side="right") - 1)
        # Rows of a commit are added in order of time, so the late ones come first and touch nothing.
        at_once = (self.first == self.last)[with_late] & self.one_gap
        of_rows, _ = self._rows_of(with_late[at_once])
        late[of_rows] = alone[of_rows]
        for rows, parts in self._each(with_late[~at_once] if self.one_gap else doubtful, before):
            wrong += self._live(rows, parts, lateness, late)
        return late, wrong

    def _each(self, sessions: Int64s, before: Int64s) -> Iterator[tuple[list[int], list[tuple[Millis, ...]]]]:
        """Yield, for each session, its rows commit by commit: their numbers; their times, ends and watermarks."""
        rows, numbers = self._rows_of(sessions)
        rows = rows[np.lexsort((self.ends[rows], self.times[rows], self.commits[rows], numbers))]
        watermarks = before[self.commits[rows]]
        parts = zip(self.times[rows].tolist(), self.ends[rows].tolist(), watermarks.tolist(), strict=True)
        of_rows = iter(rows.tolist())
        for size in (self.starts[sessions + 1] - self.starts[sessions]).tolist():
            yield list(islice(of_rows, size)), list(islice(parts, size))

    def _rows_of(self, sessions: Int64s) -> tuple[Int64s, Int64s]:
        """Return the numbers of the rows of some sessions in ascending order, and the index of each row's session."""
        return numbers_of(self.starts[sessions], self.starts[sessions + 1] - self.starts[sessions])

    def _wrong(self, sessions: Int64s, times: Watermarks) -> int:
        """Return how many of some sessions fire before all their rows have arrived. All rows have the same gap.

        A part of a session that ends with a row fires once the watermark has passed the row's end, unless one of the
        next rows within the gap has arrived by then.
        """
        rows, numbers = self._rows_of(sessions)
        ends, commits = self.ends[rows], self.commits[rows]
        fires = np.maximum(commits, np.searchsorted(times.after, ends - 1))
        lasts = self.starts[sessions + 1] - 1
        of_last = np.searchsorted(rows, lasts)
        wrong = (self.last[sessions] > fires[of_last]) | (times.before[self.last[sessions]] >= ends[of_last] - 1)
        # The session may end too soon after these rows: all of the next rows come in later commits.
        open_rows, distance = np.flatnonzero(rows < lasts[numbers]), 0
        while len(open_rows):
            distance += 1
            follower = open_rows + distance
            inside = follower < len(rows)
            inside[inside] = numbers[follower[inside]] == numbers[open_rows[inside]]
            inside[inside] = self.times[rows[follower[inside]]] <= ends[open_rows[inside]]
            wrong[numbers[open_rows[~inside]]] = True
            open_rows, follower = open_rows[inside], follower[inside]
            open_rows = open_rows[commits[follower] > fires[open_rows]]
        return int(np.count_nonzero(wrong))

    def _live(self, rows: Sequence[int], parts: Sequence[tuple[Millis, ...]], lateness: Millis, late: Bools) -> bool:
        """Add the rows of a session, in the form of `_each`, and flag the late ones.

        Return True if the gaps of rows differ and the session was wrong.
        """
        sessions: list[tuple[Millis, Millis]] = []
        fired = False
        for row, (start, end, watermark) in zip(rows, parts, strict=True):
            fired = fired or any(last - 1 <= watermark for _, last in sessions)
            sessions = [session for session in sessions if session[1] - 1 + lateness > watermark]
            met = [session for session in sessions if session[0] <= end and start <= session[1]]
            if not met and is_late(end - 1, lateness, watermark):
                late[row] = fired = True
                continue
            cover = min([start, *(first for first, _ in met)]), max([end, *(last for _, last in met)])
            fired = fired or cover[1] - 1 <= watermark
            sessions = [session for session in sessions if session not in met] + [cover]
        return fired and not self.one_gap


def aligned(arrived: Arrived, codes: Int64s, assigner: WindowAssigner) -> Grouped:
    """Return rows with their windows, which don't merge. `codes` distinguishes the keys."""
    assign = assigner.array_assignment
    assert assign is not None
    assigned = assign(arrived.times)
    # A row without a window is late by its own time. The last window of a row is the first one listed.
    lasts, listed = arrived.times.copy(), begins(assigned.rows)
    lasts[assigned.rows[listed]] = assigned.ends[listed] - 1
    order, first = sort_groups(codes[assigned.rows], assigned.starts)
    bounds = np.flatnonzero(first)
    commits = arrived.commits[assigned.rows[order]]
    opened, closed = _extremes(commits, bounds)
    return Grouped(arrived.commits, arrived.partitions, lasts, assigned.ends[order[bounds]], opened, closed)


@dataclass(frozen=True)
class Ordered:
    """Rows in the order of key, time and commit, which is the same for every gap.

    Args:
        codes: key of each row, as a number.
        times: event time of each row.
        commits: commit of each row.
        partitions: source partition of each row.
        gaps: gap of each row, if a column has it, milliseconds.
    """

    codes: Int64s
    times: Int64s
    commits: Int64s
    partitions: Int64s
    gaps: Int64s

    @classmethod
    def of(cls, arrived: Arrived, codes: Int64s) -> Ordered:
        """Sort rows. `codes` distinguishes the keys."""
        order = sort_order(codes, arrived.times, arrived.commits)
        gaps = arrived.gaps[order] if len(arrived.gaps) else arrived.gaps
        times, commits, partitions = arrived.times[order], arrived.commits[order], arrived.partitions[order]
        return cls(codes[order], times, commits, partitions, gaps)


def sessions(rows: Ordered, gap: Millis | None) -> Grouped:
    """Return rows with their sessions. `gap` is the gap of all rows in milliseconds, or None if a column has it."""
    codes, times, commits = rows.codes, rows.times, rows.commits
    one_gap = gap is not None
    ends = times + (rows.gaps if gap is None else gap)
    reach = ends if one_gap else running_max(ends, codes)
    first = begins(codes)
    first[1:] |= times[1:] > reach[:-1]
    bounds = np.flatnonzero(first)
    starts = np.append(bounds, len(times))
    (opened, closed), (soonest, whole) = _extremes(commits, bounds), _extremes(ends, bounds)
    clusters = RowClusters(times, ends, commits, starts, opened, closed, soonest, one_gap)
    return Grouped(commits, rows.partitions, ends - 1, whole, opened, closed, clusters)


def _extremes(values: Int64s, bounds: Int64s) -> tuple[Int64s, Int64s]:
    """Return the smallest and the largest value of each group; `bounds` has the number of each group's first row."""
    if not len(bounds):
        return bounds, bounds
    return np.minimum.reduceat(values, bounds), np.maximum.reduceat(values, bounds)

"""Clusters: elements and windows in flight of one key that touch each other, directly or through others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tidegate.windowing.aggregates.vectorised import Bools, Groups, Int64s
from tidegate.windowing.columnar.order import begins, rearranged, running_max, shifted, sort_order
from tidegate.windowing.columnar.state import InFlight
from tidegate.windowing.epochs.arrays import ParallelArrays
from tidegate.windowing.time import MIN_TIMESTAMP

IN_FLIGHT = -1
"""The commit number of a window that was in flight before the epoch."""


@dataclass(frozen=True, kw_only=True)
class Clusters(ParallelArrays):
    """Windows of elements and windows in flight, sorted by key, start and commit, in clusters of those that touch.

    `rows` is the index of the element, or the index among the windows in flight; those have the commit `IN_FLIGHT` and
    the watermark 0. `reach` is the largest end of this member and of those before it in the cluster. `first` flags the
    first member of each cluster.
    """

    codes: Int64s
    starts: Int64s
    ends: Int64s
    rows: Int64s
    commits: Int64s
    watermarks: Int64s
    reach: Int64s
    first: Bools

    @cached_property
    def of(self) -> Groups:
        """Group the members by cluster."""
        return Groups.of_firsts(self.first)

    @cached_property
    def in_flight(self) -> Bools:
        """Return a flag for each member: whether it is a window in flight rather than an element."""
        return np.asarray(self.commits == IN_FLIGHT)

    def select(self, clusters: Bools) -> Clusters:
        """Return the members of the clusters whose flag is set."""
        if clusters.all():
            return self
        return self.take(np.flatnonzero(clusters[self.of.ids]))

    def without(self, members: Bools) -> Clusters:
        """Return the members that are not excluded. Excluded members come first in their clusters.

        Clusters that become empty are removed.
        """
        if not members.any():
            return self
        kept = np.flatnonzero(~members)
        return replace(self.take(kept), first=begins(self.of.ids[kept]))

    def growths(self, gaps_vary: bool) -> Bools:
        """Return a flag for each member: whether it is an element that opens a session, extends it, or joins several.

        Elements are processed by commit and then by time. All other elements are inside an existing session. If gaps
        vary, the window of a later element may end before that of an earlier one.
        """
        inside = shifted(self.reach, self.of.starts, MIN_TIMESTAMP) >= self.ends
        mixed = None if _same(self.commits) else self.of.min(self.commits) < self.of.max(self.commits)
        if mixed is not None and mixed.any():
            mixed_clusters = self.select(mixed)
            inside[mixed[self.of.ids]] = (
                mixed_clusters._inside_by_member() if gaps_vary else mixed_clusters._inside_by_commit()
            )
        return ~self.in_flight & ~inside

    def _inside_by_commit(self) -> Bools:
        inside = np.zeros(len(self.codes), np.bool_)
        lowest = int(self.starts.min()) - 1
        for commit in np.unique(self.commits[~self.in_flight]).tolist():
            ends_so_far = np.where(self.commits <= commit, self.ends, lowest)
            reach = shifted(running_max(ends_so_far, self.of.ids), self.of.starts, lowest)
            # Start of the next session to the right that an earlier commit opened. The session on the left may have
            # merged with it.
            later = np.where(self.commits < commit, -self.starts, np.iinfo(np.int64).min // 2)
            following = self._next_start(later)
            in_commit = self.commits == commit
            inside[in_commit] = ((reach >= self.ends) | (following <= reach))[in_commit]
        return inside

    def _inside_by_member(self) -> Bools:
        inside = np.zeros(len(self.codes), np.bool_)
        order = np.lexsort((self.starts, self.commits, self.of.ids))
        starts, ends = self.starts.tolist(), self.ends.tolist()
        clusters, commits = self.of.ids.tolist(), self.commits.tolist()
        current, sessions = -1, list[tuple[int, int]]()
        for member in order.tolist():
            if clusters[member] != current:
                current, sessions = clusters[member], []
            start, end = starts[member], ends[member]
            met = [session for session in sessions if session[0] <= end and start <= session[1]]
            cover = min([start, *(s for s, _ in met)]), max([end, *(e for _, e in met)])
            inside[member] = commits[member] != IN_FLIGHT and met == [cover]
            if not inside[member]:
                sessions = [session for session in sessions if session not in met] + [cover]
        return inside

    def _next_start(self, negated: Int64s) -> Int64s:
        """Return the smallest start after each member within its cluster."""
        lowest = int(negated.min())
        backwards = running_max(negated[::-1], len(self.of) - 1 - self.of.ids[::-1])[::-1]
        after = np.full(len(negated), lowest)
        after[:-1] = backwards[1:]
        after[self.of.lasts] = lowest
        return -after


def cluster(
    codes: Int64s,
    starts: Int64s,
    lengths: Int64s,
    commits: Int64s,
    watermarks: Int64s,
    in_flight: InFlight,
    near: Int64s,
) -> Clusters:
    """Put elements and the windows in flight at `near` into clusters.

    `lengths` are the lengths in milliseconds of the windows that elements open. The watermarks decide whether an
    element is late.
    """
    if len(near):
        rows = np.concatenate([np.arange(len(codes)), near])
        codes = np.concatenate([codes, in_flight.codes[near]])
        starts = np.concatenate([starts, in_flight.starts[near]])
        lengths = np.concatenate([lengths, in_flight.ends[near] - in_flight.starts[near]])
        commits = np.concatenate([commits, np.full(len(near), IN_FLIGHT)])
        watermarks = np.concatenate([watermarks, np.zeros(len(near), np.int64)])
        order = sort_order(codes, starts, commits)
        rows = rows[order]
    else:
        order = rows = sort_order(codes, starts, commits)
    codes, starts, lengths, commits, watermarks = (
        rearranged(part, order) for part in (codes, starts, lengths, commits, watermarks)
    )
    ends = starts + lengths
    first = begins(codes)
    # Windows of equal length end in the order in which they start.
    reach = ends if _same(lengths) else running_max(ends, codes)
    first[1:] |= starts[1:] > reach[:-1]
    return Clusters(
        codes=codes,
        starts=starts,
        ends=ends,
        rows=rows,
        commits=commits,
        watermarks=watermarks,
        reach=reach,
        first=first,
    )


def _same(values: Int64s) -> bool:
    return len(values) > 0 and bool(values.min() == values.max())

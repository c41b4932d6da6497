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
"""The commit of a window that was there before the epoch."""


@dataclass(frozen=True, kw_only=True)
class Clusters(ParallelArrays):
    """Windows of elements and windows in flight, sorted by key, start and commit, in clusters.

    Args:
        codes: the key of each member, as a code.
        starts: int64 epoch milliseconds.
        ends: not included; windows that touch are in one cluster.
        rows: the element, or the place of the window among those in flight.
        commits: of the element, or `IN_FLIGHT`.
        watermarks: that the element is judged against.
        reach: the largest end so far within the cluster.
        first: whether a member is the first of its cluster.
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
        """The members of each cluster."""
        return Groups.of_firsts(self.first)

    @property
    def in_flight(self) -> Bools:
        """Which members are windows in flight."""
        return np.asarray(self.commits == IN_FLIGHT)

    def some(self, clusters: Bools) -> Clusters:
        """Only some of the clusters."""
        if clusters.all():
            return self
        return self.take(np.flatnonzero(clusters[self.of.ids]))

    def without(self, members: Bools) -> Clusters:
        """Without some members, the first of their clusters; clusters that lose all of theirs go too."""
        if not members.any():
            return self
        kept = np.flatnonzero(~members)
        return replace(self.take(kept), first=begins(self.of.ids[kept]))

    def growths(self, gaps_vary: bool) -> Bools:
        """Which elements open a session, extend one or join several, when they come in their order.

        Elements come by commit and then by time; any other lies inside a session that is there already.

        Args:
            gaps_vary: whether a later element may end before an earlier one.
        """
        inside = shifted(self.reach, self.of.starts, MIN_TIMESTAMP) >= self.ends
        mixed = self.of.min(self.commits) < self.of.max(self.commits)
        if mixed.any():
            some = self.some(mixed)
            inside[mixed[self.of.ids]] = some._inside_by_member() if gaps_vary else some._inside_by_commit()
        return ~self.in_flight & ~inside

    def _inside_by_commit(self) -> Bools:
        inside = np.zeros(len(self.codes), np.bool_)
        lowest = int(self.starts.min()) - 1
        for commit in np.unique(self.commits[~self.in_flight]).tolist():
            there = np.where(self.commits <= commit, self.ends, lowest)
            reach = shifted(running_max(there, self.of.ids), self.of.starts, lowest)
            # A session that an earlier commit made to the right, if the one to the left has joined it.
            later = np.where(self.commits < commit, -self.starts, np.iinfo(np.int64).min // 2)
            following = self._next_start(later)
            own = self.commits == commit
            inside[own] = ((reach >= self.ends) | (following <= reach))[own]
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
        """The smallest start after each member within its cluster, given starts with their sign turned."""
        lowest = int(negated.min())
        backwards = running_max(negated[::-1], len(self.of) - 1 - self.of.ids[::-1])[::-1]
        after = np.full(len(negated), lowest)
        after[:-1] = backwards[1:]
        after[self.of.lasts] = lowest
        return -after


def cluster(
    codes: Int64s,
    starts: Int64s,
    ends: Int64s,
    commits: Int64s,
    watermarks: Int64s,
    in_flight: InFlight,
    near: Int64s,
) -> Clusters:
    """Put elements and the windows in flight at `near` into clusters.

    Args:
        codes: the key of each element, as a code.
        starts: of the window that each element opens.
        ends: of that window.
        commits: of each element.
        watermarks: that each element is judged against.
        in_flight: windows of the state.
        near: the windows whose key has elements.
    """
    if len(near):
        rows = np.concatenate([np.arange(len(codes)), near])
        codes = np.concatenate([codes, in_flight.codes[near]])
        starts, ends = np.concatenate([starts, in_flight.starts[near]]), np.concatenate([ends, in_flight.ends[near]])
        commits = np.concatenate([commits, np.full(len(near), IN_FLIGHT)])
        watermarks = np.concatenate([watermarks, np.zeros(len(near), np.int64)])
        order = sort_order(codes, starts, commits)
        rows = rows[order]
    else:
        order = rows = sort_order(codes, starts, commits)
    lengths = rearranged(ends - starts, order)
    codes, starts, commits, watermarks = (rearranged(part, order) for part in (codes, starts, commits, watermarks))
    ends = starts + lengths
    first = begins(codes)
    # Where windows are of one length, each ends after those before it.
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

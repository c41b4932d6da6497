"""The kernel of sessions: each cluster of elements and windows in flight goes its own way.

Elements of different clusters never meet. A cluster is worked on as arrays where that is exact:

- No element of it can meet a session that has fired, since each lies more than a millisecond after the
  watermark before its commit. Then order does not matter, and the cluster is one session.
- Or all its elements came with one commit and nothing of it is in flight. They are taken in by time,
  so that the late ones come first, and the others make one session.

The others, in which a late element meets a session or may, go through the row operator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegate.windowing.aggregates.vectorised import Bools, Groups, Int64s
from tidegate.windowing.columnar.clusters import Clusters, cluster
from tidegate.windowing.columnar.contents import Contents
from tidegate.windowing.columnar.gaps import Gaps
from tidegate.windowing.columnar.kernel import LateRows, Made, Rules, count
from tidegate.windowing.columnar.order import begins, shifted
from tidegate.windowing.columnar.session_firing import Sessions, fire_sessions
from tidegate.windowing.columnar.state import CodedRows, InFlight
from tidegate.windowing.epochs.arrays import joined, taken
from tidegate.windowing.epochs.elements import Elements
from tidegate.windowing.epochs.timeline import Timeline

_SAFE = 2
"""Milliseconds after the watermark from which an element can't touch a session that has fired."""


@dataclass(frozen=True)
class Routed:
    """What is left for the row operator: elements, and windows in flight."""

    elements: Int64s
    windows: Int64s


class SessionKernel:
    """Sessions over one epoch.

    Args:
        gaps: the gap of each element.
        rules: how windows fire.
        timeline: how the watermark moves.
    """

    def __init__(self, gaps: Gaps, rules: Rules, timeline: Timeline) -> None:
        self._gaps = gaps
        self._rules = rules
        self._timeline = timeline

    def run(self, codes: Int64s, elements: Elements, in_flight: InFlight, keys: int) -> tuple[Made, Routed]:
        """Take in elements and the windows in flight; what is left for the row operator comes back.

        Args:
            codes: the key of each element.
            elements: the elements.
            in_flight: the windows of the state.
            keys: number of codes.
        """
        made = Made()
        alone = np.ones(len(in_flight), np.bool_)
        if not len(elements):
            windows = self._untouched(in_flight, alone, made)
            return made, Routed(np.empty(0, np.int64), windows)
        clusters = self._clusters(codes, elements, in_flight, keys)
        fresh = self._fresh(in_flight)
        exact = self._exact(clusters, fresh)
        left = clusters.some(~exact)
        alone[clusters.rows[clusters.in_flight]] = False
        if exact.any():
            self._run_clusters(clusters.some(exact), elements, in_flight, made)
        windows = np.concatenate([left.rows[left.in_flight], self._untouched(in_flight, alone, made)])
        return made, Routed(left.rows[~left.in_flight], windows)

    def _clusters(self, codes: Int64s, elements: Elements, in_flight: InFlight, keys: int) -> Clusters:
        """Clusters with at least one element."""
        with_elements = np.zeros(keys, np.bool_)
        with_elements[codes] = True
        found = cluster(
            codes,
            elements.timestamps,
            elements.timestamps + self._gaps.of(elements),
            self._timeline.commits_of(elements.timestamps, elements.commits),
            self._timeline.seen_by(elements.timestamps, elements.commits),
            in_flight,
            np.flatnonzero(with_elements[in_flight.codes]),
        )
        return found.some(found.of.any(~found.in_flight))

    def _fresh(self, in_flight: InFlight) -> Bools:
        """Windows in flight that never fired and still wait for their end."""
        waits = (in_flight.ends - 1 > self._timeline.initial) & (in_flight.panes == 0)
        fresh: Bools = waits & ~in_flight.pending & in_flight.filled
        return fresh

    def _exact(self, clusters: Clusters, fresh: Bools) -> Bools:
        """Which clusters arrays can do exactly."""
        of, window = clusters.of, clusters.in_flight
        safe = window | (clusters.starts - clusters.watermarks >= _SAFE)
        known_fresh = ~window
        if window.any():
            known_fresh[window] = fresh[clusters.rows[window]]
        # Of elements of one time with different gaps the order decides what is counted, and what is late.
        tied = ~begins(clusters.codes, clusters.starts, clusters.commits) & begins(clusters.ends)
        simple = of.all(safe & known_fresh & ~tied)
        if simple.all():
            return simple
        one_commit = of.min(clusters.commits) == of.max(clusters.commits)
        late = self._late(clusters)
        # Once an element was taken, a late one after it may belong to the same session.
        late_after = late & ~shifted(late.astype(np.int64), of.starts, 1).astype(np.bool_)
        exact: Bools = simple | (one_commit & ~of.any(window | late_after | tied))
        return exact

    def _late(self, clusters: Clusters) -> Bools:
        """Which elements are late if they meet no session."""
        return self._rules.have_passed(clusters.ends, clusters.watermarks)

    def _run_clusters(self, clusters: Clusters, elements: Elements, in_flight: InFlight, made: Made) -> None:
        made.counters.elements += count(~clusters.in_flight)
        late = self._late(clusters) & ~clusters.in_flight
        if late.any():
            made.counters.late += count(late)
            made.late.append(
                LateRows(
                    rows=clusters.rows[late],
                    watermarks=clusters.watermarks[late],
                    starts=clusters.starts[late],
                    ends=clusters.ends[late],
                    with_window=np.ones(count(late), np.bool_),
                )
            )
            clusters = clusters.without(late)
        if not len(clusters.of):
            return
        growths = clusters.growths(self._gaps.vary)
        lasting = int(self._rules.lateness > 0)
        # A session sets a timer for its end, unless that has passed, and one for its cleanup.
        timers = count(growths & (clusters.reach - 1 > clusters.watermarks)) + lasting * count(growths)
        of = clusters.of
        ends = clusters.reach[of.lasts]
        last = of.lasts
        sessions = Sessions(
            codes=clusters.codes[last],
            starts=clusters.starts[of.starts],
            ends=ends,
            contents=self._contents(clusters, elements, in_flight),
            # Of clusters that hold a window in flight none is late: they are safe.
            late=(ends - 1 <= clusters.watermarks[last]) & ~clusters.in_flight[last],
            commits=clusters.commits[last],
            watermarks=clusters.watermarks[last],
        )
        kept = count(~sessions.late) + lasting * len(of)
        before = (1 + lasting) * count(clusters.in_flight)
        made.counters.timers_registered += timers
        made.counters.timers_deleted += timers + before - kept
        fire_sessions(sessions, self._rules, self._timeline, made)

    def _contents(self, clusters: Clusters, elements: Elements, in_flight: InFlight) -> Contents:
        window = clusters.in_flight
        contents = self._rules.contents
        if not window.any():
            return contents.accumulate(elements.columns, elements.timestamps, clusters.rows, clusters.of)
        own = clusters.of.ids[~window]
        rows = clusters.rows[~window]
        groups = Groups.of_firsts(begins(own))
        added = contents.accumulate(elements.columns, elements.timestamps, rows, groups)
        there = clusters.rows[window]
        known = [array.cast(kind.type) for array, kind in zip(taken(in_flight.contents, there), added, strict=True)]
        ids = np.concatenate([own[groups.starts], clusters.of.ids[window]])
        order = np.argsort(ids, kind="stable")
        return contents.merge(taken(joined([added, known]), order), Groups.of_firsts(begins(ids[order])))

    def _untouched(self, in_flight: InFlight, alone: Bools, made: Made) -> Int64s:
        """Windows that no element touches: those that fire or go, and what is left for the row operator."""
        timeline = self._timeline
        waits = in_flight.ends - 1 > timeline.initial
        due = alone & (self._rules.due(in_flight.ends, timeline) | in_flight.pending)
        stays = np.flatnonzero(alone & ~due)
        made.state.append(CodedRows(in_flight.codes[stays], in_flight.rows, stays))
        made.counters.open_windows += len(stays)
        fresh = self._fresh(in_flight)
        firing = np.flatnonzero(due & fresh)
        if len(firing):
            some = in_flight.take(firing)
            nothing = np.zeros(len(firing), np.int64)
            fire_sessions(
                Sessions(
                    codes=some.codes,
                    starts=some.starts,
                    ends=some.ends,
                    contents=some.contents,
                    late=nothing.astype(np.bool_),
                    commits=nothing,
                    watermarks=nothing,
                ),
                self._rules,
                timeline,
                made,
            )
        gone = due & ~waits & ~in_flight.pending
        made.counters.timers_fired += count(gone)
        return np.flatnonzero(due & ~fresh & ~gone)

"""The kernel for sessions: it computes each cluster of elements and windows in flight independently.

Elements of different clusters never share a session. Arrays compute a cluster where that is exact, which holds in two
cases:

- Each element is more than a millisecond after the watermark before its commit, so no element can touch a session that
  has fired. Then order does not matter, and the cluster is one session.
- All elements came with one commit, and the cluster has no window in flight. Elements are processed by time, so the
  late elements come first, and the others form one session.

The row operator computes all other clusters, in which a late element touches a session or may touch one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Bools, Groups, Int64s, valid_of
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.columnar.clusters import Clusters, cluster
from tidegate.windowing.columnar.contents import Contents
from tidegate.windowing.columnar.kernel import LATE, ON_TIME, KernelOutput, LateRows, PaneRows, Rules, count
from tidegate.windowing.columnar.order import begins, running_max, shifted
from tidegate.windowing.columnar.state import FIRE, FIRE_AND_PURGE, CodedRows, InFlight
from tidegate.windowing.epochs.arrays import ParallelArrays, joined, taken
from tidegate.windowing.epochs.elements import Elements
from tidegate.windowing.epochs.timeline import Timeline
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.panes import Accumulation, Timing
from tidegate.windowing.time import MIN_TIMESTAMP


@dataclass(frozen=True, kw_only=True)
class Sessions(ParallelArrays):
    """Sessions that have never fired, and that nothing else in this epoch can touch, with their accumulators.

    `late` is true if the watermark had passed the end when the elements came. Only then are the commit of the elements
    and the watermark before them used.
    """

    codes: Int64s
    starts: Int64s
    ends: Int64s
    contents: Contents
    late: Bools
    commits: Int64s
    watermarks: Int64s


_SAFE = 2
"""Smallest distance from the watermark, milliseconds, at which an element can't touch a session that has fired."""


class SessionKernel:
    """Sessions over one epoch."""

    def __init__(self, assigner: WindowAssigner, rules: Rules, timeline: Timeline) -> None:
        self._assigner = assigner
        self._gaps_vary = assigner.gap_of_every_element is None
        self._rules = rules
        self._timeline = timeline

    def run(
        self, codes: Int64s, elements: Elements, in_flight: InFlight, keys: int
    ) -> tuple[KernelOutput, Int64s, Int64s]:
        """Return the output for the clusters that arrays compute exactly.

        The rest is left to the row operator: indices of elements, and of windows in flight.
        """
        output = KernelOutput()
        alone = np.ones(len(in_flight), np.bool_)
        if not len(elements):
            return output, np.empty(0, np.int64), self._untouched(in_flight, alone, output)
        clusters = self._clusters(codes, elements, in_flight, keys)
        fresh = self._fresh(in_flight)
        exact = self._exact(clusters, fresh)
        left = clusters.select(~exact)
        alone[clusters.rows[clusters.in_flight]] = False
        if exact.any():
            self._run_clusters(clusters.select(exact), elements, in_flight, output)
        by_row = np.concatenate([left.rows[left.in_flight], self._untouched(in_flight, alone, output)])
        return output, left.rows[~left.in_flight], by_row

    def _clusters(self, codes: Int64s, elements: Elements, in_flight: InFlight, keys: int) -> Clusters:
        """Return the clusters that have at least one element."""
        near = np.empty(0, np.int64)
        if len(in_flight):
            with_elements = np.zeros(keys, np.bool_)
            with_elements[codes] = True
            near = np.flatnonzero(with_elements[in_flight.codes])
        clusters = cluster(
            codes,
            elements.timestamps,
            self._gaps(elements),
            self._timeline.commits_of(elements.timestamps, elements.commits),
            self._timeline.seen_by(elements.timestamps, elements.commits),
            in_flight,
            near,
        )
        if not len(near):
            return clusters
        return clusters.select(clusters.of.any(~clusters.in_flight))

    def _gaps(self, elements: Elements) -> Int64s:
        """Return, for each element, how long a session stays open after it, in milliseconds."""
        gap, column = self._assigner.gap_of_every_element, self._assigner.column_of_gaps
        if gap is not None:
            return np.full(len(elements), gap)
        assert column is not None, "the planner only accepts gaps with an array form"
        values = elements.columns[column]
        gaps = np.asarray(values.fill_null(0).cast(pa.int64()).to_numpy(zero_copy_only=False))
        wrong = np.flatnonzero(~valid_of(values) | (gaps <= 0))
        if len(wrong):
            gap = values[int(wrong[0])].as_py()
            raise IllegalArgument("gap", gap, f"column {column!r} must hold milliseconds above zero")
        return gaps

    def _fresh(self, in_flight: InFlight) -> Bools:
        """Return a flag for each window in flight: whether it has never fired and waits for its end."""
        waits = (in_flight.ends - 1 > self._timeline.initial) & (in_flight.panes == 0)
        fresh: Bools = waits & ~in_flight.pending & in_flight.filled
        return fresh

    def _exact(self, clusters: Clusters, fresh: Bools) -> Bools:
        """Return a flag for each cluster: whether arrays compute it exactly."""
        of, window = clusters.of, clusters.in_flight
        # Before the first watermark, its value is smaller than any time minus this distance.
        safe = window | (clusters.watermarks < clusters.starts - (_SAFE - 1))
        never_fired = ~window
        if window.any():
            # Sessions never touch each other. Windows of an earlier assigner may, and only an element that meets both
            # merges them.
            ids = of.ids[window]
            before = shifted(running_max(clusters.ends[window], ids), np.flatnonzero(begins(ids)), MIN_TIMESTAMP)
            never_fired[window] = fresh[clusters.rows[window]] & (clusters.starts[window] > before)
        # Among elements of one time with different gaps, their order decides the counts and which of them are late.
        tied = np.zeros(len(window), np.bool_)
        if self._gaps_vary:
            tied = ~begins(clusters.codes, clusters.starts, clusters.commits) & begins(clusters.ends)
        simple = of.all(safe & never_fired & ~tied)
        if simple.all():
            return simple
        one_commit = of.min(clusters.commits) == of.max(clusters.commits)
        late = self._late(clusters)
        # A late element after an accepted one may belong to the same session.
        late_after = late & ~shifted(late.astype(np.int64), of.starts, 1).astype(np.bool_)
        exact: Bools = simple | (one_commit & ~of.any(window | late_after | tied))
        return exact

    def _late(self, clusters: Clusters) -> Bools:
        """Return a flag for each member: whether, as an element, it is late unless it touches a session."""
        return self._rules.is_window_late(clusters.ends, clusters.watermarks)

    def _run_clusters(self, clusters: Clusters, elements: Elements, in_flight: InFlight, output: KernelOutput) -> None:
        output.counters.elements += count(~clusters.in_flight)
        late = self._late(clusters) & ~clusters.in_flight
        if late.any():
            output.counters.late += count(late)
            output.late.append(
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
        growths = clusters.growths(self._gaps_vary)
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
            # A cluster with a window in flight is never late: such a cluster only gets here if it is safe.
            late=(ends - 1 <= clusters.watermarks[last]) & ~clusters.in_flight[last],
            commits=clusters.commits[last],
            watermarks=clusters.watermarks[last],
        )
        kept = count(~sessions.late) + lasting * len(of)
        before = (1 + lasting) * count(clusters.in_flight)
        output.counters.timers_registered += timers
        output.counters.timers_deleted += timers + before - kept
        fire_sessions(sessions, self._rules, self._timeline, output)

    def _contents(self, clusters: Clusters, elements: Elements, in_flight: InFlight) -> Contents:
        window = clusters.in_flight
        contents = self._rules.contents
        if not window.any():
            return contents.accumulate(elements.columns, clusters.starts, clusters.rows, clusters.of)
        cluster_ids = clusters.of.ids[~window]
        rows, times = clusters.rows[~window], clusters.starts[~window]
        groups = Groups.of_firsts(begins(cluster_ids))
        added = contents.accumulate(elements.columns, times, rows, groups)
        places = clusters.rows[window]
        stored = [array.cast(kind.type) for array, kind in zip(taken(in_flight.contents, places), added, strict=True)]
        ids = np.concatenate([cluster_ids[groups.starts], clusters.of.ids[window]])
        order = np.argsort(ids, kind="stable")
        return contents.merge(taken(joined([added, stored]), order), Groups.of_firsts(begins(ids[order])))

    def _untouched(self, in_flight: InFlight, alone: Bools, output: KernelOutput) -> Int64s:
        """Fire, clean up or keep the windows that no element touches; return the indices left to the row operator."""
        timeline = self._timeline
        waits = in_flight.ends - 1 > timeline.initial
        due = alone & (self._rules.due(in_flight.ends, timeline) | in_flight.pending)
        stays = np.flatnonzero(alone & ~due)
        output.state.append(CodedRows(in_flight.codes[stays], in_flight.rows, stays))
        output.counters.open_windows += len(stays)
        fresh = self._fresh(in_flight)
        firing = np.flatnonzero(due & fresh)
        if len(firing):
            fired = in_flight.take(firing)
            nothing = np.zeros(len(firing), np.int64)
            fire_sessions(
                Sessions(
                    codes=fired.codes,
                    starts=fired.starts,
                    ends=fired.ends,
                    contents=fired.contents,
                    late=nothing.astype(np.bool_),
                    commits=nothing,
                    watermarks=nothing,
                ),
                self._rules,
                timeline,
                output,
            )
        gone = due & ~waits & ~in_flight.pending
        output.counters.timers_fired += count(gone)
        return np.flatnonzero(due & ~fresh & ~gone)


def fire_sessions(sessions: Sessions, rules: Rules, timeline: Timeline, output: KernelOutput) -> None:
    """Emit the panes of sessions that fire, and the state rows of sessions that stay."""
    last, cleanups = sessions.ends - 1, rules.cleanups(sessions.ends)
    ended, cleaned = ~sessions.late & timeline.reaches(last), timeline.reaches(cleanups)
    fires = ended.copy()
    if sessions.late.any():
        fires[sessions.late] = timeline.complete[sessions.commits[sessions.late]]
    # In a long epoch all sessions usually fire on time, and checking that costs less than copying arrays.
    fired = sessions if fires.all() else sessions.take(np.flatnonzero(fires))
    late = fired.late
    watermarks = timeline.firings(np.where(late, MIN_TIMESTAMP, fired.ends - 1))
    if late.any():
        watermarks = np.where(late, fired.watermarks, watermarks)
    rows = PaneRows(
        codes=fired.codes,
        starts=fired.starts,
        ends=fired.ends,
        panes=np.zeros(len(fired), np.int64),
        timings=np.where(late, LATE, ON_TIME),
        is_retraction=np.zeros(len(fired), np.int64),
        watermarks=watermarks,
        results=rules.contents.results(fired.contents),
    )
    output.panes.append(rows)
    output.counters.fired[Timing.LATE] += count(late)
    output.counters.fired[Timing.ON_TIME] += count(~late)
    output.counters.timers_fired += count(ended) + (count(cleaned) if rules.lateness else 0)
    stays = np.flatnonzero(~cleaned)
    output.counters.open_windows += len(stays)
    if len(stays):
        emitted = rows.take(np.flatnonzero(~cleaned[fires])) if rules.retracts or rules.retract_merged else None
        output.state.append(_state_rows(sessions, rules, stays, fires, ended, emitted))
        if rules.accumulation is Accumulation.DISCARDING and rules.retract_merged:
            gone_out = stays[fires[stays]]
            bounds = sessions.starts[gone_out], sessions.ends[gone_out]
            discarded = rules.state.discarded(*bounds, taken(sessions.contents, gone_out))
            output.state.append(CodedRows(sessions.codes[gone_out], discarded))


def _state_rows(
    sessions: Sessions,
    rules: Rules,
    stays: Int64s,
    fires: Bools,
    ended: Bools,
    emitted: PaneRows | None,
) -> CodedRows:
    fired = fires[stays]
    starts, ends = sessions.starts[stays], sessions.ends[stays]
    waits_for_commit = sessions.late[stays] & ~fired
    return CodedRows(
        sessions.codes[stays],
        rules.state.rows(
            starts,
            ends,
            (starts, ends),
            rules.timers(ends, ~sessions.late[stays] & ~ended[stays]),
            taken(sessions.contents, stays),
            ~fired if rules.empties else np.ones(len(stays), np.bool_),
            fired.astype(np.int64),
            pa.array(np.where(waits_for_commit, FIRE_AND_PURGE if rules.purging else FIRE, ""), mask=~waits_for_commit),
            None if emitted is None else emitted.emitted(rules.contents.result, fired),
        ),
    )

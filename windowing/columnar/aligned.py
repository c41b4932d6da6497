"""The kernel of windows that never merge: each (key, window) on its own, whatever the order of input.

What happens to a window in an epoch is a chain of steps: what was in it and went out before, what comes
in time (by source commit, where the window fires early too), then one late pane for each commit.
Elements are grouped by step here; `chains` merges the steps of a window and fires them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tidegate.windowing.aggregates.vectorised import Bools, Groups, Int64s
from tidegate.windowing.columnar.assignment import Assigned, Assignment
from tidegate.windowing.columnar.chains import (
    BEFORE_STEP,
    ON_TIME_STEP,
    Chains,
    fire_chains,
    late_step,
    next_firings,
)
from tidegate.windowing.columnar.kernel import LateRows, Made, Rules, count
from tidegate.windowing.columnar.order import begins, sort_order
from tidegate.windowing.columnar.state import CodedRows, InFlight
from tidegate.windowing.epochs.elements import Elements
from tidegate.windowing.epochs.timeline import Timeline


class AlignedKernel:
    """Windows of an aligned assigner over one epoch.

    Args:
        assign: gives the windows of elements.
        rules: how windows fire.
        timeline: how the watermark moves.
    """

    def __init__(self, assign: Assignment, rules: Rules, timeline: Timeline) -> None:
        self._assign = assign
        self._rules = rules
        self._timeline = timeline

    def run(self, codes: Int64s, elements: Elements, in_flight: InFlight, keys: int) -> Made:
        """Take in elements and the windows in flight of their keys.

        Args:
            codes: the key of each element.
            elements: the elements.
            in_flight: the windows of the state, of these keys and others.
            keys: number of codes.
        """
        made = Made()
        steps = self._steps(codes, elements, in_flight, made)
        active = self._active(steps.codes, in_flight, keys)
        kept = np.flatnonzero(~active)
        made.state.append(CodedRows(in_flight.codes[kept], in_flight.rows, kept))
        made.counters.open_windows += len(kept)
        known = in_flight.take(np.flatnonzero(active)) if len(kept) else in_flight
        chains = self._chains(steps, known)
        if len(chains.codes):
            fire_chains(chains, known, self._rules, self._timeline, made)
        return made

    def _steps(self, codes: Int64s, elements: Elements, in_flight: InFlight, made: Made) -> Chains:
        """What the elements add, by window and step; late elements go out."""
        rules, contents = self._rules, self._rules.contents
        seen = self._timeline.seen_by(elements.timestamps, elements.commits)
        assigned = self._assign(elements.timestamps)
        watermarks = seen[assigned.rows]
        accepted = self._accepted(codes, assigned, watermarks, in_flight)
        self._skip(elements, assigned, accepted, seen, made)
        rows, starts, ends = assigned.rows[accepted], assigned.starts[accepted], assigned.ends[accepted]
        commits = elements.commits[rows]
        in_time = ON_TIME_STEP if rules.interval is None else ON_TIME_STEP + commits
        steps = np.where(ends - 1 > watermarks[accepted], in_time, late_step(self._timeline) + commits)
        own = codes[rows]
        order = sort_order(own, starts, steps)
        rows, own, starts, ends, steps = rows[order], own[order], starts[order], ends[order], steps[order]
        groups = Groups.of_firsts(begins(own, starts, steps))
        first = groups.starts
        return Chains(
            codes=own[first],
            starts=starts[first],
            ends=ends[first],
            steps=steps[first],
            contents=contents.accumulate(elements.columns, elements.timestamps, rows, groups)
            if len(first)
            else contents.empty(),
            states=np.full(len(first), -1),
            earliest=groups.min(elements.timestamps[rows]),
        )

    def _accepted(self, codes: Int64s, assigned: Assigned, watermarks: Int64s, in_flight: InFlight) -> Bools:
        """Which elements their windows take."""
        rules = self._rules
        accepted: Bools = ~rules.have_passed(assigned.ends, watermarks)
        # One that was closed and is in the state was reopened, and goes on until it is cleaned.
        closed = np.flatnonzero(~accepted & (rules.cleanups(assigned.ends) > watermarks))
        if len(closed) and len(in_flight):
            there = set(zip(in_flight.codes.tolist(), in_flight.starts.tolist(), in_flight.ends.tolist(), strict=True))
            own = (codes[assigned.rows[closed]], assigned.starts[closed], assigned.ends[closed])
            accepted[closed] = [window in there for window in zip(*(part.tolist() for part in own), strict=True)]
        return accepted

    def _skip(self, elements: Elements, assigned: Assigned, accepted: Bools, seen: Int64s, made: Made) -> None:
        in_windows = np.zeros(len(elements), np.bool_)
        in_windows[assigned.rows[accepted]] = True
        skipped = np.flatnonzero(~in_windows)
        made.counters.elements += len(elements)
        if not len(skipped):
            return
        firsts = np.full(len(elements), -1)
        firsts[assigned.rows[::-1]] = np.arange(len(assigned.rows))[::-1]
        places = firsts[skipped]
        known = places >= 0
        times, watermarks = elements.timestamps[skipped], seen[skipped]
        # As the windows' cleanup times, with the element's own in place of their last millisecond.
        late = known | self._rules.have_passed(times + 1, watermarks)
        made.counters.no_window += count(~late)
        made.counters.late += count(late)
        starts, ends = (
            np.where(known, part[np.maximum(places, 0)], 0) if len(part) else np.zeros(len(places), np.int64)
            for part in (assigned.starts, assigned.ends)
        )
        rows = LateRows(rows=skipped, watermarks=watermarks, starts=starts, ends=ends, with_window=known)
        made.late.append(rows.take(np.flatnonzero(late)))

    def _active(self, touched: Int64s, in_flight: InFlight, keys: int) -> Bools:
        """Which windows in flight may change: their key has elements, a timer is due, or they wait to fire."""
        with_elements = np.zeros(keys, np.bool_)
        with_elements[touched] = True
        due = self._rules.due(in_flight.ends, self._timeline) | in_flight.pending
        if self._rules.interval is not None:
            due |= self._timeline.reaches(next_firings(in_flight)) & (in_flight.ends - 1 > self._timeline.initial)
        active: Bools = due | with_elements[in_flight.codes]
        return active

    def _chains(self, steps: Chains, known: InFlight) -> Chains:
        """The steps of each window, those of windows in flight among them."""
        if not len(known):
            return steps
        unfired = known.ends - 1 > self._timeline.initial
        late = late_step(self._timeline)
        before = Chains(
            codes=known.codes,
            starts=known.starts,
            ends=known.ends,
            steps=np.where(unfired, ON_TIME_STEP, np.where(known.pending, late, BEFORE_STEP)),
            contents=[a.cast(b.type) for a, b in zip(known.contents, steps.contents, strict=True)],
            states=np.arange(len(known)),
            earliest=np.zeros(len(known), np.int64),
        )
        chains = Chains.concat([steps, before])
        chains = chains.take(sort_order(chains.codes, chains.starts, chains.steps))
        same = Groups.of_firsts(begins(chains.codes, chains.starts, chains.steps))
        contents = self._rules.contents.merge(chains.contents, same)
        if len(same) == len(chains):
            return replace(chains, contents=contents)
        firsts = replace(chains, contents=[]).take(same.starts)
        return replace(firsts, contents=contents, states=same.max(chains.states))

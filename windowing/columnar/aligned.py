"""The kernel for windows that never merge: it computes each (key, window) independently of the order of input.

A window goes through a chain of steps in an epoch: contents emitted before the epoch, on-time elements (one step
for each source commit if the window fires early), then one late step for each commit. This file groups elements
by step; `chains` merges the steps of a window and fires them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tidegate.windowing.aggregates.vectorised import Bools, Groups, Int64s
from tidegate.windowing.assigners.arrays import Assigned, Assignment
from tidegate.windowing.columnar.chains import (
    BEFORE_STEP,
    ON_TIME_STEP,
    Chains,
    fire_chains,
    late_step,
)
from tidegate.windowing.columnar.kernel import KernelOutput, LateRows, Rules, count
from tidegate.windowing.columnar.order import begins, is_every_row, rearranged, sort_groups, sort_order
from tidegate.windowing.columnar.state import CodedRows, InFlight, next_firings
from tidegate.windowing.epochs.elements import Elements
from tidegate.windowing.epochs.timeline import Timeline


class AlignedKernel:
    """Windows of an aligned assigner over one epoch."""

    def __init__(self, assign: Assignment, rules: Rules, timeline: Timeline) -> None:
        self._assign = assign
        self._rules = rules
        self._timeline = timeline

    def run(self, codes: Int64s, elements: Elements, in_flight: InFlight, keys: int) -> KernelOutput:
        """Return the panes, late elements, state rows and counts of the epoch."""
        output = KernelOutput()
        steps = self._steps(codes, elements, in_flight, output)
        active = self._active(steps.codes, in_flight, keys)
        kept = np.flatnonzero(~active)
        output.state.append(CodedRows(in_flight.codes[kept], in_flight.rows, kept))
        output.counters.open_windows += len(kept)
        changing = in_flight.take(np.flatnonzero(active)) if len(kept) else in_flight
        chains = self._chains(steps, changing)
        if len(chains.codes):
            fire_chains(chains, changing, self._rules, self._timeline, output)
        return output

    def _steps(self, codes: Int64s, elements: Elements, in_flight: InFlight, output: KernelOutput) -> Chains:
        """Return the contents that elements add to each window and step, and emit late elements."""
        rules, contents = self._rules, self._rules.contents
        seen = self._timeline.seen_by(elements.timestamps, elements.commits)
        assigned = self._assign(elements.timestamps)
        watermarks = rearranged(seen, assigned.rows)
        accepted = self._accepted(codes, assigned, watermarks, in_flight)
        self._skip(elements, assigned, accepted, seen, output)
        # Usually all windows of each element are on time, and copying arrays costs more than checking that.
        if not accepted.all():
            assigned, watermarks = assigned.take(np.flatnonzero(accepted)), watermarks[accepted]
        rows, starts, ends = assigned.rows, assigned.starts, assigned.ends
        commits = rearranged(elements.commits, rows)
        in_time = ON_TIME_STEP if rules.interval is None else ON_TIME_STEP + commits
        steps = np.where(ends - 1 > watermarks, in_time, late_step(self._timeline) + commits)
        row_codes = rearranged(codes, rows)
        order, firsts = sort_groups(row_codes, ends, steps)
        groups = Groups.of_firsts(firsts)
        rows, first = rows[order], order[groups.starts]
        return Chains(
            codes=row_codes[first],
            starts=starts[first],
            ends=ends[first],
            steps=steps[first],
            contents=contents.added(elements, rows, groups) if len(first) else contents.empty(),
            states=np.full(len(first), -1),
            earliest=starts[first] if rules.interval is None else groups.min(elements.timestamps[rows]),
        )

    def _accepted(self, codes: Int64s, assigned: Assigned, watermarks: Int64s, in_flight: InFlight) -> Bools:
        rules = self._rules
        accepted: Bools = ~rules.is_window_late(assigned.ends, watermarks)
        if not len(in_flight):
            return accepted
        # A closed window that has state was reopened; it accepts elements until it is cleaned up.
        closed = np.flatnonzero(~accepted & (rules.cleanups(assigned.ends) > watermarks))
        if len(closed):
            windows_in_flight = set(
                zip(in_flight.codes.tolist(), in_flight.starts.tolist(), in_flight.ends.tolist(), strict=True)
            )
            closed_codes = codes[assigned.rows[closed]].tolist()
            bounds = assigned.starts[closed].tolist(), assigned.ends[closed].tolist()
            accepted[closed] = [window in windows_in_flight for window in zip(closed_codes, *bounds, strict=True)]
        return accepted

    def _skip(
        self, elements: Elements, assigned: Assigned, accepted: Bools, seen: Int64s, output: KernelOutput
    ) -> None:
        output.counters.elements += elements.total
        if len(assigned.rows) == len(elements) and accepted.all() and is_every_row(assigned.rows, len(elements)):
            return
        in_windows = np.zeros(len(elements), np.bool_)
        in_windows[assigned.rows[accepted]] = True
        skipped = np.flatnonzero(~in_windows)
        if not len(skipped):
            return
        firsts = np.full(len(elements), -1)
        firsts[assigned.rows[::-1]] = np.arange(len(assigned.rows))[::-1]
        places = firsts[skipped]
        with_window = places >= 0
        times, watermarks = elements.timestamps[skipped], seen[skipped]
        late = with_window | self._rules.is_element_late(times, watermarks)
        output.counters.no_window += count(~late)
        output.counters.late += count(late)
        starts, ends = (
            np.where(with_window, part[np.maximum(places, 0)], 0) if len(part) else np.zeros(len(places), np.int64)
            for part in (assigned.starts, assigned.ends)
        )
        rows = LateRows(rows=skipped, watermarks=watermarks, starts=starts, ends=ends, with_window=with_window)
        output.late.append(rows.take(np.flatnonzero(late)))

    def _active(self, touched: Int64s, in_flight: InFlight, keys: int) -> Bools:
        """Return a flag for each window in flight: whether its key has elements, or a timer or firing is due."""
        with_elements = np.zeros(keys, np.bool_)
        with_elements[touched] = True
        due = self._rules.due(in_flight.ends, self._timeline) | in_flight.pending
        if self._rules.interval is not None:
            due |= self._timeline.reaches(next_firings(in_flight.rows)) & (in_flight.ends - 1 > self._timeline.initial)
        active: Bools = due | with_elements[in_flight.codes]
        return active

    def _chains(self, steps: Chains, in_flight: InFlight) -> Chains:
        """Return the steps of each window, with the contents of windows in flight merged in."""
        if not len(in_flight):
            return steps
        unfired = in_flight.ends - 1 > self._timeline.initial
        late = late_step(self._timeline)
        before = Chains(
            codes=in_flight.codes,
            starts=in_flight.starts,
            ends=in_flight.ends,
            steps=np.where(unfired, ON_TIME_STEP, np.where(in_flight.pending, late, BEFORE_STEP)),
            contents=[a.cast(b.type) for a, b in zip(in_flight.contents, steps.contents, strict=True)],
            states=np.arange(len(in_flight)),
            earliest=np.zeros(len(in_flight), np.int64),
        )
        chains = Chains.concat([steps, before])
        # Windows of an earlier assigner may end at the same time as current ones.
        chains = chains.take(sort_order(chains.codes, chains.ends, chains.starts, chains.steps))
        same = Groups.of_firsts(begins(chains.codes, chains.ends, chains.starts, chains.steps))
        contents = self._rules.contents.merge(chains.contents, same)
        if len(same) == len(chains):
            return replace(chains, contents=contents)
        firsts = replace(chains, contents=[]).take(same.starts)
        return replace(firsts, contents=contents, states=same.max(chains.states))

"""The kernel of windows that never merge: each (key, window) on its own, whatever the order of input.

What happens to a window in an epoch is a chain of steps: what was in it and went out before, the
on-time pane, then one late pane for each source commit. Elements are grouped by step, and the steps
of a window are merged one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windowing.aggregates.vectorised import Bools, Groups, Int64s
from windowing.columnar.assignment import Assigned, Assignment
from windowing.columnar.contents import Contents, joined, take
from windowing.columnar.elements import Elements
from windowing.columnar.kernel import LateRows, Made, Rules, count
from windowing.columnar.order import begins, sort_order
from windowing.columnar.panes import LATE, ON_TIME, TIMINGS, PaneRows
from windowing.columnar.state import FIRE, FIRE_AND_PURGE, CodedRows, InFlight, timer_lists
from windowing.columnar.timeline import Timeline
from windowing.panes import Timing
from windowing.time import MAX_TIMESTAMP

_BEFORE, _ON_TIME, _LATE = 0, 1, 2
"""Steps of a window; `_LATE + i` is its late pane of commit i."""


@dataclass(frozen=True)
class _Chains:
    """Steps of windows, sorted by key, window and step.

    Args:
        codes: the key of each, as a code.
        starts: of the window, int64 epoch milliseconds.
        ends: of the window, not included.
        steps: `_BEFORE`, `_ON_TIME` or `_LATE` and the commit.
        contents: what each step adds.
        states: place of the window among those in flight, at the step that its contents belong to; else -1.
        of: the steps of each window.
    """

    codes: Int64s
    starts: Int64s
    ends: Int64s
    steps: Int64s
    contents: Contents
    states: Int64s
    of: Groups


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
        steps = self._steps(codes, elements, made)
        active = self._active(steps[0], in_flight, keys)
        kept = np.flatnonzero(~active)
        made.state.append(CodedRows(in_flight.codes[kept], in_flight.rows, kept))
        made.counters.open_windows += len(kept)
        known = in_flight.take(np.flatnonzero(active)) if len(kept) else in_flight
        chains = self._chains(steps, known)
        if len(chains.codes):
            self._fire(chains, known, made)
        return made

    def _steps(self, codes: Int64s, elements: Elements, made: Made) -> tuple[Int64s, Int64s, Int64s, Int64s, Contents]:
        """Code, start, end, step and contents of what the elements add; late elements go out."""
        rules, contents = self._rules, self._rules.contents
        seen = self._timeline.seen_by(elements.timestamps, elements.commits)
        assigned = self._assign(elements.timestamps)
        watermarks = seen[assigned.rows]
        taken = rules.cleanups(assigned.ends) > watermarks
        self._skip(elements, assigned, taken, seen, made)
        rows, starts, ends = (part[taken] for part in assigned)
        steps = np.where(ends - 1 > watermarks[taken], _ON_TIME, _LATE + elements.commits[rows])
        own = codes[rows]
        order = sort_order(own, starts, steps)
        rows, own, starts, ends, steps = rows[order], own[order], starts[order], ends[order], steps[order]
        groups = Groups.of_firsts(begins(own, starts, steps))
        first = groups.starts
        if not len(first):
            return own, starts, ends, steps, contents.empty()
        made_contents = contents.accumulate(elements.columns, elements.timestamps, rows, groups)
        return own[first], starts[first], ends[first], steps[first], made_contents

    def _skip(self, elements: Elements, assigned: Assigned, taken: Bools, seen: Int64s, made: Made) -> None:
        accepted = np.zeros(len(elements), np.bool_)
        accepted[assigned.rows[taken]] = True
        skipped = np.flatnonzero(~accepted)
        made.counters.elements += len(elements)
        if not len(skipped):
            return
        firsts = np.full(len(elements), -1)
        firsts[assigned.rows[::-1]] = np.arange(len(assigned.rows))[::-1]
        places = firsts[skipped]
        known = places >= 0
        times, watermarks = elements.timestamps[skipped], seen[skipped]
        # As the windows' cleanup times, with the element's own in place of their last millisecond.
        late = known | (self._rules.cleanups(times + 1) <= watermarks)
        made.counters.no_window += count(~late)
        made.counters.late += count(late)
        starts, ends = (
            np.where(known, part[np.maximum(places, 0)], 0) if len(part) else np.zeros(len(places), np.int64)
            for part in (assigned.starts, assigned.ends)
        )
        made.late.append(LateRows(skipped[late], watermarks[late], starts[late], ends[late], known[late]))

    def _active(self, touched: Int64s, in_flight: InFlight, keys: int) -> Bools:
        """Which windows in flight may change: their key has elements, a timer is due, or they wait to fire."""
        with_elements = np.zeros(keys, np.bool_)
        with_elements[touched] = True
        last = in_flight.ends - 1
        due = self._timeline.reaches(last) & (last > self._timeline.initial)
        due |= self._timeline.reaches(self._rules.cleanups(in_flight.ends)) | in_flight.pending
        active: Bools = due | with_elements[in_flight.codes]
        return active

    def _chains(self, steps: tuple[Int64s, Int64s, Int64s, Int64s, Contents], known: InFlight) -> _Chains:
        codes, starts, ends, numbers, contents = steps
        states = np.full(len(codes), -1)
        if len(known):
            unfired = known.ends - 1 > self._timeline.initial
            known_steps = np.where(unfired, _ON_TIME, np.where(known.pending, _LATE, _BEFORE))
            codes, starts, ends = (
                np.concatenate(pair) for pair in ((codes, known.codes), (starts, known.starts), (ends, known.ends))
            )
            numbers = np.concatenate([numbers, known_steps])
            states = np.concatenate([states, np.arange(len(known))])
            contents = joined([contents, [a.cast(b.type) for a, b in zip(known.contents, contents, strict=True)]])
            order = sort_order(codes, starts, numbers)
            codes, starts, ends, numbers, states = (part[order] for part in (codes, starts, ends, numbers, states))
            same = Groups.of_firsts(begins(codes, starts, numbers))
            contents = self._rules.contents.merge(take(contents, order), same)
            if len(same) < len(codes):
                states = same.max(states)
                codes, starts, ends, numbers = (part[same.starts] for part in (codes, starts, ends, numbers))
        return _Chains(codes, starts, ends, numbers, contents, states, Groups.of_firsts(begins(codes, starts)))

    def _fire(self, chains: _Chains, known: InFlight, made: Made) -> None:
        rules, timeline = self._rules, self._timeline
        of = chains.of
        states = of.max(chains.states)
        numbers = np.where(states >= 0, known.panes[states], 0) if len(known) else np.zeros(len(of), np.int64)
        contents = chains.contents if rules.empties else self._accumulated(chains)
        last = chains.ends - 1
        commits = np.maximum(chains.steps - _LATE, 0)
        fires = np.where(
            chains.steps >= _LATE, timeline.complete[commits], (chains.steps == _ON_TIME) & timeline.reaches(last)
        )
        fired = np.flatnonzero(fires)
        before = np.cumsum(fires) - fires
        panes = numbers[of.ids] + before - before[of.starts][of.ids]
        late = chains.steps[fired] >= _LATE
        watermarks = np.empty(len(fired), np.int64)
        watermarks[late] = timeline.before[commits[fired][late]]
        watermarks[~late] = timeline.firings(last[fired][~late])
        starts, ends = chains.starts[fired], chains.ends[fired]
        rows = PaneRows(
            chains.codes[fired],
            starts,
            ends,
            (starts, ends),
            panes[fired],
            np.where(late, LATE, ON_TIME),
            np.zeros(len(fired), np.int64),
            watermarks,
            rules.contents.results(take(contents, fired)),
        )
        made.panes.append(rows)
        made.counters.fired[Timing(TIMINGS[ON_TIME])] += count(~late)
        made.counters.fired[Timing(TIMINGS[LATE])] += count(late)
        window_of = of.ids[fired]
        newest = np.full(len(of), -1)
        newest[window_of] = np.arange(len(fired))
        if rules.retracts:
            self._retract(rows, window_of, states, known, made)
        self._keep(chains, known, contents, fires, states, numbers, rows, newest, made)

    def _accumulated(self, chains: _Chains) -> Contents:
        """The contents after each step: those of the steps before it with its own."""
        of = chains.of
        longest = int(of.sizes.max())
        if longest == 1:
            return chains.contents
        place = np.arange(len(chains.codes)) - of.starts[of.ids]
        position = np.empty(len(place), np.int64)
        parts: list[list[pa.Array]] = []
        at = 0
        for step in range(longest):
            rows = np.flatnonzero(place == step)
            own = take(chains.contents, rows)
            if step:
                earlier = take(parts[-1], position[rows - 1] - (at - len(parts[-1][0])))
                both = joined([earlier, own])
                pairs = np.arange(2 * len(rows)).reshape(2, -1).T.reshape(-1)
                own = self._rules.contents.merge(take(both, pairs), Groups.of_sizes(np.full(len(rows), 2)))
            position[rows] = at + np.arange(len(rows))
            at += len(rows)
            parts.append(own)
        return take(joined(parts), position)

    def _retract(self, rows: PaneRows, window_of: Int64s, states: Int64s, known: InFlight, made: Made) -> None:
        """Withdraw of each window the pane before each new one, where there is one."""
        first = begins(window_of)
        again = np.flatnonzero(~first)
        earlier = again - 1
        parts = [
            PaneRows(
                rows.codes[earlier],
                rows.starts[earlier],
                rows.ends[earlier],
                (rows.starts[earlier], rows.ends[earlier]),
                rows.panes[earlier],
                rows.timings[earlier],
                np.ones(len(again), np.int64),
                rows.watermarks[again],
                take(rows.results, earlier),
            )
        ]
        opening = np.flatnonzero(first)
        opening = opening[states[window_of[opening]] >= 0]
        if len(opening):
            emitted = _only_entries(known.rows, states[window_of[opening]])
            opening = opening[emitted.is_valid().to_numpy(zero_copy_only=False)]
            entries = dict(zip([field.name for field in emitted.type], emitted.drop_null().flatten(), strict=True))
            starts, ends = rows.starts[opening], rows.ends[opening]
            timings = pa.array(TIMINGS)
            parts.append(
                PaneRows(
                    rows.codes[opening],
                    starts,
                    ends,
                    (starts, ends),
                    entries["pane"].to_numpy().astype(np.int64),
                    pc.index_in(entries["timing"], timings).to_numpy().astype(np.int64),
                    np.ones(len(opening), np.int64),
                    rows.watermarks[opening],
                    entries["value"].flatten(),
                )
            )
        made.counters.withdrawn += sum(len(part) for part in parts)
        made.panes.extend(parts)

    def _keep(
        self,
        chains: _Chains,
        known: InFlight,
        contents: Contents,
        fires: Bools,
        states: Int64s,
        numbers: Int64s,
        rows: PaneRows,
        newest: Int64s,
        made: Made,
    ) -> None:
        """State rows of the windows that stay, and how many timers were set and fired on the way."""
        rules, timeline, of = self._rules, self._timeline, chains.of
        opened, closing = of.starts, of.lasts
        codes, starts, ends = chains.codes[opened], chains.starts[opened], chains.ends[opened]
        last, cleanups = ends - 1, rules.cleanups(ends)
        new = states < 0
        timed = chains.steps[opened] == _ON_TIME
        has_cleanup = (cleanups < MAX_TIMESTAMP) & ~(timed & (cleanups == last))
        made.counters.timers_registered += count(new & timed) + count(new & has_cleanup)
        ended, cleaned = timeline.reaches(last), timeline.reaches(cleanups)
        made.counters.timers_fired += count(timed & ended) + count(has_cleanup & cleaned)
        stays = np.flatnonzero(~cleaned)
        made.counters.open_windows += len(stays)
        if not len(stays):
            return
        closes = closing[stays]
        waits = (chains.steps[closes] >= _LATE) & ~fires[closes]
        went_before = chains.steps[closes] == _BEFORE
        filled = np.ones(len(stays), np.bool_)
        if rules.empties:
            filled &= ~fires[closes]
            if len(known):
                filled &= ~went_before | known.filled[np.maximum(states[stays], 0)]
        elif len(known):
            filled &= ~(went_before & ~known.filled[np.maximum(states[stays], 0)])
        fired = np.bincount(of.ids[fires.astype(np.bool_)], minlength=len(of))
        emitted = self._emitted(rows, newest[stays], states[stays], known) if rules.retracts else None
        ends_later = timed & ~ended
        made.state.append(
            CodedRows(
                codes[stays],
                rules.state.rows(
                    starts[stays],
                    ends[stays],
                    (starts[stays], ends[stays]),
                    timer_lists(
                        (last[stays], ends_later[stays]),
                        (
                            cleanups[stays],
                            (cleanups < MAX_TIMESTAMP)[stays] & ~(ends_later & (cleanups == last))[stays],
                        ),
                    ),
                    take(contents, closes),
                    filled,
                    (numbers + fired)[stays],
                    pa.array(np.where(waits, FIRE_AND_PURGE if rules.purging else FIRE, ""), mask=~waits),
                    emitted,
                ),
            )
        )

    def _emitted(self, rows: PaneRows, newest: Int64s, states: Int64s, known: InFlight) -> pa.Array:
        """The pane of each window that a withdrawal would have to repeat."""
        result = self._rules.contents.result
        fresh = rows.emitted(result, np.ones(len(rows), np.bool_))
        parts = [fresh]
        place = newest.copy()
        if len(known):
            older = known.rows["emitted"]
            parts.append((older.combine_chunks() if isinstance(older, pa.ChunkedArray) else older).cast(fresh.type))
            place = np.where(newest >= 0, newest, np.where(states >= 0, states + len(rows), -1))
        return pa.concat_arrays(parts).take(pa.array(place, mask=place < 0))


def _only_entries(rows: pa.Table, places: Int64s) -> pa.Array:
    """The one entry of `emitted` of each of these state rows, null where there is none."""
    column = rows["emitted"].take(pa.array(places))
    lists = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = lists.type.value_type
    present = lists.is_valid().to_numpy(zero_copy_only=False)
    entries = lists.drop_null().flatten()
    place = np.cumsum(present) - 1
    return entries.take(pa.array(place, mask=~present)).cast(kind)

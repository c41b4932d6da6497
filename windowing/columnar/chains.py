"""Chains of steps: an aligned window's steps in an epoch are merged in order, fire, and leave a state row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.aggregates.vectorised import Bools, Groups, Int64s
from tidegate.windowing.columnar.contents import Contents
from tidegate.windowing.columnar.kernel import EARLY, LATE, ON_TIME, TIMINGS, KernelOutput, PaneRows, Rules, count
from tidegate.windowing.columnar.order import begins, is_every_row, numbers_of, rearranged, sort_order
from tidegate.windowing.columnar.state import FIRE, FIRE_AND_PURGE, CodedRows, InFlight, next_firings
from tidegate.windowing.epochs.arrays import ParallelArrays, joined, taken
from tidegate.windowing.epochs.timeline import Timeline
from tidegate.windowing.panes import Timing
from tidegate.windowing.time import MAX_TIMESTAMP

BEFORE_STEP, ON_TIME_STEP = 0, 1
"""Step 0: contents emitted before this epoch. Step 1: on-time elements. Later steps: late elements.

If windows fire early, each commit has an on-time step of its own: `ON_TIME_STEP` plus the index of the commit.
"""


def late_step(timeline: Timeline) -> int:
    """Return the step of late elements of the first commit; the steps of later commits come after it."""
    return ON_TIME_STEP + len(timeline.before)


@dataclass(frozen=True, kw_only=True)
class Chains(ParallelArrays):
    """Steps of windows, sorted by key, window and step. A step adds `contents`.

    `states` is the index of the window in flight whose contents a step holds, or -1 for all other steps. `earliest` is
    the smallest time of the step's elements (int64 epoch milliseconds); it is unused for windows in flight.
    """

    codes: Int64s
    starts: Int64s
    ends: Int64s
    steps: Int64s
    contents: Contents
    states: Int64s
    earliest: Int64s

    @cached_property
    def of(self) -> Groups:
        """Group the steps by window."""
        return Groups.of_firsts(begins(self.codes, self.ends, self.starts))


@dataclass(frozen=True, kw_only=True)
class _Windows(ParallelArrays):
    """The windows of chains, with the number of each one's next pane and the number of its early firings in the epoch.

    `states` is the index among the windows in flight, or -1 if the epoch opened the window. `timed` is true if the
    window's first step of the epoch is an on-time step, so its end timer is pending. `upcoming` is the time of the next
    early firing, or the window's last millisecond if it does not fire early.
    """

    codes: Int64s
    starts: Int64s
    ends: Int64s
    states: Int64s
    numbers: Int64s
    timed: Bools
    upcoming: Int64s
    early: Int64s


@dataclass(frozen=True, kw_only=True)
class _Firings(ParallelArrays):
    """Firings, sorted by window and in the order in which they happen.

    An entry is the index of the last step that the pane includes. A timing is an index into `TIMINGS`.
    """

    window_of: Int64s
    entries: Int64s
    timings: Int64s
    watermarks: Int64s


def fire_chains(chains: Chains, in_flight: InFlight, rules: Rules, timeline: Timeline, output: KernelOutput) -> None:
    """Emit the panes of all windows, and the state rows of the windows that stay."""
    of = chains.of
    windows = _windows(chains, in_flight, rules, timeline)
    contents = chains.contents if rules.empties else _accumulated(chains, rules)
    firings = _firings(chains, windows, rules, timeline)
    window_of = firings.window_of
    begun = np.flatnonzero(begins(window_of))
    rank = np.arange(len(window_of)) - np.repeat(begun, np.diff(begun, append=len(window_of)))
    rows = PaneRows(
        codes=rearranged(windows.codes, window_of),
        starts=rearranged(windows.starts, window_of),
        ends=rearranged(windows.ends, window_of),
        panes=rearranged(windows.numbers, window_of) + rank,
        timings=firings.timings,
        is_retraction=np.zeros(len(window_of), np.int64),
        watermarks=firings.watermarks,
        results=rules.contents.results(
            contents if is_every_row(firings.entries, len(chains)) else taken(contents, firings.entries)
        ),
    )
    output.panes.append(rows)
    for index, timing in enumerate(TIMINGS):
        output.counters.fired[Timing(timing)] += count(firings.timings == index)
    newest = np.full(len(of), -1)
    newest[window_of] = np.arange(len(window_of))
    if rules.retracts:
        retract_earlier(rows, window_of, windows.states, in_flight, output)
    _keep(chains, windows, in_flight, contents, rows, newest, rules, timeline, output)


def _windows(chains: Chains, in_flight: InFlight, rules: Rules, timeline: Timeline) -> _Windows:
    of = chains.of
    opened = of.starts
    states = of.max(chains.states) if len(in_flight) else np.full(len(of), -1)
    ends = chains.ends[opened]
    timed = (chains.steps[opened] >= ON_TIME_STEP) & (chains.steps[opened] < late_step(timeline))
    numbers = np.where(states >= 0, in_flight.panes[states], 0) if len(in_flight) else np.zeros(len(of), np.int64)
    upcoming, early = ends - 1, np.zeros(len(of), np.int64)
    if rules.interval is not None:
        interval = rules.interval
        # Rounded towards zero, like the trigger.
        earliest = chains.earliest[opened]
        aligned = np.where(earliest >= 0, earliest - earliest % interval, earliest + -earliest % interval)
        upcoming = np.minimum(aligned + interval, upcoming)
        if len(in_flight):
            upcoming = np.where(states >= 0, next_firings(in_flight.rows)[states], upcoming)
        # If a firing is already overdue when its timer is set, it happens at the next advance of the watermark, if any.
        moved = chains.steps[opened] - ON_TIME_STEP < timeline.moved
        reached = np.minimum(timeline.final, ends - 2)
        early = np.where(timed & moved & (upcoming <= reached), (reached - upcoming) // interval + 1, 0)
    return _Windows(
        codes=chains.codes[opened],
        starts=chains.starts[opened],
        ends=ends,
        states=states,
        numbers=numbers,
        timed=timed,
        upcoming=upcoming,
        early=early.astype(np.int64),
    )


def _firings(chains: Chains, windows: _Windows, rules: Rules, timeline: Timeline) -> _Firings:
    of, late = chains.of, late_step(timeline)
    last = windows.ends - 1
    on_time = np.flatnonzero(windows.timed & timeline.reaches(last))
    if len(of) == len(chains) and len(on_time) == len(of) and rules.interval is None:
        # Usually each window has one step in a long epoch, and fires at its end.
        return _Firings(
            window_of=on_time,
            entries=on_time,
            timings=np.full(len(on_time), ON_TIME),
            watermarks=timeline.firings(last),
        )
    place = of.ids * (2 * late) + chains.steps
    commits = np.maximum(chains.steps - late, 0)
    behind = np.flatnonzero((chains.steps >= late) & timeline.complete[commits])
    parts = [
        _Firings(
            window_of=on_time,
            entries=np.searchsorted(place, on_time * (2 * late) + late) - 1,
            timings=np.full(len(on_time), ON_TIME),
            watermarks=timeline.firings(last[on_time]),
        ),
        _Firings(
            window_of=of.ids[behind],
            entries=behind,
            timings=np.full(len(behind), LATE),
            watermarks=timeline.before[commits[behind]],
        ),
    ]
    if rules.interval is not None:
        turn, early = numbers_of(np.zeros_like(windows.early), windows.early)
        times = windows.upcoming[early] + turn * rules.interval
        opened = chains.steps[of.starts][early] - ON_TIME_STEP
        moves = np.maximum(timeline.moves_at(times), opened)
        early_firings = _Firings(
            window_of=early,
            entries=np.searchsorted(place, early * (2 * late) + ON_TIME_STEP + moves, side="right") - 1,
            timings=np.full(len(early), EARLY),
            watermarks=timeline.moves[moves],
        )
        parts.insert(0, early_firings)
    firings = _Firings.concat(parts)
    sizes = [len(part) for part in parts]
    if sum(size > 0 for size in sizes) <= 1:
        return firings
    return firings.take(sort_order(firings.window_of, np.repeat(np.arange(len(parts)), sizes)))


def _accumulated(chains: Chains, rules: Rules) -> Contents:
    """Return the contents of the window after each step: all earlier steps merged with this one."""
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
        merged = taken(chains.contents, rows)
        if step:
            earlier = taken(parts[-1], position[rows - 1] - (at - len(parts[-1][0])))
            merged = rules.contents.merged_pairs(earlier, merged)
        position[rows] = at + np.arange(len(rows))
        at += len(rows)
        parts.append(merged)
    return taken(joined(parts), position)


def _keep(
    chains: Chains,
    windows: _Windows,
    in_flight: InFlight,
    contents: Contents,
    rows: PaneRows,
    newest: Int64s,
    rules: Rules,
    timeline: Timeline,
    output: KernelOutput,
) -> None:
    """Emit the state rows of the windows that stay, and count the timers that were set and fired."""
    starts, ends, states, timed = windows.starts, windows.ends, windows.states, windows.timed
    last, cleanups = ends - 1, rules.cleanups(ends)
    ended, cleaned = timeline.reaches(last), timeline.reaches(cleanups)
    new = states < 0
    has_cleanup = (cleanups < MAX_TIMESTAMP) & ~(timed & (cleanups == last))
    following = np.minimum(windows.upcoming + windows.early * (rules.interval or 0), last)
    fired_early = int(windows.early.sum())
    output.counters.timers_registered += count(new & timed) + count(new & has_cleanup)
    if rules.interval is not None:
        # Each early firing sets the next one, unless the next is the end, which already has a timer.
        set_anew = fired_early - count((windows.early > 0) & (following == last))
        output.counters.timers_registered += count(new & timed & (windows.upcoming < last)) + set_anew
    output.counters.timers_fired += count(timed & ended) + count(has_cleanup & cleaned) + fired_early
    stays = np.flatnonzero(~cleaned)
    output.counters.open_windows += len(stays)
    if not len(stays):
        return
    closes = chains.of.lasts[stays]
    late = chains.steps[closes] >= late_step(timeline)
    before = chains.steps[closes] == BEFORE_STEP
    went_out = np.where(
        late, timeline.complete[np.maximum(chains.steps[closes] - late_step(timeline), 0)], ended[stays]
    )
    waits = late & ~went_out
    held = in_flight.filled[np.maximum(states[stays], 0)] if len(in_flight) else np.ones(len(stays), np.bool_)
    filled = np.where(before, held, ~went_out if rules.empties else True).astype(np.bool_)
    fired = np.where(newest >= 0, rows.panes[newest] + 1, windows.numbers) if len(rows) else windows.numbers
    output.state.append(
        CodedRows(
            windows.codes[stays],
            rules.state.rows(
                starts[stays],
                ends[stays],
                (starts[stays], ends[stays]),
                rules.timers(ends[stays], (timed & ~ended)[stays], following[stays]),
                taken(contents, closes),
                filled,
                fired[stays],
                pa.array(np.where(waits, FIRE_AND_PURGE if rules.purging else FIRE, ""), mask=~waits),
                emitted_panes(rows, newest[stays], states[stays], in_flight, rules) if rules.retracts else None,
                None if rules.interval is None else _trigger_state(windows, following, stays, in_flight),
            ),
        )
    )


def _trigger_state(windows: _Windows, following: Int64s, stays: Int64s, in_flight: InFlight) -> pa.Array:
    """Return the trigger state of each window: the time of its next firing, or null for windows that opened late."""
    present = windows.timed[stays]
    times = following[stays]
    if len(in_flight):
        states = windows.states[stays]
        older = np.where(states >= 0, next_firings(in_flight.rows)[states], MAX_TIMESTAMP)
        times, present = np.where(present, times, older), present | (older < MAX_TIMESTAMP)
    return pa.StructArray.from_arrays([pa.array(times)], names=["next_firing"], mask=pa.array(~present))


def retract_earlier(
    rows: PaneRows, window_of: Int64s, states: Int64s, in_flight: InFlight, output: KernelOutput
) -> None:
    """Emit the retraction of the previous pane for each new pane that has one.

    The panes are sorted by window. `states` has the index of each window among those in flight, or -1.
    """
    first = begins(window_of)
    again = np.flatnonzero(~first)
    earlier = again - 1
    parts = [
        replace(
            rows.take(earlier),
            is_retraction=np.ones(len(again), np.int64),
            watermarks=rows.watermarks[again],
        )
    ]
    opening = np.flatnonzero(first)
    opening = opening[states[window_of[opening]] >= 0]
    if len(opening):
        emitted = _only_entries(in_flight.rows, states[window_of[opening]])
        opening = opening[emitted.is_valid().to_numpy(zero_copy_only=False)]
        entries = dict(zip([field.name for field in emitted.type], emitted.drop_null().flatten(), strict=True))
        timings = pa.array(TIMINGS)
        parts.append(
            PaneRows(
                codes=rows.codes[opening],
                starts=rows.starts[opening],
                ends=rows.ends[opening],
                panes=entries["pane"].to_numpy().astype(np.int64),
                timings=pc.index_in(entries["timing"], timings).to_numpy().astype(np.int64),
                is_retraction=np.ones(len(opening), np.int64),
                watermarks=rows.watermarks[opening],
                results=entries["value"].flatten(),
            )
        )
    output.counters.retracted += sum(len(part) for part in parts)
    output.panes.extend(parts)


def emitted_panes(rows: PaneRows, newest: Int64s, states: Int64s, in_flight: InFlight, rules: Rules) -> pa.Array:
    """Return the newest pane of each window, which its next retraction repeats, or null if it has none.

    `newest` has the index of each window's newest pane in `rows`, and `states` the index of each window among those in
    flight. An index is -1 if there is none.
    """
    result = rules.contents.result
    fresh = rows.emitted(result, np.ones(len(rows), np.bool_))
    parts = [fresh]
    place = newest.copy()
    if len(in_flight):
        older = in_flight.rows["emitted"]
        parts.append((older.combine_chunks() if isinstance(older, pa.ChunkedArray) else older).cast(fresh.type))
        place = np.where(newest >= 0, newest, np.where(states >= 0, states + len(rows), -1))
    return pa.concat_arrays(parts).take(pa.array(place, mask=place < 0))


def _only_entries(rows: pa.Table, places: Int64s) -> pa.Array:
    """Return the only entry of `emitted` in each of these state rows, or null if there is none."""
    column = rows["emitted"].take(pa.array(places))
    lists = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = lists.type.value_type
    present = lists.is_valid().to_numpy(zero_copy_only=False)
    entries = lists.drop_null().flatten()
    place = np.cumsum(present) - 1
    return entries.take(pa.array(place, mask=~present)).cast(kind)

"""The kernel for sliding windows that share slices: an element goes into one slice, and a window merges its slices.

It computes what `AlignedKernel` computes for windows without allowed lateness that fire only at their end. The state
may still hold rows of whole windows, from before the pipeline had slices or from the row operator. A window then has
the contents of its row and of its slices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Bools, Groups, Int64s
from tidegate.windowing.columnar.contents import ColumnarContents, Contents
from tidegate.windowing.columnar.kernel import ON_TIME, KernelOutput, LateRows, PaneRows, Rules
from tidegate.windowing.columnar.order import begins, numbers_of, rearranged, sort_groups, sort_order
from tidegate.windowing.columnar.slices import OpenWindows, Slicing, are_slices, count_windows
from tidegate.windowing.columnar.state import CodedRows, InFlight, timer_lists
from tidegate.windowing.epochs.arrays import ParallelArrays, joined, taken
from tidegate.windowing.epochs.elements import Elements
from tidegate.windowing.epochs.timeline import Timeline
from tidegate.windowing.panes import Timing
from tidegate.windowing.state.rows import SLICE


@dataclass(frozen=True, kw_only=True)
class _Parts(ParallelArrays):
    """Contents of slices or windows, each of a single key. A slice has its number as its start, and 0 as its end."""

    codes: Int64s
    starts: Int64s
    ends: Int64s
    contents: Contents


class SlicedKernel:
    """Sliding windows over one epoch. There is no allowed lateness."""

    def __init__(self, slicing: Slicing, rules: Rules, timeline: Timeline) -> None:
        self._slicing = slicing
        self._rules = rules
        self._timeline = timeline
        ends = np.array([timeline.initial, timeline.final])
        # Windows from `due` on fire in this epoch or later; those from `open` on fire after it.
        self._due, self._open = slicing.windows_after(ends).tolist()

    def can_read(self, in_flight: InFlight, plain: Bools) -> Bools:
        """Return a flag for each state row: whether this kernel handles it; the row operator handles the others."""
        # Any other window was opened with a different lateness or trigger.
        simple: Bools = plain & in_flight.filled & ~in_flight.pending & (in_flight.panes == 0)
        is_slice = are_slices(in_flight.rows)
        waits = in_flight.ends - 1 > self._timeline.initial
        simple &= is_slice | (waits & self._rules.has_own_timers(in_flight.rows, in_flight.ends, waits))
        places = np.flatnonzero(is_slice)
        if not len(places):
            return simple
        # Slices of another grid belong to windows of that grid.
        slicing, given = self._slicing, in_flight.starts[places]
        slices = slicing.slices_at(given)
        firsts, lasts = np.maximum(slicing.first_windows(slices), self._due), slicing.last_windows(slices)
        starts, ends = self._bounds(firsts)
        shown = OpenWindows.of(in_flight.rows.take(pa.array(places)))
        simple[places] &= (
            (slicing.slice_starts(slices) == given)
            & (in_flight.ends[places] - given == slicing.width)
            & (shown.starts == starts)
            & (shown.ends == ends)
            & (shown.counts == lasts - firsts + 1)
            & ((shown.counts == 1) | (shown.steps == slicing.grid.slide))
        )
        return simple

    def run(self, codes: Int64s, elements: Elements, in_flight: InFlight) -> KernelOutput:
        """Return the panes, late elements, state rows and counts of the epoch."""
        output = KernelOutput()
        is_slice = are_slices(in_flight.rows)
        held, windows = np.flatnonzero(is_slice), in_flight.take(np.flatnonzero(~is_slice))
        before = _Parts(
            codes=in_flight.codes[held],
            starts=self._slicing.slices_at(in_flight.starts[held]),
            ends=np.zeros(len(held), np.int64),
            contents=taken(in_flight.contents, held),
        )
        whole, cut, straying = self._added(codes, elements, output)
        slices = self._merged([before, whole])
        reached = self._timeline.reaches(windows.ends - 1)
        due = np.flatnonzero(reached)
        of_windows = _Parts(
            codes=windows.codes[due],
            starts=windows.starts[due],
            ends=windows.ends[due],
            contents=taken(windows.contents, due),
        )
        fired = self._merged([self._of_slices(slices), of_windows, straying])
        self._fire(fired, output)
        kept = np.flatnonzero(~reached)
        output.state.append(CodedRows(windows.codes[kept], windows.rows, kept))
        slices = self._merged([slices, cut])
        stays = slices.take(np.flatnonzero(self._slicing.last_windows(slices.starts) >= self._open))
        self._keep(stays, output)
        counters = output.counters
        counters.open_windows = self._count(stays, windows.take(kept), self._open)
        counters.timers_fired = len(fired)
        counters.timers_registered = counters.open_windows + len(fired) - self._count(before, windows, self._due)
        return output

    def _added(self, codes: Int64s, elements: Elements, output: KernelOutput) -> tuple[_Parts, _Parts, _Parts]:
        """Emit late elements, and return the contents that the other elements add, in three parts.

        The first part has the slices of elements that arrive before any of their windows fires in this epoch. The
        second has the slices of elements that arrive after some of them have fired, and the third has those elements'
        windows that still fire in this epoch. The last two parts are empty unless the epoch has several commits.
        """
        slicing, timeline = self._slicing, self._timeline
        seen = timeline.seen_by(elements.timestamps, elements.commits)
        slices = slicing.slices_at(elements.timestamps)
        lasts, passed = slicing.last_windows(slices), slicing.windows_after(seen)
        firsts = slicing.first_windows(slices)
        # This is the rule of `Rules.is_window_late`, expressed in window numbers.
        late = np.flatnonzero(lasts < passed)
        output.counters.elements += elements.total
        output.counters.late += len(late)
        starts, ends = self._bounds(lasts[late])
        output.late.append(
            LateRows(
                rows=late, watermarks=seen[late], starts=starts, ends=ends, with_window=np.ones(len(late), np.bool_)
            )
        )
        strays = (passed > np.maximum(firsts, self._due)) & (lasts >= passed)
        rows = np.arange(len(elements))
        none = np.zeros(len(elements), np.int64)
        if not len(late) and not strays.any():
            return self._accumulated(codes, elements, rows, slices, none), self._nothing(), self._nothing()
        accepted = np.flatnonzero(~strays & (lasts >= passed))
        stray = np.flatnonzero(strays)
        sizes = np.maximum(np.minimum(lasts[stray], self._open - 1) - passed[stray] + 1, 0)
        windows, of = numbers_of(passed[stray], sizes)
        return (
            self._accumulated(codes, elements, accepted, slices[accepted], none[accepted]),
            self._accumulated(codes, elements, stray, slices[stray], none[stray]),
            self._accumulated(codes, elements, stray[of], *self._bounds(windows)),
        )

    def _accumulated(self, codes: Int64s, elements: Elements, rows: Int64s, starts: Int64s, ends: Int64s) -> _Parts:
        """Return the contents of elements, grouped by key and by slice or window."""
        if not len(rows):
            return self._nothing()
        row_codes = rearranged(codes, rows)
        order, firsts = sort_groups(row_codes, starts)
        groups = Groups.of_firsts(firsts)
        first, rows = order[groups.starts], rows[order]
        contents = self._rules.contents.added(elements, rows, groups)
        return _Parts(codes=row_codes[first], starts=starts[first], ends=ends[first], contents=contents)

    def _merged(self, parts: list[_Parts]) -> _Parts:
        """Sort parts by key and bounds, and merge those of the same slice or window."""
        parts = [part for part in parts if len(part)]
        if not parts:
            return self._nothing()
        types = [array.type for array in self._nothing().contents]
        together = _Parts.concat(
            [
                _Parts(
                    codes=part.codes,
                    starts=part.starts,
                    ends=part.ends,
                    contents=[array.cast(kind) for array, kind in zip(part.contents, types, strict=True)],
                )
                for part in parts
            ]
        )
        order = sort_order(together.codes, together.starts, together.ends)
        if (np.diff(order) != 1).any():
            together = together.take(order)
        if len(parts) == 1:
            return together
        same = Groups.of_firsts(begins(together.codes, together.starts, together.ends))
        return _Parts(
            codes=together.codes[same.starts],
            starts=together.starts[same.starts],
            ends=together.ends[same.starts],
            contents=self._rules.contents.merge(together.contents, same),
        )

    def _of_slices(self, slices: _Parts) -> _Parts:
        """Return the contents of the windows that fire in the epoch, merged from their slices."""
        slicing = self._slicing
        firsts = np.maximum(slicing.first_windows(slices.starts), self._due)
        rows = np.flatnonzero(firsts < self._open)
        if not len(rows):
            return self._nothing()
        slices, firsts = slices.take(rows) if len(rows) < len(slices) else slices, firsts[rows]
        lasts = np.minimum(slicing.last_windows(slices.starts), self._open - 1)
        opens = begins(slices.codes)
        # Both bounds increase, so windows without an earlier slice begin with this slice.
        before, after = np.empty_like(lasts), np.empty_like(lasts)
        before[1:], after[:-1] = lasts[:-1], firsts[1:]
        before[opens] = firsts[opens] - 1
        after[np.append(opens[1:], True)] = self._open
        opened = np.maximum(firsts, before + 1)
        windows, first_rows = numbers_of(opened, np.maximum(lasts - opened + 1, 0))
        _, last_rows = numbers_of(firsts, np.maximum(np.minimum(lasts, after - 1) - firsts + 1, 0))
        blocks = np.cumsum(begins(slices.codes, slices.starts // slicing.slices_of_a_window), dtype=np.int64)
        starts, ends = self._bounds(windows)
        return _Parts(
            codes=slices.codes[first_rows],
            starts=starts,
            ends=ends,
            contents=merged_ranges(self._rules.contents, slices.contents, first_rows, last_rows, blocks),
        )

    def _fire(self, fired: _Parts, output: KernelOutput) -> None:
        rows = len(fired)
        output.counters.fired[Timing.ON_TIME] += rows
        output.panes.append(
            PaneRows(
                codes=fired.codes,
                starts=fired.starts,
                ends=fired.ends,
                panes=np.zeros(rows, np.int64),
                timings=np.full(rows, ON_TIME),
                is_retraction=np.zeros(rows, np.int64),
                watermarks=self._timeline.firings(fired.ends - 1),
                results=self._rules.contents.results(fired.contents),
            )
        )

    def _keep(self, slices: _Parts, output: KernelOutput) -> None:
        slicing, rows = self._slicing, len(slices)
        if not rows:
            return
        starts = slicing.slice_starts(slices.starts)
        nexts = np.maximum(slicing.first_windows(slices.starts), self._open)
        output.state.append(
            CodedRows(
                slices.codes,
                self._rules.state.rows(
                    starts,
                    starts + slicing.width,
                    self._bounds(nexts),
                    self._timers(nexts, slicing.last_windows(slices.starts)),
                    slices.contents,
                    np.ones(rows, np.bool_),
                    np.zeros(rows, np.int64),
                    pa.nulls(rows, pa.string()),
                    None,
                    namespace=SLICE,
                ),
            )
        )

    def _timers(self, firsts: Int64s, lasts: Int64s) -> pa.Array:
        """Return the last milliseconds of the first two windows of each range."""
        ends = self._bounds(firsts)[1] - 1
        return timer_lists((ends, np.ones(len(ends), np.bool_)), (ends + self._slicing.grid.slide, lasts > firsts))

    def _count(self, slices: _Parts, windows: InFlight, first: int) -> int:
        """Return the number of windows from `first` on that have a slice or a row."""
        slicing = self._slicing
        numbers = (windows.starts - slicing.grid.offset) // slicing.grid.slide
        starts, ends = self._bounds(numbers)
        # A window of another grid is in no slice.
        of_grid = (starts == windows.starts) & (ends == windows.ends)
        firsts = np.maximum(slicing.first_windows(slices.starts), first)
        return int(np.count_nonzero(~of_grid)) + count_windows(
            np.concatenate([slices.codes, windows.codes[of_grid]]),
            np.concatenate([firsts, numbers[of_grid]]),
            np.concatenate([slicing.last_windows(slices.starts), numbers[of_grid]]),
        )

    def _bounds(self, windows: Int64s) -> tuple[Int64s, Int64s]:
        """Return the start and end of each window, int64 epoch milliseconds."""
        starts = self._slicing.window_starts(windows)
        return starts, starts + self._slicing.grid.size

    def _nothing(self) -> _Parts:
        return _Parts.empty(contents=self._rules.contents.empty())


_WORTH = 6
"""Number of merges per row that running merges take at most. With fewer rows to merge, each range is merged by itself.
"""


def merged_ranges(
    functions: ColumnarContents, contents: Contents, firsts: Int64s, lasts: Int64s, blocks: Int64s
) -> Contents:
    """Return the merged contents of each range of rows.

    Rows are in `blocks` as long as the longest range. So a range is the end of one block followed by the beginning of
    the next, or only one of the two. However long a range is, merging two running aggregates gives its contents. This
    is the two-stack queue with an aggregate, computed for all ranges at a time. Nothing is ever subtracted, so minima
    and sketches work like sums. `lasts` are inclusive.
    """
    sizes = lasts - firsts + 1
    rows = len(blocks)
    if int(sizes.sum()) <= _WORTH * rows:
        of = Groups.of_sizes(sizes)
        return functions.merge(taken(contents, np.arange(of.rows) - (of.starts - firsts)[of.ids]), of)
    of_blocks = Groups.of_firsts(begins(blocks))
    from_begin = _running(functions, contents, of_blocks)
    backwards = np.arange(rows)[::-1]
    until_end = taken(
        _running(functions, taken(contents, backwards), Groups.of_sizes(of_blocks.sizes[::-1])), backwards
    )
    one = of_blocks.ids[firsts] == of_blocks.ids[lasts]
    is_end = one & (lasts == of_blocks.lasts[of_blocks.ids[lasts]])
    # Row i of `both` merges a block from row i to its end, and row `rows + i` merges it from its beginning to row i.
    both = joined([until_end, from_begin])
    merged = taken(both, np.where(one & ~is_end, rows + lasts, firsts))
    two = np.flatnonzero(~one)
    if not len(two):
        return merged
    pairs = functions.merged_pairs(taken(merged, two), taken(both, rows + lasts[two]))
    place = np.arange(len(firsts))
    place[two] = len(firsts) + np.arange(len(two))
    return taken(joined([merged, pairs]), place)


def _running(functions: ColumnarContents, contents: Contents, groups: Groups) -> Contents:
    """Merge the contents of each row with those of all earlier rows of its group.

    Pairs of rows are merged first; the running merges of the pairs then give those of the rows. This takes two merges
    per row, in few steps.
    """
    sizes = groups.sizes
    if not len(sizes) or int(sizes.max()) == 1:
        return contents
    place = np.arange(groups.rows) - groups.starts[groups.ids]
    seconds = np.flatnonzero(place % 2 == 1)
    pairs = functions.merged_pairs(taken(contents, seconds - 1), taken(contents, seconds))
    halves = sizes // 2
    pairs = _running(functions, pairs, Groups.of_sizes(halves[halves > 0]))
    thirds = np.flatnonzero((place % 2 == 0) & (place > 0))
    pair_of = np.cumsum(place % 2) - 1
    after = functions.merged_pairs(taken(pairs, pair_of[thirds - 1]), taken(contents, thirds))
    source = np.arange(groups.rows)
    source[seconds] = groups.rows + np.arange(len(seconds))
    source[thirds] = groups.rows + len(seconds) + np.arange(len(thirds))
    return taken(joined([contents, pairs, after]), source)

"""Window slices: the spans of time that sliding windows share, so that each element is kept once.

All windows of a grid begin and end at multiples of the slices' width. So a window is a run of slices, and its result is
the merge of their contents. The state has a row for each key and slice instead of one for each key and window. Source:
the slices of Flink's SQL runtime (`SliceAssigners`, `SliceSharedAssigner`).

A state row of a slice (namespace `slice`) shows which open windows it belongs to: `state_window_start` and
`state_window_end` are the first of them, and `event_time_timers` has the last millisecond of the first and, if there is
one, of the second. The others follow at the same distance, up to the last window that begins at or before the slice. So
a reader does not need the definition of the pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.aggregates.bound import AggregateColumns
from tidegate.windowing.aggregates.vectorised import Bools, Int64s
from tidegate.windowing.assigners.arrays import WindowGrid
from tidegate.windowing.columnar.key_codes import encode_keys
from tidegate.windowing.columnar.order import begins, numbers_of, running_max, sort_order
from tidegate.windowing.columnar.state import millis_of, timer_lists
from tidegate.windowing.compute import Compute, Windows
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.state.rows import SLICE, TIME, WINDOW
from tidegate.windowing.time import Millis, show_duration

_LARGEST = 2**60
"""Largest window size, in milliseconds, for which sums of times fit int64."""
_FURTHEST = 2**62


@dataclass(frozen=True, slots=True)
class Slicing:
    """The slices of a grid of windows. Windows and slices are numbered in the order of time.

    Window k is `[k * slide + offset, k * slide + offset + size)`, and slice q is
    `[q * width + offset, (q + 1) * width + offset)`.
    """

    grid: WindowGrid

    @property
    def width(self) -> Millis:
        """Length of a slice, milliseconds."""
        return self.grid.slot

    @property
    def slices_of_a_window(self) -> int:
        """Number of slices of a window."""
        return self.grid.size // self.width

    def slices_at(self, times: Int64s) -> Int64s:
        """Return the number of the slice that contains each time, int64 epoch milliseconds."""
        return (times - self.grid.offset) // self.width

    def slice_starts(self, slices: Int64s) -> Int64s:
        """Return the start of each slice, int64 epoch milliseconds."""
        return slices * self.width + self.grid.offset

    def window_starts(self, windows: Int64s) -> Int64s:
        """Return the start of each window, int64 epoch milliseconds."""
        return windows * self.grid.slide + self.grid.offset

    def first_windows(self, slices: Int64s) -> Int64s:
        """Return the first window of each slice."""
        return -((self.slices_of_a_window - 1 - slices) // (self.grid.slide // self.width))

    def last_windows(self, slices: Int64s) -> Int64s:
        """Return the last window of each slice."""
        return slices // (self.grid.slide // self.width)

    def windows_after(self, watermarks: Int64s) -> Int64s:
        """Return, for each watermark, the first window whose last millisecond is larger."""
        # The minimum and maximum of time are far outside all windows.
        passed = np.clip(watermarks, -_FURTHEST, _FURTHEST) + 1 - self.grid.offset - self.grid.size
        return passed // self.grid.slide + 1


def slicing_of(compute: Compute) -> Slicing | str | None:
    """Return the slices of a computation that the columnar operator runs.

    If windows overlap but have no slices, return the reason. Return None for other computations, whose elements are in
    at most one window or whose windows form no grid.
    """
    if not isinstance(compute, Windows):
        return None
    assigner, trigger = compute.assigner, compute.effective_trigger
    grid = assigner.window_grid
    if grid is None or not assigner.is_event_time or assigner.merges:
        return None
    if grid.step is not None:
        return "cumulative windows keep their own contents"
    if grid.slide >= grid.size:
        return None
    if getattr(assigner.array_assignment, "__self__", None) != grid:
        return f"{type(assigner).__name__} does not put each element into all windows of its grid"
    if trigger.array_firing is None or trigger.array_firing.interval is not None:
        return f"trigger {trigger!r} also fires before the end of a window"
    if compute.lateness:
        return "late elements within the allowed lateness fire a window again"
    slicing = Slicing(grid)
    if slicing.slices_of_a_window > 2 * grid.windows_of_an_element:
        return (
            f"the common divisor of size and slide is only {show_duration(slicing.width)}, so a key would have more "
            "slices than windows"
        )
    if grid.size > _LARGEST:
        return "the windows reach the end of time"
    return _merges_inexactly(compute) or slicing


def _merges_inexactly(windows: Windows) -> str | None:
    """Return the reason why merged slices might differ from the aggregate of all elements, or None if they can't."""
    if windows.aggregate is None or windows.process is not None:
        return "only aggregates can be merged"
    bound = windows.bound_aggregate
    if not isinstance(bound, AggregateColumns):
        return None if bound.merges_exactly else f"{type(bound).__name__} does not declare merges_exactly = True"
    for name, function in zip(bound.names, bound.functions, strict=True):
        if not function.merges_exactly:
            return f"aggregate {name!r} might differ in its last digits if parts of a window were merged"
    return None


@dataclass(frozen=True)
class OpenWindows:
    """The open windows of slice rows: `count` windows, the first at `[starts, ends)`, `step` milliseconds apart."""

    starts: Int64s
    ends: Int64s
    steps: Int64s
    counts: Int64s

    @classmethod
    def of(cls, rows: pa.Table) -> OpenWindows:
        starts, ends = millis_of(rows, "state_window_start"), millis_of(rows, "state_window_end")
        timers = rows["event_time_timers"].combine_chunks()
        sizes = pc.list_value_length(timers).to_numpy(zero_copy_only=False)
        times = pc.list_flatten(timers).to_numpy(zero_copy_only=False)
        firsts = np.cumsum(sizes) - sizes
        several = sizes > 1
        steps = np.ones(len(rows), np.int64)
        steps[several] = times[firsts[several] + 1] - times[firsts[several]]
        further = np.where(several, (millis_of(rows, "window_start") - starts) // steps, 0)
        return cls(starts, ends, steps, further + 1)


def windows_of_rows(rows: pa.Table) -> Int64s:
    """Return the number of open windows that each state row belongs to: 1, or more for slices."""
    counts, slices = np.ones(len(rows), np.int64), are_slices(rows)
    if slices.any():
        counts[slices] = OpenWindows.of(rows.filter(pa.array(slices))).counts
    return counts


def as_windows(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return state rows with slices replaced by rows of the open windows that they belong to.

    A window that already has a row gets no second one. New rows have bounds and timers, and nulls in the contents
    columns: only an operator can merge contents. Of the two rows that a window of a join may have, one stays.
    """
    flags = are_slices(rows)
    if not flags.any():
        return _of_either_input(rows, key)
    others, slices = rows.filter(pa.array(~flags)), rows.filter(pa.array(flags))
    found = OpenWindows.of(slices)
    turn, places = numbers_of(np.zeros_like(found.counts), found.counts)
    shift = turn * found.steps[places]
    of_others, of_slices = _codes(key, others, slices)
    codes = np.concatenate([of_others, of_slices[places]])
    starts = np.concatenate([millis_of(others, "window_start"), found.starts[places] + shift])
    ends = np.concatenate([millis_of(others, "window_end"), found.ends[places] + shift])
    # The row of a window precedes those that its slices add.
    firsts = _first_of_each(codes, starts, ends)
    further = firsts[firsts >= len(others)]
    windows = slices.take(pa.array(places[further - len(others)]))
    return pa.concat_tables([others, _of_windows(windows, starts[further], ends[further], key)])


def open_windows(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the rows of open windows among state rows; see `as_windows`."""
    rows = as_windows(rows, key)
    return rows.filter(pc.or_(pc.and_(pc.equal(rows["namespace"], WINDOW), rows["in_flight"]), _are_of_join(rows)))


def _are_of_join(rows: pa.Table) -> pa.ChunkedArray:
    """Return a flag for each state row: whether it has the elements of one input in a window of a join."""
    return pc.and_(pc.equal(rows["namespace"], WINDOW), pc.is_valid(rows["side"]))


def _of_either_input(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return state rows with one row for each window of a join, also if both inputs have elements in it."""
    # Rows that are prepared for users have column `side` only for joins.
    if "side" not in rows.column_names or not pc.any(_are_of_join(rows)).as_py():
        return rows
    (codes,) = _codes(key, rows)
    return rows.take(pa.array(_first_of_each(codes, millis_of(rows, "window_start"), millis_of(rows, "window_end"))))


def _codes(key: Sequence[str], *parts: pa.Table) -> Sequence[Int64s]:
    """Return a number for the key of each row; equal keys have the same number in all parts."""
    schema = KeySchema(tuple(key), tuple(parts[0].schema.field(name).type for name in key))
    return encode_keys(schema, *(({name: part[name] for name in key}, len(part)) for part in parts)).codes


def _first_of_each(*columns: Int64s) -> Int64s:
    """Return the first row of each group of equal rows, in the order of the rows."""
    order = sort_order(*columns)
    return np.sort(order[begins(*(column[order] for column in columns))])


def _of_windows(rows: pa.Table, starts: Int64s, ends: Int64s, key: Sequence[str]) -> pa.Table:
    """Return copies of slice rows as rows of windows."""
    bounds = {"start": pa.array(starts).cast(TIME), "end": pa.array(ends).cast(TIME)}
    columns = []
    for field in rows.schema:
        if field.name in (*key, "key_group", "in_flight", "filled", "pane", "missing"):
            columns.append(rows[field.name])
        elif field.name == "namespace":
            columns.append(pa.repeat(pa.scalar(WINDOW), len(rows)).cast(field.type))
        elif field.name.removeprefix("state_") in ("window_start", "window_end"):
            columns.append(bounds[field.name.rpartition("_")[2]].cast(field.type))
        elif field.name == "event_time_timers":
            columns.append(timer_lists((ends - 1, np.ones(len(ends), np.bool_))).cast(field.type))
        else:
            columns.append(pa.nulls(len(rows), field.type))
    return pa.table(columns, schema=rows.schema)


def count_windows(codes: Int64s, firsts: Int64s, lasts: Int64s) -> int:
    """Return the number of distinct windows in ranges of windows, each of one key; empty ranges are ignored."""
    real = np.flatnonzero(firsts <= lasts)
    order = real[sort_order(codes[real], firsts[real])]
    codes, firsts, lasts = codes[order], firsts[order], lasts[order]
    if not len(order):
        return 0
    opens = begins(codes)
    through = running_max(lasts, np.cumsum(opens) - 1)
    before = np.empty_like(through)
    before[1:] = through[:-1]
    before[opens] = firsts[opens] - 1
    return int(np.maximum(lasts - np.maximum(firsts - 1, before), 0).sum())


def are_slices(rows: pa.Table) -> Bools:
    """Return a flag for each state row: whether it is a slice."""
    return np.asarray(pc.equal(rows["namespace"], SLICE).to_numpy(), np.bool_)

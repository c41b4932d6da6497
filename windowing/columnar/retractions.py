"""Retractions of aligned windows: each new pane follows the retraction of the previous one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.aggregates.vectorised import Int64s
from tidegate.windowing.columnar.kernel import KernelOutput, Rules
from tidegate.windowing.columnar.order import begins
from tidegate.windowing.columnar.panes import TIMINGS, PaneRows
from tidegate.windowing.columnar.state import InFlight


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
            identity_starts=rows.starts[earlier],
            identity_ends=rows.ends[earlier],
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
        starts, ends = rows.starts[opening], rows.ends[opening]
        timings = pa.array(TIMINGS)
        parts.append(
            PaneRows(
                codes=rows.codes[opening],
                starts=starts,
                ends=ends,
                identity_starts=starts,
                identity_ends=ends,
                panes=entries["pane"].to_numpy().astype(np.int64),
                timings=pc.index_in(entries["timing"], timings).to_numpy().astype(np.int64),
                is_retraction=np.ones(len(opening), np.int64),
                watermarks=rows.watermarks[opening],
                results=entries["value"].flatten(),
            )
        )
    output.counters.withdrawn += sum(len(part) for part in parts)
    output.panes.extend(parts)


def emitted_panes(rows: PaneRows, newest: Int64s, states: Int64s, in_flight: InFlight, rules: Rules) -> pa.Array:
    """Return the newest pane of each window, which its next retraction repeats; null if it has none.

    `newest` has the index of each window's newest pane in `rows`, `states` that of each window among those in flight;
    or -1.
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

"""Table `results`: its columns, and the selection of the latest and the final results.

Windows emit panes, and a later pane may retract earlier ones. Process functions and joins emit single rows, which are
never retracted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.columns import TIMESTAMP, column
from tidegate.pipelines.definition.row_sets import one_of_each
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.time import MAX_TIMESTAMP, Millis
from tidegate.windowing.timestamps import epoch_millis

NAME = "results"

_MANY, _MOST_BYTES = 200_000, 1 << 30
"""Smallest number of rows that is worth sorting, and largest size in bytes that can be sorted in an epoch's memory.
"""

_MADE = (
    column("timeline", pa.int64(), "the timeline that it belongs to; a restore begins a new one", False),
    column("epoch", pa.int64(), "the epoch that emitted it", False),
    column("emitted_at", TIMESTAMP, "clock of the driver in that epoch", False),
    column("stale", pa.bool_(), "whether an earlier interval has been run again since", False),
)

LEADING = (
    column(
        "window_id", pa.int64(), "a hash that distinguishes the windows of a key; fixed while a session grows", False
    ),
    column("window_start", TIMESTAMP, "first millisecond; null for the global window"),
    column("window_end", TIMESTAMP, "end, exclusive; null for the global window"),
    column("pane", pa.int32(), "number of the firing, from 0; skipped only after a merge", False),
    column("timing", pa.string(), "early, on_time or late", False),
    column("op", pa.string(), "+ for a result, - where that pane and every pane before it are retracted", False),
    column("final_at", TIMESTAMP, "the window is final once final_through of table epochs reaches this time"),
    column(
        "watermark", TIMESTAMP, "watermark at the firing; null before the first watermark and after the end of input"
    ),
    *_MADE,
)
"""Columns that describe a pane of a window. They come between the key columns and the result."""

ELEMENT_LEADING = (
    column(
        "event_time", TIMESTAMP, "event time of the element or timer that produced it; null for a processing-time timer"
    ),
    column("output", pa.string(), "the side output it was sent to; null for a result"),
    *_MADE,
)
"""Columns that describe a row of a process function or a join. They come between the key columns and the result."""

RESERVED = frozenset(field.name for field in LEADING)
ELEMENT_RESERVED = frozenset(field.name for field in ELEMENT_LEADING)


KIND = "tidegate.kind"
"""Property of the table that says what its rows are, `PANES` or `ELEMENTS`. It is metadata of the schema in Arrow."""
PANES, ELEMENTS = "panes", "elements"


def schema(key: KeySchema, results: pa.StructType, leading: Sequence[pa.Field] = LEADING) -> pa.Schema:
    """Return the columns and the kind of the table: the key columns, the leading columns, then the results."""
    keys = [pa.field(name, kind) for name, kind in zip(key.names, key.types, strict=True)]
    return of_kind(pa.schema([*keys, *leading, *results]), has_panes=leading is LEADING)


def of_kind(rows: pa.Schema, *, has_panes: bool) -> pa.Schema:
    """Return a schema of the table that says whether its rows are panes of windows."""
    return rows.with_metadata({KIND: PANES if has_panes else ELEMENTS})


def has_panes(rows: pa.Schema) -> bool:
    """Return True if rows with the schema of the table are panes of windows."""
    return bool(rows.metadata[KIND.encode()] == PANES.encode())


def time_column(rows: pa.Schema) -> str:
    """Return the column whose time determines the event-time partition of a result."""
    return "window_start" if has_panes(rows) else "event_time"


def by_window(rows: pa.Table) -> pa.Table:
    """Sort the rows by the start of their windows if there are many; return a few rows unchanged.

    After an epoch that caught up on a long period, a query of a short period then reads only a part of the file, which
    is also smaller.
    """
    if len(rows) < _MANY or rows.nbytes > _MOST_BYTES or not has_panes(rows.schema):
        return rows
    return rows.take(pc.array_sort_indices(rows["window_start"].combine_chunks()))


ORDER = ("epoch", "pane", "op")
"""Columns by which the rows of a window are ordered, oldest first.

A window that was retracted and reappears in a later epoch begins again with pane 0. Within an epoch, the retraction of
a pane (`-` sorts after `+`) is newer than the pane.
"""


def latest(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Return the newest pane of each window, without stale rows and retracted windows.

    This is `queries.latest` for rows in memory. From rows that are not panes, only stale ones are removed.
    """
    return newest(rows.filter(pc.invert(rows["stale"])), key)


def newest(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the newest unretracted pane of each window; the rows must not include stale ones."""
    if not has_panes(rows.schema):
        return rows
    by = [*key, "window_id"]
    ordered = rows.take(pc.sort_indices(rows, [(name, "ascending") for name in ORDER]))
    numbers = pa.array(range(len(rows)), pa.int64())
    kept = ordered.take(one_of_each(ordered.select(by), numbers, "max"))
    return kept.filter(pc.equal(kept["op"], "+"))


def unretracted(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Return every pane that was not retracted, for windows whose panes each hold only a part of the contents."""
    rows = rows.filter(pc.invert(rows["stale"]))
    panes, retractions = (rows.filter(pc.equal(rows["op"], op)) for op in "+-")
    by = [*key, "window_id"]
    last: dict[tuple[Any, ...], tuple[int, int]] = {}
    for row in retractions.select([*by, "epoch", "pane"]).to_pylist():
        window = tuple(row[name] for name in by)
        last[window] = max((row["epoch"], row["pane"]), last.get(window, (0, -1)))
    touched = pc.is_in(panes["window_id"], value_set=pa.array([window[-1] for window in last], pa.int64()))
    doubtful = panes.filter(touched)
    counts = [
        (row["epoch"], row["pane"]) > last.get(tuple(row[name] for name in by), (0, -1)) for row in doubtful.to_pylist()
    ]
    return pa.concat_tables([panes.filter(pc.invert(touched)), doubtful.filter(pa.array(counts, pa.bool_()))])


def current(epoch: int) -> pc.Expression:
    """Return the condition that a row of a published table belongs to an epoch or an earlier one, and is not stale."""
    return (pc.field("epoch") <= epoch) & ~pc.field("stale")


def are_final(rows: pa.Table, through: Millis) -> npt.NDArray[np.bool_]:
    """Return a flag for each pane: whether its window can no longer change.

    Args:
        rows: panes of windows.
        through: the watermark, or the last time that the clock has reached, int64 epoch milliseconds; `MAX_TIMESTAMP`
            after the end of input, when every window is final.
    """
    if through == MAX_TIMESTAMP:
        return np.ones(len(rows), np.bool_)
    return np.asarray(pc.less_equal(epoch_millis(rows["final_at"]), through).fill_null(False).to_numpy())


def final(rows: pa.Table, through: Millis) -> pa.Table:
    """Return those of the latest rows that can no longer change; `through` is as in `are_final`."""
    return rows.filter(pa.array(are_final(rows, through))) if has_panes(rows.schema) else rows

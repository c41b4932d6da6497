"""Table `results`: every pane of every window, and which of them hold now and which are final.

Process functions and joins put out rows that stand for themselves: no panes, and nothing is withdrawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.tables.columns import TIMESTAMP, column
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.time import MAX_TIMESTAMP, Millis
from tidegate.windowing.timestamps import epoch_millis

NAME = "results"

_MADE = (
    column("timeline", pa.int64(), "which line of snapshots it belongs to; a restore begins a new one", False),
    column("epoch", pa.int64(), "the epoch that put it out", False),
    column("emitted_at", TIMESTAMP, "clock of the driver in that epoch", False),
    column("stale", pa.bool_(), "whether an interval before it was run again since", False),
)

LEADING = (
    column("window_id", pa.int64(), "identifies the window of its key; stays while a session grows", False),
    column("window_start", TIMESTAMP, "first millisecond; null for the global window"),
    column("window_end", TIMESTAMP, "end, not included; null for the global window"),
    column("pane", pa.int32(), "number of the firing, from 0, without gaps", False),
    column("timing", pa.string(), "early, on_time or late", False),
    column("op", pa.string(), "+ for a result, - where that pane and every one before it is withdrawn", False),
    column("final_at", TIMESTAMP, "when the watermark reaches this, nothing can change the window any more"),
    column("watermark", TIMESTAMP, "watermark at the firing; null before the first and after the last"),
    *_MADE,
)
"""What describes a pane of a window."""

ELEMENT_LEADING = (
    column("event_time", TIMESTAMP, "of the element or timer it came of; null for a timer in processing time"),
    column("output", pa.string(), "the side output it was sent to; null for a result"),
    *_MADE,
)
"""What describes a row that a process function or a join put out."""

RESERVED = frozenset(field.name for field in LEADING)
ELEMENT_RESERVED = frozenset(field.name for field in ELEMENT_LEADING)


def schema(key: KeySchema, results: pa.StructType, leading: Sequence[pa.Field] = LEADING) -> pa.Schema:
    """Key columns, what describes the row, then the results."""
    keys = [pa.field(name, kind) for name, kind in zip(key.names, key.types, strict=True)]
    return pa.schema([*keys, *leading, *results])


def has_panes(rows: pa.Schema) -> bool:
    """Whether rows of these columns are panes of windows."""
    return "pane" in rows.names


def latest(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """What `queries.latest` gives, of rows in memory: the newest pane of each window that is not withdrawn.

    Rows that are no panes hold as long as they are not stale.
    """
    rows = rows.filter(pc.invert(rows["stale"]))
    if not has_panes(rows.schema):
        return rows
    by = [*key, "window_id"]
    # A withdrawal counts as newer than the pane it takes back.
    order = pc.add(pc.multiply(rows["pane"].cast(pa.int64()), 2), pc.equal(rows["op"], "-").cast(pa.int64()))
    ordered = rows.take(pc.sort_indices(order))
    numbered = ordered.select(by).append_column("__row", pa.array(range(len(rows)), pa.int64()))
    # Groups, unlike joins, take a null in the key for a value.
    newest = numbered.group_by(by, use_threads=False).aggregate([("__row", "max")])["__row_max"]
    kept = ordered.take(newest)
    return kept.filter(pc.equal(kept["op"], "+"))


def standing(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """Every pane of a window that was not withdrawn, where each holds a part of its contents."""
    rows = rows.filter(pc.invert(rows["stale"]))
    panes, withdrawals = (rows.filter(pc.equal(rows["op"], op)) for op in "+-")
    by = [*key, "window_id"]
    last: dict[tuple[Any, ...], int] = {}
    for row in withdrawals.select([*by, "pane"]).to_pylist():
        window = tuple(row[name] for name in by)
        last[window] = max(row["pane"], last.get(window, -1))
    touched = pc.is_in(panes["window_id"], value_set=pa.array([window[-1] for window in last], pa.int64()))
    doubtful = panes.filter(touched)
    stands = [row["pane"] > last.get(tuple(row[name] for name in by), -1) for row in doubtful.to_pylist()]
    return pa.concat_tables([panes.filter(pc.invert(touched)), doubtful.filter(pa.array(stands, pa.bool_()))])


def final(rows: pa.Table, watermark: Millis) -> pa.Table:
    """Of rows that are the latest, those that nothing can change any more at a watermark."""
    if watermark == MAX_TIMESTAMP or not has_panes(rows.schema):
        return rows
    final_at = epoch_millis(rows["final_at"])
    return rows.filter(pc.less_equal(final_at, watermark))

"""Table `results`: every pane of every window, with the queries for what holds now and what is final."""

from __future__ import annotations

import pyarrow as pa

from pipelines.tables.columns import TIMESTAMP, column
from windowing.keys import KeySchema

NAME = "results"

LEADING = (
    column("window_id", pa.int64(), "identifies the window of its key; stays while a session grows", False),
    column("window_start", TIMESTAMP, "first millisecond; null for the global window"),
    column("window_end", TIMESTAMP, "end, not included; null for the global window"),
    column("pane", pa.int32(), "number of the firing, from 0, without gaps", False),
    column("timing", pa.string(), "early, on_time or late", False),
    column("op", pa.string(), "+ for a result, - where that pane and every one before it is withdrawn", False),
    column("final_at", TIMESTAMP, "when the watermark reaches this, nothing can change the window any more"),
    column("watermark", TIMESTAMP, "watermark at the firing; null before the first and after the last"),
    column("timeline", pa.int64(), "which line of snapshots it belongs to; a restore begins a new one", False),
    column("epoch", pa.int64(), "the epoch that put it out", False),
    column("emitted_at", TIMESTAMP, "clock of the driver in that epoch", False),
    column("stale", pa.bool_(), "whether an interval before it was run again since", False),
)

RESERVED = frozenset(field.name for field in LEADING)


def schema(key: KeySchema, results: pa.StructType) -> pa.Schema:
    """Key columns, what describes the pane, then the results."""
    keys = [pa.field(name, kind) for name, kind in zip(key.names, key.types, strict=True)]
    return pa.schema([*keys, *LEADING, *results])


def latest_query(table: str, key: tuple[str, ...]) -> str:
    """SQL for the newest pane of each window that is not withdrawn, stale rows left out."""
    by = ", ".join(f"`{name}`" for name in (*key, "window_id"))
    return (
        f"SELECT * EXCEPT (newest) FROM (SELECT *, max_by(struct(pane, op), struct(pane, epoch, op = '-')) OVER "
        f"(PARTITION BY {by}) AS newest FROM {table} WHERE NOT stale) "
        f"WHERE op = '+' AND newest.op = '+' AND pane = newest.pane"
    )


def final_query(table: str, key: tuple[str, ...], watermark: str) -> str:
    """SQL for the windows that nothing can change any more.

    Args:
        table: how the query names the table.
        key: the key columns.
        watermark: the snapshot's watermark as a timestamp literal's text.
    """
    return f"SELECT * FROM ({latest_query(table, key)}) WHERE final_at <= TIMESTAMP '{watermark}'"

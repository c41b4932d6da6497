"""Table `state`: the operator's state, one row for each key and namespace, and the manifest.

Each version of this table that an epoch committed is a snapshot. The manifest is a separate row with key group -1, so
it has the same table version as the state and survives log cleanup.
"""

from __future__ import annotations

import pyarrow as pa

from tidegate.pipelines.definition.columns import TIMESTAMP, column, to_delta
from tidegate.windowing.state.rows import StateSchema
from tidegate.windowing.timestamps import in_schema

NAME = "state"

MANIFEST_KEY_GROUP = -1

MANIFEST = column("manifest", pa.string(), "JSON, in the one row with key group -1")

DELTA_ROW, DELTA_GONE = 1, 0
"""Marks of the rows of a delta: an ordinary row, or a record that its key no longer has rows."""

MARK = column(
    "delta_mark", pa.int32(), "null: row of a base; 1: row of a delta; 0: mark that its key no longer has rows"
)
HASH = column("delta_hash", pa.int64(), "xxhash64(key columns)")
DUE = column("delta_due", pa.int64(), "the first of event_time_timers")
DUE_BY_CLOCK = column("delta_due_by_clock", pa.int64(), "the first of processing_time_timers")
DELTAS = (MARK, HASH, DUE, DUE_BY_CLOCK)
"""Columns that distinguish rows of bases and deltas, and show which ones an epoch needs.

They are null in a base that is always read whole.
"""

BOUNDED = ("key_group", MARK.name, HASH.name)
"""Columns whose minimum and maximum are in the statistics of the files."""

_TIMES = ("window_start", "window_end", "state_window_start", "state_window_end")
_MEANINGS = {
    "key_group": "pmod(xxhash64(key columns), max_parallelism); -1 for the manifest",
    "namespace": "window, slice, discarded, key or bucket",
    "side": "the input, if there are two",
    "window_start": "start of the window, or time of a join's elements; null for the global window",
    "state_window_start": "the window at its first firing, from which its id is computed; for a slice, its next window",
    "in_flight": "false if only timers of a window are left",
    "event_time_timers": "epoch milliseconds",
    "processing_time_timers": "epoch milliseconds",
    "filled": "whether the window holds contents",
    "missing": "aggregates that were added after the window opened",
    "pane": "number of the next pane",
    "late_firing": "a late firing that waits for the end of its source commit",
    "emitted": "panes that a retraction must repeat",
    "unseen_elements": "elements since the window last fired",
    "manifest": "",
}


def schema(state: StateSchema) -> pa.Schema:
    """Return the columns of an operator's state rows, in Delta's types, and those of the manifest and of deltas."""
    rows = state.columns
    fields = [
        pa.field(
            field.name,
            TIMESTAMP if field.name in _TIMES else to_delta(field.type),
            field.name != "key_group",
            {"comment": _MEANINGS[field.name]} if _MEANINGS.get(field.name) else None,
        )
        for field in rows
    ]
    return pa.schema([*fields, MANIFEST, *DELTAS])


def row_columns(columns: pa.Schema) -> list[str]:
    """Return the names of the columns of state rows: all but the manifest and those of deltas."""
    ours = {MANIFEST.name, *(field.name for field in DELTAS)}
    return [name for name in columns.names if name not in ours]


def operators(rows: pa.Table) -> pa.Table:
    """Return the columns that operators know: all but the manifest and those of deltas."""
    return rows.select(row_columns(rows.schema))


def manifest_row(manifest: str, target: pa.Schema) -> pa.Table:
    """Return the row that holds a manifest."""
    return in_schema(pa.table({"key_group": [MANIFEST_KEY_GROUP], MANIFEST.name: [manifest]}), target)

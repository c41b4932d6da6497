"""Names and types of the columns that the driver adds to a slice's rows for the tasks."""

from __future__ import annotations

import pyarrow as pa

from tidegate.windowing.epochs.elements import KEY_PREFIX as KEY_PREFIX
from tidegate.windowing.epochs.elements import VALUE_PREFIX as VALUE_PREFIX
from tidegate.windowing.time import FIRST_TIME as FIRST_TIME
from tidegate.windowing.time import LAST_TIME as LAST_TIME

OURS = "tidegate:"
"""Prefix of names added to the columns of a source; no column of a source may start with it."""

TIME = f"{OURS}time"
"""Event time, int64 epoch milliseconds."""
STATUS = f"{OURS}status"
"""`ok`, `dropped`, or the rejection reason."""
COMMIT = f"{OURS}commit"
"""Index of the row's source commit within the epoch."""
COUNT = f"{OURS}count"
"""Number of events in a part of a window; events that were not combined into parts lack the column."""
ROW = f"{OURS}row"
"""The source row as a struct if table late or rejects may need it, otherwise null."""
FILE = f"{OURS}file"
"""Number of the row's file within the slice."""
PATH = f"{OURS}path"
"""Path of the row's file, in rows that Spark reads."""
PLACE = f"{OURS}place"
"""Number of the row within its file."""
PACK = "__pack"
"""Events of one shard as an Arrow stream."""
MARKER = "__marker"
"""JSON that names the shard and state files of a task; null on packs."""
SIDE = f"{OURS}side"
"""Input of the row if there are two: `left` or `right`."""
PARTITION = f"{OURS}partition"
"""Name of the row's source partition."""
KEPT = f"{OURS}kept"
"""True for a row that `where` keeps."""
SHARD = "__shard"
"""Number of the row's shard."""

ONLY_PARTITION = ""
"""Name of the only partition of a source without `watermark_by`."""

OK = "ok"
DROPPED = "dropped"
"""Status of a row for which `where` is not true. `OK` and `DROPPED` are the statuses that don't reject a row."""


def key_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which a key column is sent to the tasks: strings and bytes become dictionaries.

    Args:
        kind: type of the column in the source.
    """
    return pa.dictionary(pa.int32(), kind) if pa.types.is_string(kind) or pa.types.is_binary(kind) else kind


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column without its dictionary."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column

"""Names and types of the columns that a slice's rows get on their way to the tasks."""

from __future__ import annotations

import pyarrow as pa

TIME = "__time"
"""Event time, int64 epoch milliseconds."""
STATUS = "__status"
"""`ok`, `dropped`, or the reason of a reject."""
COMMIT = "__commit"
"""Index of the row's source commit within the epoch."""
ROW = "__row"
"""The source row as a struct, where it may be needed for the late or rejects table; else null."""
FILE = "__file"
"""Number of the file that the row was read from, within the slice."""
PLACE = "__place"
"""Number of the row in that file."""
PACK = "__pack"
"""Events of one shard as an Arrow stream."""
MARKER = "__marker"
"""JSON that tells a task its shard and state files; null on packs."""
SIDE = "__side"
"""Which of two inputs the row is of, `left` or `right`."""
SHARD = "__shard"
"""The shard that the row belongs to."""

ONLY_PARTITION = ""
"""Name of the one partition of a source without `watermark_by`."""

OK = "ok"
DROPPED = "dropped"
"""What a row's status is if it is no reason to reject it."""

FIRST_TIME = 0
LAST_TIME = 253_402_300_800_000
"""Epoch milliseconds of 1970 and of the end of 9999: the times that can be used."""

KEY_PREFIX = "key_"
VALUE_PREFIX = "value_"


def key_type(kind: pa.DataType) -> pa.DataType:
    """The type in which a key column travels, wherever it comes from: text and bytes as dictionaries.

    Args:
        kind: of the column in the source.
    """
    return pa.dictionary(pa.int32(), kind) if pa.types.is_string(kind) or pa.types.is_binary(kind) else kind


def plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column without its dictionary."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column

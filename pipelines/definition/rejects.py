"""Table `rejects`: every row that can't be used, with the reason. No row disappears silently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.column_names import input_fields
from tidegate.pipelines.definition.columns import column

NAME = "rejects"

NULL_KEY = "null_key"
NULL_TIMESTAMP = "null_timestamp"
OUT_OF_RANGE = "timestamp_out_of_range"
BEFORE = "timestamp_before_not_before"
AHEAD = "timestamp_ahead_of_commit"
NULL_GAP = "null_gap"
GAP_OUT_OF_RANGE = "gap_out_of_range"
VALUE_OUT_OF_RANGE = "value_out_of_range"
KEY_TOO_LONG = "key_too_long"
REASONS = (
    NULL_KEY,
    NULL_TIMESTAMP,
    OUT_OF_RANGE,
    BEFORE,
    AHEAD,
    NULL_GAP,
    GAP_OUT_OF_RANGE,
    VALUE_OUT_OF_RANGE,
    KEY_TOO_LONG,
)
"""Reasons for which a rule rejects a row. If several apply, the row gets the first of them."""

USER_CODE = "user_code"
"""Reason of a row for which user code raised an error, with `on_error="reject"`."""

LONGEST_KEY = 2**20
"""Largest size in bytes of a text or binary key column. A key is part of every result and state row of its windows."""
_KEPT_CHARACTERS = 1_000

TRAILING = (
    column("reason", pa.string(), ", ".join((*REASONS, USER_CODE)), False),
    column("error", pa.string(), "type and message of the error that user code raised; null for other reasons", True),
    column("timeline", pa.int64(), "the timeline that it belongs to", False),
    column("epoch", pa.int64(), "the epoch that found it", False),
    column("stale", pa.bool_(), "whether an earlier interval has been run again since", False),
    column("origin", pa.string(), "where the row for which user code raised was read; null for other reasons", True),
)


def rows_of(
    rows: pa.Table,
    reasons: pa.Array | pa.ChunkedArray,
    schema: pa.Schema,
    timeline: int,
    epoch: int,
    errors: Sequence[str] | None = None,
    origins: Sequence[str | None] | None = None,
) -> pa.Table:
    """Return rows for the table.

    Args:
        rows: rows of a source, with the columns of an input.
        reasons: the reason of each row. If it is `key_too_long`, long values of the row are cut.
        schema: columns of the table.
        timeline: the timeline of the epoch.
        epoch: the epoch that found them.
        errors: the error of each row; None if user code raised none.
        origins: the row, file and version of the source from which each row was read; None if user code raised none.
    """
    is_long = pc.equal(reasons, KEY_TOO_LONG)
    if pc.any(is_long).as_py():
        flags = is_long.combine_chunks() if isinstance(is_long, pa.ChunkedArray) else is_long
        rows = pa.table(
            [_cut_where(column.combine_chunks(), flags) for column in rows.columns], names=rows.column_names
        )
    constants = [pa.repeat(value, len(rows)) for value in (timeline, epoch, False)]
    raised, origin = (
        pa.nulls(len(rows), pa.string()) if texts is None else pa.array(texts, pa.string())
        for texts in (errors, origins)
    )
    columns = [*rows.columns, reasons, raised, *constants, origin]
    return pa.table([column.cast(field.type) for field, column in zip(schema, columns, strict=True)], schema=schema)


def _cut_where(column: pa.Array, flags: pa.Array) -> pa.Array:
    return pc.if_else(flags, cut(column), column) if has_text(column.type) else column


def has_text(kind: pa.DataType) -> bool:
    """Return True for types of text and bytes, and for structs with such fields."""
    if pa.types.is_struct(kind):
        return any(has_text(field.type) for field in kind)
    return is_text(kind)


def is_text(kind: pa.DataType) -> bool:
    """Return True for types of text and bytes, whose values may be of any size."""
    return any(
        of(kind) for of in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def cut(column: pa.Array) -> pa.Array:
    """Cut each value that exceeds `LONGEST_KEY` to its first 1,000 characters, followed by its size.

    The fields of structs are cut too. The source still has the whole values.
    """
    if pa.types.is_struct(column.type):
        fields = [cut(part) for part in column.flatten()]
        return pa.StructArray.from_arrays(fields, fields=list(column.type), mask=column.is_null())
    if not is_text(column.type):
        return column
    sizes = pc.binary_length(column)
    if (pc.max(sizes).as_py() or 0) <= LONGEST_KEY:
        return column
    of_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    begins = (pc.utf8_slice_codeunits if of_text else pc.binary_slice)(column, 0, _KEPT_CHARACTERS)
    ends = pc.binary_join_element_wise("... (", pc.cast(sizes, pa.string()), " bytes)", "")
    shown = pc.binary_join_element_wise(begins, ends.cast(column.type), pa.scalar("", column.type))
    return pc.if_else(pc.greater(sizes, LONGEST_KEY), shown, column)


def schema(source: pa.Schema, names: Mapping[str, str] | None = None) -> pa.Schema:
    """Return the columns of the table: those of the input, then the reason and the epoch."""
    return pa.schema([*input_fields(TRAILING, source, names), *TRAILING])

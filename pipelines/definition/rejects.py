"""Table `rejects`: every row that can't be used, with the reason. No row disappears silently."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from tidegate.pipelines.definition.column_names import input_fields
from tidegate.pipelines.definition.columns import column

NAME = "rejects"

NULL_KEY = "null_key"
NULL_TIMESTAMP = "null_timestamp"
OUT_OF_RANGE = "timestamp_out_of_range"
AHEAD = "timestamp_ahead_of_commit"
NULL_GAP = "null_gap"
GAP_OUT_OF_RANGE = "gap_out_of_range"
VALUE_OUT_OF_RANGE = "value_out_of_range"
REASONS = (NULL_KEY, NULL_TIMESTAMP, OUT_OF_RANGE, AHEAD, NULL_GAP, GAP_OUT_OF_RANGE, VALUE_OUT_OF_RANGE)
"""Reasons for which a row is rejected. If several apply, the row gets the first of them."""

TRAILING = (
    column("reason", pa.string(), ", ".join(REASONS), False),
    column("timeline", pa.int64(), "the timeline that it belongs to", False),
    column("epoch", pa.int64(), "the epoch that found it", False),
    column("stale", pa.bool_(), "whether an earlier interval has been run again since", False),
)


def rows_of(
    rows: pa.Table, reasons: pa.Array | pa.ChunkedArray, schema: pa.Schema, timeline: int, epoch: int
) -> pa.Table:
    """Return rows for the table.

    Args:
        rows: rows of a source, with the columns of an input.
        reasons: the reason of each row.
        schema: columns of the table.
        timeline: the timeline of the epoch.
        epoch: the epoch that found them.
    """
    constants = [pa.repeat(value, len(rows)) for value in (timeline, epoch, False)]
    columns = [*rows.columns, reasons, *constants]
    return pa.table([column.cast(field.type) for field, column in zip(schema, columns, strict=True)], schema=schema)


def schema(source: pa.Schema, names: Mapping[str, str] | None = None) -> pa.Schema:
    """Return the columns of the table: those of the input, then the reason and the epoch."""
    return pa.schema([*input_fields(TRAILING, source, names), *TRAILING])

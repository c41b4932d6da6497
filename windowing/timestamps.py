"""Conversion of columns to the types of tables, and between TIMESTAMP and int64 milliseconds since the epoch."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Int64s

TIMESTAMP = pa.timestamp("us", tz="UTC")
"""Type of times in tables."""

MILLISECONDS = pa.timestamp("ms", tz="UTC")
"""Type of times in snapshots."""


def as_type(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Cast a column if necessary. Even a cast that does nothing takes time, and a small epoch has hundreds of them."""
    return column if column.type == kind else column.cast(kind)


def in_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the schema's columns in its types. A column that the rows lack is null."""
    names = set(rows.column_names)
    columns = [
        as_type(rows[field.name], field.type) if field.name in names else pa.nulls(len(rows), field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def epoch_millis(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return TIMESTAMPs as int64 epoch milliseconds. Null stays null.

    Raises:
        ArrowInvalid: a time has a part below one millisecond. The times that this library writes have none.
    """
    return times.cast(MILLISECONDS).cast(pa.int64())


def floored_millis(times: pa.Array | pa.ChunkedArray) -> Int64s:
    """Return a user's TIMESTAMPs as int64 epoch milliseconds, rounded down. The result for null is undefined."""
    micros = times.cast(TIMESTAMP).cast(pa.int64())
    filled = micros.fill_null(0) if micros.null_count else micros
    numbers: Int64s = np.asarray(filled.to_numpy())
    return np.floor_divide(numbers, 1000)


def timestamps_of(millis: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return int64 epoch milliseconds as TIMESTAMPs. Null stays null.

    Raises:
        ArrowInvalid: a time does not fit. Int64 microseconds end in the year 294246.
    """
    return millis.cast(MILLISECONDS).cast(TIMESTAMP)

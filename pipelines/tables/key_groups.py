"""Hash and key group of each row of a table, computed as Spark computes them for the shuffle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.errors import UsageError
from tidegate.windowing.keys import KeySchema, signed64
from tidegate.windowing.type_names import name_of

NULL = "null"
"""Text that stands for a null in a key column."""


def key_groups(rows: pa.Table, key: tuple[str, ...], max_parallelism: int) -> pa.Array:
    """Return the key group of each row, int32. Each distinct key is hashed once.

    Args:
        rows: rows with the key columns, typed as in the pipeline's tables.
        key: names of the key columns.
        max_parallelism: number of key groups.
    """
    schema = key_schema(rows.schema, key)
    return _of_each_key(rows, key, lambda value: schema.key_group_of(value, max_parallelism), pa.int32())


def key_hashes(rows: pa.Table, key: tuple[str, ...]) -> pa.Array:
    """Return Spark's `xxhash64(key columns)` of each row, int64. Each distinct key is hashed once."""
    schema = key_schema(rows.schema, key)
    return _of_each_key(rows, key, lambda value: signed64(schema.hash_of(value)), pa.int64())


def key_schema(schema: pa.Schema, key: tuple[str, ...]) -> KeySchema:
    """Return the key columns of a table with their types."""
    return KeySchema(key, tuple(schema.field(name).type for name in key))


def hash_of_texts(key: KeySchema, texts: Sequence[str]) -> int:
    """Return Spark's hash of a key, int64, from the texts of its parts.

    Raises:
        UsageError: the texts are no key of these columns.
    """
    if len(texts) != len(key.names) or not key.names:
        names = ", ".join(key.names) or "none"
        raise UsageError(f"the key has the columns {names}: give one value for each, in order")
    parts = zip(key.names, key.types, texts, strict=True)
    values = [_value_of_text(name, kind, text).as_py() for name, kind, text in parts]
    return signed64(key.hash_of(key.key_of(values)))


def rows_of_key(rows: pa.Table, names: Sequence[str], texts: Sequence[str]) -> pa.Table:
    """Return the rows of a key; the text `null` stands for a null in its column, too.

    Args:
        rows: rows with the key columns.
        names: names of the key columns.
        texts: texts of their values, in order.

    Raises:
        UsageError: a text is no value of its column.
    """
    for name, text in zip(names, texts, strict=True):
        column = rows[name]
        kind = column.type
        if text == NULL and not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            rows = rows.filter(pc.is_null(column))
        else:
            equal = pc.equal(column, _value_of_text(name, kind, text))
            rows = rows.filter(pc.fill_null(equal, text == NULL))
    return rows


def _value_of_text(name: str, kind: pa.DataType, text: str) -> pa.Scalar:
    """Return the value of a key column from its text.

    Raises:
        UsageError: the text is no value of the column's type.
    """
    try:
        return _parsed(text, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UsageError(
            f"{text!r} is not a value of key column {name!r}, which has type {name_of(kind)}{_example(kind)}"
        ) from error


def _parsed(text: str, kind: pa.DataType) -> pa.Scalar:
    value = pa.scalar(text)
    try:
        return value.cast(kind)
    except pa.ArrowInvalid:
        # A column of moments takes a text without a zone as UTC, as --start and --end do.
        if not pa.types.is_timestamp(kind) or kind.tz is None:
            raise
    return value.cast(pa.timestamp(kind.unit)).cast(pa.int64()).cast(kind)


def _example(kind: pa.DataType) -> str:
    """Return the form of a type's values, for a message."""
    if pa.types.is_integer(kind):
        return f": give a whole number of {kind.bit_width} bits, such as 42"
    if pa.types.is_date(kind):
        return ": give a date, such as 2024-03-01"
    if pa.types.is_timestamp(kind):
        zone = "" if kind.tz is None else "; without a zone it is in UTC"
        return f": give a date-time, such as 2024-03-01T06:00:00{'' if kind.tz is None else 'Z'}{zone}"
    if pa.types.is_boolean(kind):
        return ": give true or false"
    if pa.types.is_decimal(kind):
        whole = kind.precision - kind.scale
        return f": give a number with at most {whole} digits before the decimal point and {kind.scale} after it"
    return ""


def _of_each_key(rows: pa.Table, key: tuple[str, ...], compute: Callable[[Any], int], kind: pa.DataType) -> pa.Array:
    if not key:
        return pa.array([compute(())] * len(rows), kind)
    columns = [rows[name].combine_chunks().dictionary_encode() for name in key]
    if len(columns) == 1:
        computed = [compute(value) for value in columns[0].dictionary.to_pylist()]
        return pc.fill_null(pa.array(computed, kind).take(columns[0].indices), compute(None))
    by_key: dict[tuple[object, ...], int] = {}
    computed = []
    for value in zip(*(column.to_pylist() for column in columns), strict=True):
        if value not in by_key:
            by_key[value] = compute(value)
        computed.append(by_key[value])
    return pa.array(computed, kind)

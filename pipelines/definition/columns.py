"""Columns of tidegate's tables: their types, the description that Delta stores as a comment, and their names in SQL."""

from __future__ import annotations

import re

import pyarrow as pa

from tidegate.windowing.timestamps import TIMESTAMP as TIMESTAMP

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def column(name: str, kind: pa.DataType, meaning: str, nullable: bool = True) -> pa.Field:
    """Return a column with a comment that describes it."""
    return pa.field(name, kind, nullable, {"comment": meaning})


def quoted(name: str) -> str:
    """Return a column's name quoted for Spark's SQL, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def field_in_sql(path: str) -> str:
    """Return the path of a struct field in SQL, such as `place.distance`, quoting only the parts that need it."""
    return ".".join(part if _WORD.fullmatch(part) else quoted(part) for part in path.split("."))


def to_delta(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Delta can store a column: times in UTC microseconds, no large or dictionary types."""
    if pa.types.is_timestamp(kind):
        return TIMESTAMP if kind.tz else pa.timestamp("us")
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_dictionary(kind):
        return to_delta(kind.value_type)
    if pa.types.is_map(kind):
        return pa.map_(to_delta(kind.key_type), to_delta(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(to_delta(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(to_delta(field.type)) for field in kind])
    return kind


def with_values(rows: pa.Table, name: str, values: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Return rows with other values in a column."""
    place = rows.schema.get_field_index(name)
    return rows.set_column(place, rows.schema.field(place), values)

"""Columns of tables: a type and a meaning, which Delta keeps as the comment, and the names of the input's columns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.timestamps import TIMESTAMP as TIMESTAMP

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def column(name: str, kind: pa.DataType, meaning: str, nullable: bool = True) -> pa.Field:
    """Return a column with its meaning."""
    return pa.field(name, kind, nullable, {"comment": meaning})


def quoted(name: str) -> str:
    """Return a column's name as Spark's SQL takes it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def field_in_sql(path: str) -> str:
    """Return the path of a struct's field, such as `place.distance`, as SQL; only parts that need it are quoted."""
    return ".".join(part if _WORD.fullmatch(part) else quoted(part) for part in path.split("."))


def input_fields(ours: Iterable[pa.Field], source: pa.Schema, names: Mapping[str, str] | None = None) -> list[pa.Field]:
    """Return the input's columns as a table keeps them beside its own columns.

    A column whose name is taken gets the prefix `input_`. Names that differ only in case are the same to Delta. The
    source adds new columns at the end, so earlier columns keep their names.

    Args:
        ours: columns of the table that don't come from the input.
        source: columns of the input.
        names: new names of input columns whose type changed, by the name that the table uses for the old type.
    """
    taken = {field.name.casefold() for field in ours}
    fields = []
    for field in source:
        name = field.name
        while name.casefold() in taken:
            name = f"input_{name}"
        taken.add(name.casefold())
        name = (names or {}).get(name, name)
        fields.append(pa.field(name, to_delta(field.type), metadata=field.metadata))
    return fields


def input_rows(rows: pa.Table, ours: Iterable[pa.Field], source: pa.Schema, names: Mapping[str, str]) -> pa.Table:
    """Return the columns of the input, with their own names, from rows of a table that keeps them beside its own.

    Args:
        rows: rows of the table.
        ours: columns of the table that don't come from the input.
        source: columns of the input.
        names: as for `input_fields`. Rows from before the change have their values under the old name. If these can't
            be values of the new type, the column was dropped, and another one got its name: the rows lack that.
    """
    columns = {}
    for field, kept in zip(source, input_fields(ours, source), strict=True):
        column = rows[names.get(kept.name, kept.name)]
        if kept.name in names:
            column = pc.coalesce(column, _widened(rows[kept.name], column.type))
        columns[field.name] = column
    return pa.table(columns)


def _widened(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column in a wider type; nulls if the type is another one."""
    missing = pa.chunked_array([pa.nulls(len(column), kind)])
    if pa.types.is_string(column.type) != pa.types.is_string(kind):
        return missing
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return missing


def to_delta(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Delta can keep a column: UTC microseconds, no large or dictionary variants."""
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

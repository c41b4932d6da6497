"""How a table's columns are described: a type and a meaning, which Delta keeps as the comment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.timestamps import TIMESTAMP as TIMESTAMP


def column(name: str, kind: pa.DataType, meaning: str, nullable: bool = True) -> pa.Field:
    """A column with its meaning."""
    return pa.field(name, kind, nullable, {"comment": meaning})


def quoted(name: str) -> str:
    """Return a column's name as Spark's SQL takes it, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def input_fields(ours: Iterable[pa.Field], source: pa.Schema, names: Mapping[str, str] | None = None) -> list[pa.Field]:
    """The input's columns as a table keeps them beside ours: one whose name is taken gets the prefix `input_`.

    Delta does not tell names apart that differ in case only. A column that the source gets later comes last, so
    those before it keep their names.

    Args:
        ours: columns that the table has of itself.
        source: columns of the input.
        names: what the table calls a column of the input whose name it has for another type.
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
    """The columns of the input as it had them, of rows of a table that keeps them beside ours.

    Args:
        rows: of the table.
        ours: columns that the table has of itself.
        source: columns of the input.
        names: what the table calls those whose type changed; rows of before have their values under the old name.
    """
    found = {}
    for field, kept in zip(source, input_fields(ours, source), strict=True):
        column = rows[names.get(kept.name, kept.name)]
        if kept.name in names:
            column = pc.coalesce(column, rows[kept.name].cast(column.type))
        found[field.name] = column
    return pa.table(found)


def to_delta(kind: pa.DataType) -> pa.DataType:
    """The type in which Delta can keep a column: UTC microseconds, no large or dictionary variants."""
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

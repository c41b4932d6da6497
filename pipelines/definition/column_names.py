"""Column names of tidegate's tables, and how they are kept distinct from users' names.

Names that differ only in case are the same to Delta and Spark, so they are the same here.

    rows sent to the tasks           names that begin with `tidegate:` are reserved (event_columns.py); a source that
                                     has one is refused: `check_in_flight`
    elements and panes in operators  users' columns get the prefix `key_` or `value_` (windowing/epochs/elements.py)
    tables in memory                 ours begin with NUL, which no column of Delta has (epoch/spans.py)
    tables state and results         a key or a result with the name of another column is refused, before any write:
                                     `check_names`
    the partition of table windows   a key or a result of that name is refused (windows.py)
    tables late and rejects          an input column with the name of one of ours gets the prefix `input_`:
                                     `input_fields`
    subqueries, retyped columns      ours get a suffix until no column of users has the name: `free_name`
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.columns import to_delta
from tidegate.pipelines.definition.event_columns import OURS
from tidegate.pipelines.errors import Refused
from tidegate.windowing.errors import IllegalArgument

_RENAME = "rename it in columns="


def free_name(name: str, taken: Collection[str], other: Callable[[str], str]) -> str:
    """Return a name that no column has. `other` derives the next candidate from a name that is taken.

    Args:
        name: the wanted name.
        taken: names of the columns, casefolded.
        other: returns the name to try after one that is taken.
    """
    while name.casefold() in taken:
        name = other(name)
    return name


def input_fields(ours: Iterable[pa.Field], source: pa.Schema, names: Mapping[str, str] | None = None) -> list[pa.Field]:
    """Return the columns of the input as tables late and rejects store them after their own columns.

    A source appends new columns, so earlier columns keep their names.

    Args:
        ours: columns of the table that don't come from the input.
        source: columns of the input.
        names: new names of input columns whose type changed, by the name that the table uses for the old type.
    """
    taken = {field.name.casefold() for field in ours}
    fields = []
    for field in source:
        name = free_name(field.name, taken, "input_{}".format)
        taken.add(name.casefold())
        fields.append(pa.field((names or {}).get(name, name), to_delta(field.type), metadata=field.metadata))
    return fields


def input_rows(rows: pa.Table, ours: Iterable[pa.Field], source: pa.Schema, names: Mapping[str, str]) -> pa.Table:
    """Return the columns of the input under their own names, from rows of table late or rejects.

    Args:
        rows: rows of the table.
        ours: columns of the table that don't come from the input.
        source: columns of the input.
        names: as for `input_fields`. Rows from before the change have their values under the old name. If these don't
            fit the new type, the column was dropped and another one took its name; then these rows get null. So do all
            rows if the table does not have a column yet, because the next epoch adds it.
    """
    columns = {}
    for field, kept in zip(source, input_fields(ours, source), strict=True):
        name = names.get(kept.name, kept.name)
        nothing = pa.chunked_array([pa.nulls(len(rows), to_delta(field.type))])
        column = rows[name] if name in rows.column_names else nothing
        if kept.name in names:
            column = pc.coalesce(column, _widened(rows[kept.name], column.type))
        columns[field.name] = column
    return pa.table(columns)


def _widened(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return a column in a wider type, or nulls if the values don't fit it."""
    missing = pa.chunked_array([pa.nulls(len(column), kind)])
    if pa.types.is_string(column.type) != pa.types.is_string(kind):
        return missing
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return missing


def check_names(
    key: Sequence[str],
    source: pa.Schema,
    results: Sequence[str],
    *,
    of_results: Iterable[str],
    of_state: Iterable[str],
    trailing: Iterable[Sequence[pa.Field]],
    field: str,
) -> None:
    """Refuse names of keys and results that tidegate's tables already use for another column.

    Args:
        key: names of the key columns.
        source: columns of a source row, as tables late and rejects store them.
        results: names of the result columns.
        of_results: our columns of table results.
        of_state: our columns of table state, and other names that no key column can have.
        trailing: our columns of table late, and of table rejects.
        field: name of the field that declares the results, for messages.

    Raises:
        IllegalArgument: a key or a result has the name of another column.
    """
    rename = "name its columns with uses=, without this one" if field == "compute.reduce" else "rename the result"
    ours = list(of_results)
    for number, name in enumerate(results):
        if _shared([name], results[:number]):
            raise IllegalArgument(field, name, "two result names differ only in upper and lower case: rename one")
    for name in _shared(results, ours):
        raise IllegalArgument(field, name, f"table results already has a column of that name: {rename}")
    for name in _shared(key, [*ours, *of_state]):
        raise IllegalArgument("key", name, f"the pipeline's tables already have another column of that name: {_RENAME}")
    for name in _shared(results, key):
        raise IllegalArgument(field, name, f"a key column already has that name: {rename}")
    for columns in trailing:
        kept = {name: kept.name for name, kept in zip(source.names, input_fields(columns, source), strict=True)}
        for name in key:
            expected = f"input_{name}" if _shared([name], [column.name for column in columns]) else name
            if kept.get(name, expected) != expected:
                raise IllegalArgument(
                    "key", name, f"tables late and rejects have another column of that name, as {expected}: {_RENAME}"
                )


def check_in_flight(table: str, names: Iterable[str]) -> None:
    """Refuse columns whose names are reserved for those that the driver adds to rows for the tasks.

    Raises:
        Refused: the message names the column.
    """
    for name in names:
        if name.casefold().startswith(OURS):
            raise Refused(
                f"source table {table!r} has a column {name!r}, but names that begin with {OURS!r} are tidegate's own: "
                "rename the column in the table, or read a table without it"
            )


def _shared(names: Iterable[str], others: Iterable[str]) -> list[str]:
    taken = {other.casefold() for other in others}
    return [name for name in names if name.casefold() in taken]

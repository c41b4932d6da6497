"""Checks of column names in our tables: no two columns of a table may have the same name.

Names that differ only in case are the same to Delta and Spark, so they are the same to these checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from tidegate.pipelines.definition.event_columns import OURS
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.tables import late, rejects, state
from tidegate.pipelines.tables.columns import input_fields
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.state.rows import StateSchema

_RENAME = "rename it in columns="


def check_names(
    pipeline: Pipeline,
    source: pa.Schema,
    result: pa.StructType,
    rows: StateSchema,
    leading: Sequence[pa.Field],
    field: str,
    reserved: Iterable[str] = (),
) -> None:
    """Refuse names of keys and results that another column of our tables has.

    Args:
        pipeline: the pipeline with the key.
        source: columns of a source row, as tables late and rejects keep them.
        result: type of a result row.
        rows: columns of the state.
        leading: columns of table results that don't come from the key or the results.
        field: name of the field that declares the results, for messages.
        reserved: further names that no key column can have.

    Raises:
        IllegalArgument: a key or a result has the name of another column.
    """
    rename = "name its columns with uses=, without this one" if field == "compute.reduce" else "rename the result"
    results = [result.field(number).name for number in range(result.num_fields)]
    ours = [column.name for column in leading]
    held = state.schema(replace(rows, key=KeySchema((), ()))).names
    for name in twice(results):
        raise IllegalArgument(
            field, name, "two results have names that differ only in upper and lower case: rename one"
        )
    for name in shared(results, ours):
        raise IllegalArgument(field, name, f"table results already has a column of that name: {rename}")
    for name in shared(pipeline.key, [*ours, *held, *reserved]):
        raise IllegalArgument("key", name, f"the pipeline's tables already have another column of that name: {_RENAME}")
    for name in shared(results, pipeline.key):
        raise IllegalArgument(field, name, f"a key column already has that name: {rename}")
    for trailing in (late.TRAILING, rejects.TRAILING):
        kept = {name: field.name for name, field in zip(source.names, input_fields(trailing, source), strict=True)}
        for name in pipeline.key:
            expected = f"input_{name}" if shared([name], [column.name for column in trailing]) else name
            if kept.get(name, expected) != expected:
                raise IllegalArgument(
                    "key", name, f"tables late and rejects have another column of that name, as {expected}: {_RENAME}"
                )


def check_in_flight(table: str, names: Iterable[str]) -> None:
    """Refuse columns whose names are kept for those that rows have beside them on their way to the tasks.

    Raises:
        Refused: the message names the column.
    """
    for name in names:
        if name.casefold().startswith(OURS):
            raise Refused(
                f"source table {table!r} has a column {name!r}, but names that begin with {OURS!r} are tidegate's own: "
                "rename the column in the table, or read a table without it"
            )


def twice(names: Sequence[str]) -> list[str]:
    """Return the names that occur earlier in the sequence, ignoring case."""
    seen: set[str] = set()
    repeated = []
    for name in names:
        if name.casefold() in seen:
            repeated.append(name)
        seen.add(name.casefold())
    return repeated


def shared(names: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return the names that are among others, ignoring case, in their order."""
    taken = {other.casefold() for other in others}
    return [name for name in names if name.casefold() in taken]

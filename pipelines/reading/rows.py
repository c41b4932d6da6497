"""Rows of a view, read file by file: what a task of Spark yields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.columns import column
from tidegate.pipelines.definition.late import REOPENED
from tidegate.pipelines.reading.places import Files, from_bits
from tidegate.pipelines.reading.views import FileRows, View
from tidegate.pipelines.storage import Warehouse

OP = column("op", pa.string(), "+ for a row that came, - for one that left")


def has_op(columns: pa.Schema) -> bool:
    """Return True if there is a column `op`. Spark does not tell upper and lower case apart."""
    return OP.name in {name.casefold() for name in columns.names}


def with_op(view: View, files: Files) -> View:
    """Return a view with `+` in column `op` if its table has no such column, as that of a function or a join."""
    if has_op(files.schema):
        return view
    return replace(view, files=tuple(replace(file, op=file.op or "+") for file in view.files))


def read_file(
    warehouse: Warehouse,
    path: str,
    file: FileRows,
    schema: pa.Schema,
    where: pc.Expression | None,
    columns: list[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file that belong to a view and satisfy an expression, with the view's `op`.

    Args:
        warehouse: the warehouse of the table.
        path: path of the table.
        file: the file.
        schema: columns of the view.
        where: the expression; None for all rows.
        columns: the columns to read, if no expression needs others; None for all.
    """
    # Bits count all rows of the file, and its `op` may be missing: then rows are filtered after they were read.
    asks_for_op = file.op is not None and OP.name in str(where)
    is_filtered_here = where is not None and (file.kept is not None or asks_for_op)
    batches = warehouse.read_batches(
        path,
        [file.name],
        schema,
        None if is_filtered_here else columns,
        None if is_filtered_here else where,
    )
    first = 0
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        if file.kept is not None:
            rows = rows.filter(pa.array(from_bits(file.kept, first, len(batch))))
        first += len(batch)
        if file.op is not None and OP.name in rows.column_names:
            rows = rows.set_column(rows.column_names.index(OP.name), OP, pa.repeat(pa.scalar(file.op), len(rows)))
        if is_filtered_here:
            rows = rows.filter(where)
        yield from (rows if columns is None else rows.select(columns)).to_batches()


def without_later_marks(rows: pa.RecordBatch, until: int) -> pa.RecordBatch:
    """Return late rows as they were when an epoch was published: marks of later epochs are left out."""
    index = rows.schema.get_field_index(REOPENED)
    if index < 0:
        return rows
    marks = rows.column(index)
    earlier = pc.if_else(pc.less_equal(marks, until), marks, pa.scalar(None, marks.type))
    return rows.set_column(index, rows.schema.field(index), earlier)

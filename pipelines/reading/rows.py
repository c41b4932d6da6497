"""Rows of a view, read file by file: what a task of Spark yields."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.reading.places import from_bits
from tidegate.pipelines.reading.views import FileRows
from tidegate.pipelines.storage import Warehouse
from tidegate.pipelines.tables.columns import column
from tidegate.pipelines.tables.late import REOPENED

OP = column("op", pa.string(), "+ for a row that came, - for one that left")


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
    # Bits count the rows of the whole file, so such a file is filtered after it was read.
    is_filtered_here = file.kept is not None and where is not None
    batches = warehouse.read_batches(
        path,
        [file.name],
        schema,
        None if is_filtered_here else columns,
        where if file.kept is None else None,
    )
    first = 0
    for batch in batches:
        rows = pa.Table.from_batches([batch])
        if file.kept is not None:
            rows = rows.filter(pa.array(from_bits(file.kept, first, len(batch))))
            rows = rows if where is None else rows.filter(where)
        first += len(batch)
        if OP.name in rows.column_names:
            # Rows of functions and joins have no `op` in their table.
            op = rows[OP.name].fill_null("+") if file.op is None else pa.repeat(pa.scalar(file.op), len(rows))
            rows = rows.set_column(rows.column_names.index(OP.name), OP, op)
        yield from (rows if columns is None else rows.select(columns)).to_batches()


def without_later_marks(rows: pa.RecordBatch, until: int) -> pa.RecordBatch:
    """Return late rows as they were when an epoch was published: marks of later epochs are left out."""
    index = rows.schema.get_field_index(REOPENED)
    if index < 0:
        return rows
    marks = rows.column(index)
    earlier = pc.if_else(pc.less_equal(marks, until), marks, pa.scalar(None, marks.type))
    return rows.set_column(index, rows.schema.field(index), earlier)

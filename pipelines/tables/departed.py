"""Rows of tables late and rejects that leave them, because they went from the source.

The epoch that notices it writes these rows to a file, and publishing removes equal rows from the table. So a compaction
in between does no harm, and a restore to before that epoch takes the rows from the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.manifest import Departed
from tidegate.pipelines.storage import arrow_schema
from tidegate.pipelines.tables import late
from tidegate.pipelines.tables.files import write_file
from tidegate.pipelines.tables.multisets import surplus
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.aggregates.vectorised import Bools


def write_departed(tables: PipelineTables, table: str, rows: pa.Table, epoch: int) -> Departed:
    """Write rows of a table that leave it in an epoch."""
    file = write_file(tables.warehouse, tables.path(table), f"{table}-{epoch:06d}-departed", rows)
    if file is None:
        raise TidegateError(f"nothing to write to table {tables.path(table)}")
    marks = late.marks_of(table, rows)
    return Departed(
        file=file, by_epoch=_counted(rows["epoch"]), by_reopening=() if marks is None else _counted(marks.drop_null())
    )


def read_departed(tables: PipelineTables, table: str, departed: Sequence[Departed]) -> pa.Table:
    """Return the rows that leave a table."""
    schema = arrow_schema(tables.look(table))
    return tables.warehouse.read_files(tables.path(table), [each.file.path for each in departed], schema)


class Departing:
    """Rows that leave a table, as its files are looked through one after the other.

    Args:
        table: name of the table.
        rows: the rows that leave.
    """

    def __init__(self, table: str, rows: pa.Table) -> None:
        self._rows = rows
        # Epochs change these columns in published rows, so they don't tell which row it is.
        changing = {"stale", late.REOPENED} if table == late.NAME else {"stale"}
        self._names = [name for name in rows.column_names if name not in changing]

    def stay(self, rows: pa.Table) -> Bools:
        """Return True for each row of a file that stays in the table. Each row leaves once."""
        stay = np.ones(len(rows), np.bool_)
        of_epochs = np.flatnonzero(pc.is_in(rows["epoch"], value_set=self._rows["epoch"].combine_chunks()).to_numpy())
        stays, not_yet = surplus(rows.take(pa.array(of_epochs)), self._rows, self._names)
        stay[of_epochs] = stays
        self._rows = self._rows.filter(pa.array(not_yet))
        return stay


def _counted(epochs: pa.ChunkedArray) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(Counter(epochs.to_pylist()).items()))

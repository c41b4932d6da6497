"""Changes of published rows of tables late and rejects: marks of reopened rows, and rows deleted in the source.

An epoch that finds deleted source rows writes the matching rows of these tables to a file, and publishing removes equal
rows from the table. So a compaction in between does no harm, and a restore to an earlier epoch takes the rows from the
file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import late
from tidegate.pipelines.definition.columns import with_values
from tidegate.pipelines.definition.row_sets import surplus
from tidegate.pipelines.ledger.manifest import Deletion, Publish, Reopening
from tidegate.pipelines.ledger.tables.files import write_rows
from tidegate.pipelines.ledger.tables.keys import digests
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import arrow_schema
from tidegate.windowing.aggregates.vectorised import Bools, Int64s
from tidegate.windowing.timestamps import epoch_millis


def is_meant(rows: pa.Table, key: tuple[str, ...], reopening: Reopening) -> pa.ChunkedArray:
    """Return a flag for each row of table late: whether an epoch reopens it."""
    open_before = pc.and_(late.is_open(rows), pc.less(rows["epoch"], reopening.epoch))
    return pc.and_(open_before, is_chosen(rows, key, reopening))


def is_chosen(
    rows: pa.Table, key: tuple[str, ...], reopening: Reopening, times: Int64s | None = None
) -> pa.ChunkedArray:
    """Return a flag for each row: whether it is in the windows that an epoch reopens.

    `times` are the event times of the rows, if these don't have the columns of table late that the times follow from.
    """
    begins = epoch_millis(rows["window_start"])
    chosen = within(begins, reopening.start, reopening.end)
    of_rows = digests(rows, key) if reopening.by_key else None
    if reopening.digest is not None:
        chosen = pc.and_(chosen, pc.equal(of_rows, reopening.digest))
    if reopening.spans:
        chosen = pc.or_(chosen, pa.array(_lies_in_spans(of_rows, begins, reopening.spans)))
    if reopening.without:
        times = late.event_times(rows) if times is None else times
        chosen = pc.and_(chosen, pa.array(~np.isin(times, reopening.without)))
    return chosen


def within(times: pa.ChunkedArray, start: int | None, end: int | None) -> pa.ChunkedArray:
    """Return a flag for each time: whether it is in `[start, end)`. A null is only in range if both bounds are None."""
    lies = pa.chunked_array([pa.repeat(pa.scalar(True), len(times))])
    if start is not None:
        lies = pc.and_(lies, pc.fill_null(pc.greater_equal(times, start), False))
    if end is not None:
        lies = pc.and_(lies, pc.fill_null(pc.less(times, end), False))
    return lies


def _lies_in_spans(
    names: pa.Array, times: pa.ChunkedArray, spans: Sequence[tuple[str, int, int]]
) -> npt.NDArray[np.bool_]:
    """Return a flag for each row: whether its time is in a span of its key.

    A null is in no span. Spans of a key don't overlap.
    """
    import pandas as pd

    rows = pd.DataFrame({"name": names.to_numpy(zero_copy_only=False), "time": times.fill_null(0).to_numpy()})
    rows = rows[times.is_valid().to_numpy()].sort_values("time")
    of_keys = pd.DataFrame(spans, columns=["name", "start", "end"]).sort_values("start", ignore_index=True)
    # Only the span's number may be missing, so the times stay whole numbers.
    numbered = of_keys[["name", "start"]].reset_index(names="span")
    span = pd.merge_asof(rows, numbered, left_on="time", right_on="start", by="name")["span"]
    ends = of_keys["end"].to_numpy()[span.fillna(0).astype(np.int64)]
    inside = np.zeros(len(times), np.bool_)
    inside[rows.index] = span.notna() & (rows["time"].to_numpy() < ends)
    return inside


def with_marks(table: str, rows: pa.Table, key: tuple[str, ...], work: Publish) -> pa.Table:
    """Return rows of a published table with the marks of reopened rows that they have after an epoch.

    Rows that the epoch reopens get its number; numbers of epochs that are removed or become stale are cleared. Only
    table late has marks, so rows of other tables are unchanged: their column `reopened` is a count or a user's value.
    """
    marks = marks_of(table, rows)
    if marks is None:
        return rows
    gone = pc.is_in(marks, value_set=pa.array([*work.remove_epochs, *work.stale_epochs], pa.int64()))
    rows = with_values(rows, late.REOPENED, pc.if_else(gone, pa.scalar(None, pa.int64()), marks))
    for reopening in work.reopened:
        meant = is_meant(rows, key, reopening)
        rows = with_values(
            rows, late.REOPENED, pc.if_else(meant, pa.scalar(reopening.epoch, pa.int64()), rows[late.REOPENED])
        )
    return rows


def marks_of(table: str, rows: pa.Table) -> pa.ChunkedArray | None:
    """Return the epoch that reopened each row (null for none), or None for a table other than late."""
    return rows[late.REOPENED] if table == late.NAME and late.REOPENED in rows.column_names else None


def write_deleted(tables: PipelineTables, table: str, rows: pa.Table, epoch: int) -> Deletion:
    """Write rows that an epoch removes from a table."""
    (file,) = write_rows(tables.warehouse, tables.path(table), f"{table}-{epoch:06d}-deleted", rows)
    marks = marks_of(table, rows)
    return Deletion(
        file=file, by_epoch=_counted(rows["epoch"]), by_reopening=() if marks is None else _counted(marks.drop_null())
    )


def read_deleted(tables: PipelineTables, table: str, deleted: Sequence[Deletion]) -> pa.Table:
    """Return the rows that are removed from a table."""
    schema = arrow_schema(tables.newest(table))
    return tables.warehouse.read_files(tables.path(table), [each.file.path for each in deleted], schema)


class Deletions:
    """Rows to remove from a table while its files are read one after the other."""

    def __init__(self, table: str, rows: pa.Table) -> None:
        self._rows = rows
        # Epochs change these columns in published rows, so they don't identify a row.
        changing = {"stale", late.REOPENED} if table == late.NAME else {"stale"}
        self._names = [name for name in rows.column_names if name not in changing]

    def stay(self, rows: pa.Table) -> Bools:
        """Return a flag for each row of a file: whether it remains in the table. Each row is removed once."""
        stay = np.ones(len(rows), np.bool_)
        of_epochs = np.flatnonzero(pc.is_in(rows["epoch"], value_set=self._rows["epoch"].combine_chunks()).to_numpy())
        stays, not_yet = surplus(rows.take(pa.array(of_epochs)), self._rows, self._names)
        stay[of_epochs] = stays
        self._rows = self._rows.filter(pa.array(not_yet))
        return stay


def _counted(epochs: pa.ChunkedArray) -> tuple[tuple[int, int], ...]:
    return tuple(sorted(Counter(epochs.to_pylist()).items()))

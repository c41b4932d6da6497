"""Views of a pipeline's tables as rows of files, which are read file by file, as in a Spark task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import results, state
from tidegate.pipelines.definition.columns import column
from tidegate.pipelines.definition.late import REOPENED
from tidegate.pipelines.ledger.tables.state_files import deltas_of, holding
from tidegate.pipelines.observe.reading.places import Files, bits_by_file, from_bits, without
from tidegate.pipelines.observe.reading.reached import Reached
from tidegate.pipelines.storage.warehouse import Warehouse

STALE_AND_EPOCH = ("epoch", "stale")
"""Columns that show whether a row is current."""


@dataclass(frozen=True)
class FileRows:
    """Rows of one file.

    Args:
        name: path of the file in its table.
        size: its size in bytes.
        kept: one bit for each row, set for the rows that belong to the view; None for all.
        op: a value for column `op`; None keeps the file's own.
    """

    name: str
    size: int
    kept: bytes | None = None
    op: str | None = None


@dataclass(frozen=True)
class View:
    """Rows of a table.

    Args:
        files: the files that have the rows.
        where: an expression that the rows must satisfy; None for all.
        until: epoch after which marks of reopened rows are left out; None keeps all marks.
    """

    files: tuple[FileRows, ...]
    where: pc.Expression | None = None
    until: int | None = None


def all_rows(files: Files, where: pc.Expression | None) -> View:
    """Return the rows of every file that satisfy an expression."""
    return View(tuple(FileRows(file["path"], file["size_bytes"]) for file in files.active), where)


def latest(files: Files, key: Sequence[str], until: Reached) -> View:
    """Return the newest pane of each window unless it is retracted. Rows that are not panes are all included."""
    view = all_rows(files, until.shown())
    if not results.has_panes(files.schema):
        return view
    windows = windows_with_several_panes(files, until)
    if not len(windows):
        return view
    candidates = files.places(
        [*identity(key), *STALE_AND_EPOCH],
        lambda rows: pc.and_(pc.is_in(rows["window_id"], value_set=windows), pa.array(until.shows(rows))),
    )
    return _less(view, files, without(candidates, results.newest(candidates, key)))


def held_state(files: Files) -> View:
    """Return the state rows of the snapshot in table state, without those that a delta replaces."""
    view = all_rows(files, pc.field("key_group") != state.MANIFEST_KEY_GROUP)
    held = holding(files.warehouse, files.path, deltas_of(files.active), files.schema)
    if held is None:
        return view
    columns = [state.MARK.name, state.HASH.name]
    return _less(view, files, files.places(columns, lambda rows: pc.invert(_values(rows, held))))


def _values(rows: pa.Table, condition: pc.Expression) -> pa.ChunkedArray:
    """Return the value of a condition for each row."""
    # This import is slow, and most commands don't need it.
    import pyarrow.dataset as ds

    return ds.dataset(rows).to_table(columns={"value": condition})["value"]


def _less(view: View, files: Files, places: pa.Table) -> View:
    """Return a view of whole files without the rows at these places."""
    masks = bits_by_file(places, files)
    return View(
        tuple(
            FileRows(file.name, file.size, _inverted(masks[number]) if number in masks else None)
            for number, file in enumerate(view.files)
        ),
        view.where,
    )


def final(files: Files, key: Sequence[str], until: Reached) -> View:
    """Return the latest rows that no later event can change."""
    view = latest(files, key, until)
    condition = until.final() if results.has_panes(files.schema) else None
    return view if condition is None or view.where is None else View(view.files, view.where & condition)


def identity(key: Sequence[str]) -> list[str]:
    """Return the columns that identify a pane, and `op`."""
    return [*key, "window_id", "pane", "op"]


def windows_with_several_panes(files: Files, until: Reached, among: pa.Array | None = None) -> pa.Array:
    """Return the ids of windows with a pane that is retracted or not the first."""
    later = (pc.field("epoch") <= until.epoch) & ((pc.field("pane") > 0) | (pc.field("op") == "-"))
    if among is not None:
        later &= pc.field("window_id").isin(among)
    return files.some(files.with_later_panes()).rows(["window_id"], later)["window_id"].unique()


def _inverted(bits: bytes) -> bytes:
    return np.invert(np.frombuffer(bits, np.uint8)).tobytes()


OP = column("op", pa.string(), "+ for an added row, - for a removed one")


def has_op(columns: pa.Schema) -> bool:
    """Return True if there is a column `op`. Spark ignores case in names."""
    return OP.name in {name.casefold() for name in columns.names}


def with_op(view: View, files: Files) -> View:
    """Return a view with `+` in column `op` if its table has no such column, as for a function or a join."""
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

    `schema` has the columns of the view; None for `columns` returns all of them.
    """
    # The bits refer to all rows of the file, and the file may lack `op`. In these cases, rows are filtered after
    # reading.
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
    """Return late rows as they were when an epoch was published, without marks of later epochs."""
    index = rows.schema.get_field_index(REOPENED)
    if index < 0:
        return rows
    marks = rows.column(index)
    earlier = pc.if_else(pc.less_equal(marks, until), marks, pa.scalar(None, marks.type))
    return rows.set_column(index, rows.schema.field(index), earlier)

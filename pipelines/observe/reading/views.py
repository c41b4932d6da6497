"""Views of a pipeline's tables, and their changes, as rows of files, which are read file by file, as in a Spark task.

A batch of a stream between two offsets has the same rows whenever it is read, because a query that fails in a batch
reads it again. Within a timeline, epochs only add rows, so the current files suffice for both offsets. A restore, or an
interval that is rerun, removes rows and starts a new timeline; then each offset is read from the version of the table
that it names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import results, state
from tidegate.pipelines.definition.columns import column, with_values
from tidegate.pipelines.definition.late import REOPENED
from tidegate.pipelines.definition.row_sets import one_of_each
from tidegate.pipelines.ledger.tables.files import deltas_of, holding
from tidegate.pipelines.observe.reading.places import Files, bits_by_file, from_bits, without
from tidegate.pipelines.observe.reading.reached import Reached, as_time
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.time import MAX_TIMESTAMP

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
    if REOPENED not in rows.schema.names:
        return rows
    marks = rows[REOPENED]
    return with_values(rows, REOPENED, pc.if_else(pc.less_equal(marks, until), marks, pa.scalar(None, marks.type)))


def changes_in_timeline(files: Files, key: Sequence[str], start: Reached, end: Reached, only_final: bool) -> View:
    """Return what changed in view `final` or `latest` between two offsets of the timeline of the files.

    Column `op` is `+` for an added row and `-` for a removed one.
    """
    if not start.epoch:
        return final(files, key, end) if only_final else latest(files, key, end)
    if not results.has_panes(files.schema):
        # Rows that are not panes are only added.
        return appended(files, start, end)
    columns = _columns(key)
    changed = files.places(
        columns, lambda rows: _may_change(rows, start, end, only_final), _numbers_of_changes(files, start, end)
    )
    windows = windows_with_several_panes(files, end, changed["window_id"].unique())
    if len(windows):
        others = files.places(
            columns,
            lambda rows: pc.and_(
                pc.is_in(rows["window_id"], value_set=windows), pc.less_equal(rows["epoch"], end.epoch)
            ),
        )
        single = changed.filter(pc.invert(pc.is_in(changed["window_id"], value_set=windows)))
        changed = pa.concat_tables([single, others])
    before, after = (_shown(changed, key, at, only_final) for at in (start, end))
    return _masked((files, without(before, after), "-"), (files, without(after, before), "+"))


def changes_of_versions(
    before: Files, after: Files, key: Sequence[str], start: Reached, end: Reached, only_final: bool
) -> View:
    """Return what `changes_in_timeline` returns, for offsets of any timelines, from the files at each of them.

    The earlier offset may be before the first epoch.
    """
    panes = results.has_panes(before.schema)
    columns = _columns(key) if panes else [*STALE_AND_EPOCH, "timeline"]
    was, now = (
        _shown(files.places(columns, lambda rows, at=at: pa.array(at.shows(rows))), key, at, only_final)  # type: ignore[misc]
        for files, at in ((before, start), (after, end))
    )
    if panes:
        by = [*key, "window_id", "pane", "epoch", "timeline"]
        left, came = _panes_not_in(was, now, by), _panes_not_in(now, was, by)
    else:
        # An epoch publishes all its rows or none. So if an epoch is in both offsets, all of its rows are.
        left, came = _of_epochs_not_in(was, now), _of_epochs_not_in(now, was)
    return _masked((before, left, "-"), (after, came, "+"))


def appended(files: Files, start: Reached, end: Reached) -> View:
    """Return the rows of the epochs after one offset and up to another, in one timeline."""
    number = pc.field("epoch")
    where = (number > start.epoch) & (number <= end.epoch)
    return all_rows(files.some(files.of_epochs(start.epoch, end.epoch)), where)


def _columns(key: Sequence[str]) -> list[str]:
    return [*identity(key), *STALE_AND_EPOCH, "timeline", "final_at"]


def _shown(rows: pa.Table, key: Sequence[str], at: Reached, only_final: bool) -> pa.Table:
    shown = results.newest(rows.filter(pa.array(at.shows(rows))), tuple(key))
    return shown.filter(pa.array(at.finals(shown))) if only_final and "final_at" in shown.column_names else shown


def _may_change(rows: pa.Table, start: Reached, end: Reached, only_final: bool) -> pa.Array:
    """Return a flag for each row: whether it may be in the view at only one of two offsets."""
    numbers = np.asarray(rows["epoch"].to_numpy())
    may = numbers > start.epoch
    if only_final:
        may |= start.finals(rows) != end.finals(rows)
    return pa.array((numbers <= end.epoch) & may)


def _numbers_of_changes(files: Files, start: Reached, end: Reached) -> list[int]:
    """Return the indices of files whose statistics allow a row for which `_may_change` is True."""
    numbers = files.of_epochs(start.epoch, end.epoch)
    low, high = sorted((start.watermark, end.watermark))
    if low == high:
        return numbers
    from_time, to_time = (as_time(value).as_py() if value != MAX_TIMESTAMP else None for value in (low, high))
    becomes_final = [
        number
        for number, file in enumerate(files.active)
        if file.get("max.final_at") is None
        or to_time is None
        or ((from_time is None or file["max.final_at"] > from_time) and file["min.final_at"] <= to_time)
    ]
    return sorted({*numbers, *becomes_final})


def _panes_not_in(rows: pa.Table, others: pa.Table, by: Sequence[str]) -> pa.Table:
    """Return the panes that are not in `others`, by the columns that identify a pane."""
    both = pa.concat_tables([rows.select(by), others.select(by)])
    places = np.concatenate([np.arange(len(rows)), np.full(len(others), -1)])
    numbers = one_of_each(both, pa.array(places, pa.int64()), "min")
    return rows.take(numbers.filter(pc.greater_equal(numbers, 0)))


def _of_epochs_not_in(rows: pa.Table, others: pa.Table) -> pa.Table:
    """Return the rows of epochs that have no row in `others`."""
    these, those = (
        (np.asarray(table["timeline"].to_numpy()) << 40) | np.asarray(table["epoch"].to_numpy())
        for table in (rows, others)
    )
    return rows.filter(pa.array(~np.isin(these, those)))


def _masked(*parts: tuple[Files, pa.Table, str]) -> View:
    """Return the rows at some places in files, each with its `op`."""
    changed = []
    for files, rows, op in parts:
        masks = bits_by_file(rows, files)
        changed += [FileRows(files.active[n]["path"], files.active[n]["size_bytes"], masks[n], op) for n in masks]
    return View(tuple(changed))

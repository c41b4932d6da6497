"""One pass over the rows of a check that counts rows and elements, and finds final and new windows.

A rule about windows needs all rows of a key together. So if there are too many rows, they are written to files by a
hash of the key, and the files are read one after the other.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidegate.expectations.ledger import Ints, RowCounts, TableContents, count_results, counts_elements
from tidegate.expectations.scope import Scope, fresh_windows, may_be_new
from tidegate.pipelines.definition import late, rejects, results, state, windows
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.definition.row_sets import distinct, one_of_each, surplus
from tidegate.pipelines.definition.window_shape import WindowShape
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.published import PinnedEpoch
from tidegate.pipelines.ledger.tables.damaged_footers import damaged_footers, written_since
from tidegate.pipelines.ledger.tables.files import deltas_of, holding
from tidegate.pipelines.ledger.tables.keys import key_columns, key_schema
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.ledger.tables.table_log import TableLog
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema, stored_schema
from tidegate.windowing.columnar.hashing import UInt64s, hash_keys, key_groups, window_ids
from tidegate.windowing.time import Millis, to_millis
from tidegate.windowing.timestamps import epoch_millis

ROWS = 100_000
"""Approximate number of rows in a part. The rows and all values computed from them take about 200 MB."""


_PARTS = "parts-"
_ABANDONED_SECONDS = 86_400


class Slices:
    """Rows by key, which can be read more than once, in parts of about `rows_at_a_time`.

    `rows` is an upper bound on their number. Without key columns all rows belong to one key.
    """

    def __init__(
        self,
        batches: Iterable[pa.RecordBatch],
        schema: pa.Schema,
        key: tuple[str, ...],
        rows: int,
        folder: Path | None = None,
        rows_at_a_time: int = ROWS,
    ) -> None:
        self.schema, self.rows, self.rows_at_a_time = schema, rows, rows_at_a_time
        parts = -(-rows // rows_at_a_time) if key else 1
        self._table: pa.Table | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._files: list[Path] = []
        if parts <= 1:
            self._table = pa.Table.from_batches(batches, schema)
            return
        # The parts are removed with this object; those of a killed check are removed by a later check.
        if folder is not None:
            _remove_old_parts(folder)
        self._folder = tempfile.TemporaryDirectory(prefix=_PARTS, dir=folder)
        self._files = [Path(self._folder.name, f"{part}.arrow") for part in range(parts)]
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with ExitStack() as stack:
            writers = [stack.enter_context(pa.ipc.new_file(str(file), schema, options=options)) for file in self._files]
            for batch in batches:
                part = (hashes_of(batch, key) % np.uint64(parts)).astype(np.int64)
                order = np.argsort(part, kind="stable")
                sorted_rows = batch.take(pa.array(order))
                bounds = np.searchsorted(part[order], np.arange(parts + 1))
                for number, writer in enumerate(writers):
                    if bounds[number] < bounds[number + 1]:
                        writer.write(sorted_rows.slice(bounds[number], bounds[number + 1] - bounds[number]))

    def __iter__(self) -> Iterator[pa.Table]:
        """Yield each part."""
        if self._table is not None:
            yield self._table
        for file in self._files:
            with pa.OSFile(str(file)) as source, pa.ipc.open_file(source) as reader:
                yield reader.read_all()


def _remove_old_parts(folder: Path) -> None:
    for left in folder.glob(f"{_PARTS}*"):
        if time.time() - left.lstat().st_mtime > _ABANDONED_SECONDS:
            shutil.rmtree(left, ignore_errors=True)


def hashes_of(rows: pa.RecordBatch | pa.Table, key: tuple[str, ...]) -> UInt64s:
    """Return Spark's hash of the key of each row."""
    columns = [rows[name] for name in key]
    plain = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in columns]
    return hash_keys(key_schema(rows.schema, key), plain, len(rows))


_BOUNDS = ("window_start", "window_end", "state_window_start", "state_window_end")
_OF_WINDOWS = ("key_group", "namespace", "side", "in_flight", "event_time_timers", *_BOUNDS)
"""Columns of table `state` that show the open windows."""


@dataclass(frozen=True)
class Read:
    """The result of a pass over the rows: contents of the snapshot and of the windows that became final.

    `fresh` is the number of windows that became final since a check passed, `lateness` the longest time so far from a
    window's end until it was final. `share_ids` is True if two windows of a key have the same id.
    """

    contents: TableContents
    final: int
    fresh: int
    lateness: Millis
    share_ids: bool


def slices_of(
    tables: PipelineTables, scope: Scope, counts: RowCounts, folder: Path | None, rows_at_a_time: int
) -> Slices:
    """Read the rows of table `results` in scope, by key, and count the new ones."""
    manifest, handle = scope.pinned.snapshot.manifest, scope.pinned.handles[results.NAME]
    schema = arrow_schema(handle)
    files = [file for file in scope.files_of(results.NAME) if _is_in_scope(file, scope)]
    where = scope.pinned.current
    if scope.of_windows is not None:
        where = where & scope.of_windows

    # Counters are compared even if no row is left.
    count_results(counts, pa.RecordBatch.from_pylist([], schema), np.empty(0, np.int64))

    def batches() -> Iterator[pa.RecordBatch]:
        names = [file["path"] for file in files]
        for batch in tables.warehouse.read_batches(tables.path(results.NAME), names, schema, where=where):
            new = batch
            if scope.proof is not None:
                new = batch.filter(pc.greater(batch["epoch"], scope.proof.epoch))
            count_results(counts, new, groups_of(new, manifest))
            yield batch

    # Use the table's schema: the types of a file may be narrower, and the reader widens them.
    rows = sum(file["num_records"] for file in files)
    return Slices(batches(), schema, tuple(manifest.schemas.key), rows, folder, rows_at_a_time)


def count_side_tables(tables: PipelineTables, pipeline: Pipeline, scope: Scope, counts: RowCounts) -> None:
    """Count the new rows of tables `late` and `rejects`."""
    manifest = scope.pinned.snapshot.manifest
    key = tuple(manifest.schemas.key)
    nothing = np.empty(0, np.int64)
    counts.take("rejected", nothing, None)
    for batch in _side_batches(tables, scope, rejects.NAME, ["epoch"]):
        counts.take("rejected", batch["epoch"].to_numpy(), None)
    schema = arrow_schema(scope.pinned.handles[late.NAME])
    kept = key_columns(late.NAME, schema, key, pipeline.derived_key)
    has_key = len(kept) == len(key)
    marks = late.REOPENED in schema.names and late.REOPENED in scope.new_epochs.column_names
    columns = [*kept, "epoch", *((late.REOPENED,) if marks else ())]
    counts.take("late", nothing, nothing if has_key else None)
    if marks:
        counts.take("reopened", nothing, nothing if has_key else None)
    for batch in _side_batches(tables, scope, late.NAME, columns, reopened=marks):
        groups = groups_of(batch.select(kept).rename_columns(list(key)), manifest) if has_key else None
        counts.take("late", batch["epoch"].to_numpy(), groups)
        if marks:
            counts.take("reopened", pc.fill_null(batch[late.REOPENED], 0).to_numpy(), groups)


def pass_over(tables: PipelineTables, scope: Scope, shape: WindowShape | None, slices: Slices) -> Read:
    """Read the snapshot and the slices once, and return the numbers that need all of them."""
    manifest, proof = scope.pinned.snapshot.manifest, scope.proof
    contents = TableContents(manifest.max_parallelism)
    count = shape.count if shape is not None and counts_elements(manifest, shape) else None
    key, sliced = manifest_key(manifest), list[pa.Table]()
    for batch in state_batches(tables, scope.pinned):
        rows = pa.Table.from_batches([batch])
        if count is not None:
            contents.take_elements(rows, count)
        if manifest.slices:
            # The slices of a window may be in several batches.
            sliced.append(rows.select([*key, *_OF_WINDOWS]))
        else:
            contents.take_windows(rows, key)
    if sliced:
        contents.take_windows(pa.concat_tables(sliced), key)
    open_elements = int(contents.elements.sum())
    lateness = max(0 if shape is None else shape.lateness, 0 if proof is None else proof.lateness)
    fresh, share_ids = 0, False
    for rows in slices:
        share_ids |= len(with_one_id(rows, manifest)) > 0
        windows = final_windows(rows, manifest)
        fresh += len(fresh_windows(windows, scope.pinned.epochs, scope.since))
        lateness = max(lateness, _longest_wait(rows))
        if count is None:
            continue
        contents.take_final(groups_of(windows, manifest), windows[count])
        if proof is not None:
            earlier = results.latest(rows.filter(pc.less_equal(rows["epoch"], proof.epoch)), manifest_key(manifest))
            was_final = results.final(earlier, proof.watermark)
            contents.take_final(groups_of(was_final, manifest), was_final[count], -1)
    final = int(contents.elements.sum()) - open_elements
    return Read(contents, final, fresh, lateness, share_ids)


def state_batches(tables: PipelineTables, pinned: PinnedEpoch) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the snapshot in batches."""
    snapshot = pinned.snapshot
    schema = arrow_schema(snapshot.handle)
    names = [file["path"] for file in snapshot.files]
    real = pc.field("key_group") != state.MANIFEST_KEY_GROUP
    held = holding(tables.warehouse, snapshot.path, deltas_of(snapshot.files), schema)
    chosen = real if held is None else real & held
    yield from tables.warehouse.read_batches(snapshot.path, names, schema, state.row_columns(schema), chosen)


def final_windows(rows: pa.Table, manifest: Manifest) -> pa.Table:
    """Return the newest pane of each final window, which can no longer change."""
    return results.final(results.latest(rows, manifest_key(manifest)), manifest.final_through)


def ids_of(rows: pa.Table, manifest: Manifest) -> Ints:
    """Return the window id of each pane, computed from its key and bounds."""
    # The id of the global window, which has no bounds, is computed with bounds of 0.
    bounds = [epoch_millis(rows[name]).fill_null(0).to_numpy() for name in ("window_start", "window_end")]
    return window_ids(hashes_of(rows, manifest_key(manifest)), *bounds)


def with_one_id(rows: pa.Table, manifest: Manifest) -> pa.Table:
    """Return the key columns and the id of windows of one key that legitimately share an id.

    Chosen keys and times can produce such windows, which must not make a check fail.
    """
    by = [*manifest_key(manifest), "window_id"]
    if not results.has_panes(rows.schema):
        return rows.slice(0, 0).select([])
    windows = distinct(rows.select([*by, "window_start", "window_end"]))
    windows = windows.filter(_are_repeated(windows.select(by)))
    if len(windows):
        # A session that grew no longer has the bounds that its id was computed from.
        windows = windows.filter(pa.array(ids_of(windows, manifest) == windows["window_id"].to_numpy()))
        windows = windows.filter(_are_repeated(windows.select(by)))
    return windows.select(by)


def _are_repeated(rows: pa.Table) -> pa.BooleanArray:
    places = pa.array(np.arange(len(rows)))
    first, last = (one_of_each(rows, places, function).to_numpy() for function in ("min", "max"))
    once = first[first == last]
    return pa.array(~np.isin(places, once))


def groups_of(rows: pa.RecordBatch | pa.Table, manifest: Manifest) -> Ints:
    """Return the key group of each row."""
    return key_groups(hashes_of(rows, manifest_key(manifest)), manifest.max_parallelism)


def manifest_key(manifest: Manifest) -> tuple[str, ...]:
    """Return the key columns."""
    return tuple(manifest.schemas.key)


def _is_in_scope(file: dict[str, Any], scope: Scope) -> bool:
    """Return True if a file may hold new rows, or rows of windows near new ones."""
    if may_be_new(file, scope.proof) or scope.looks_from is None:
        return may_be_new(file, scope.proof)
    if file.get("null_count.window_end") != 0 or file.get("max.window_end") is None:
        return True
    end: datetime = file["max.window_end"]
    return to_millis(end) >= scope.looks_from


def _side_batches(
    tables: PipelineTables, scope: Scope, table: str, columns: list[str], reopened: bool = False
) -> Iterator[pa.RecordBatch]:
    handle = scope.pinned.handles[table]
    where = scope.new_rows
    if reopened and scope.proof is not None:
        where = where | (scope.pinned.current & (pc.field(late.REOPENED) > scope.proof.epoch))
    names = [file["path"] for file in scope.files_of(table) if reopened or may_be_new(file, scope.proof)]
    yield from tables.warehouse.read_batches(tables.path(table), names, arrow_schema(handle), columns, where)


def _longest_wait(rows: pa.Table) -> Millis:
    """Return the longest time from a window's end until it is final, milliseconds."""
    if not results.has_panes(rows.schema):
        return 0
    ends, finals = (epoch_millis(rows[name]) for name in ("window_end", "final_at"))
    longest = pc.max(pc.subtract(finals, ends)).as_py()
    return 0 if longest is None else int(longest) + 1


MISSING, SURPLUS, UNREADABLE = "missing", "stands not", "unreadable"
"""Faults: a current window is missing from the table; a row belongs to no current window; a file can't be read."""


def faults(tables: PipelineTables, scope: Scope, slices: Slices, folder: Path | None) -> pd.DataFrame | None:
    """Return a row for each window in scope that is missing from the table or surplus in it; None without the table."""
    handle = _of_epoch(tables, scope.pinned.snapshot.manifest.epoch)
    if handle is None:
        return None
    key = tuple(scope.pinned.snapshot.manifest.schemas.key)
    schema = stored_schema(handle)
    early = handle.metadata().configuration.get(windows.EARLY) == "true"
    named = [*key, "window_start", "window_end"]
    parts = [schema.empty_table().select(named).append_column("fault", pa.array([], pa.string()))]

    def batches() -> Iterator[pa.RecordBatch]:
        written = written_since(handle, None if scope.proof is None else scope.proof.epoch)
        if damaged := damaged_footers(tables, windows.NAME, handle, written):
            raise Refused(f"the footer of file {min(damaged)} is damaged")
        names = [file["path"] for file in active_files(handle)]
        where = scope.of_windows
        yield from tables.warehouse.read_batches(tables.path(windows.NAME), names, schema, where=where)

    try:
        found = Slices(batches(), schema, key, slices.rows, folder, slices.rows_at_a_time)
    except Refused:
        parts.append(_faulty(schema.empty_table().select(named), UNREADABLE, 1))
        found = None
    for panes, rows in zip(slices, found or (), strict=found is not None):
        expected = windows.current_panes(panes, key, early).select(schema.names).cast(schema)
        more, less = surplus(rows, expected, schema.names)
        for table, is_faulty, fault in ((rows, more, SURPLUS), (expected, less, MISSING)):
            faulty = table.filter(pa.array(is_faulty)).select(named)
            parts.append(_faulty(faulty, fault, len(faulty)))
    frame: pd.DataFrame = pa.concat_tables(parts).to_pandas(date_as_object=False)
    return frame


def _faulty(rows: pa.Table, fault: str, count: int) -> pa.Table:
    if len(rows) < count:
        rows = pa.table([pa.nulls(count, field.type) for field in rows.schema], schema=rows.schema)
    return rows.append_column("fault", pa.array([fault] * count, pa.string()))


def _of_epoch(tables: PipelineTables, epoch: int) -> DeltaTable | None:
    """Return the table without the windows of later epochs, or None if there is no such version."""
    if not tables.warehouse.exists(tables.path(windows.NAME)):
        return None
    handle = tables.newest(windows.NAME)
    log, version = TableLog(tables, windows.NAME), handle.version()
    for number in range(version, -1, -1):
        entry = log.entry(number)
        if entry is None:
            return None
        if entry.snapshot is not None:
            if entry.snapshot["epoch"] <= epoch:
                break
            version = number - 1
    return handle if version == handle.version() else tables.open(windows.NAME, version)

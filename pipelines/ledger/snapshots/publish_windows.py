"""Publish table `windows`. It follows the log of table `results`, so it has each published window exactly once.

Each commit names the version of `results` that the table then reflects. So the next publisher knows what is missing,
even after a crash, and a driver that hung can't add anything twice. If epochs have only added rows to `results` since
that version, the new windows are added, and only files with windows that these rows retract or replace are rewritten.
Files with only first panes are copied unchanged: readers ignore the columns of panes. After anything else (a restore,
`forget`, a replaced interval, a lost log) all windows are selected again.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from tidegate.pipelines.definition import results, windows
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.failures import in_words
from tidegate.pipelines.ledger.manifest import DataFile, Manifest
from tidegate.pipelines.ledger.snapshots.foreign_changes import moves_rows
from tidegate.pipelines.ledger.tables.commits import COMMIT, Outrun, commit, id_in
from tidegate.pipelines.ledger.tables.files import (
    add_action,
    check_written,
    copied,
    partition_of,
    remove_action,
    with_footers,
    write_rows,
)
from tidegate.pipelines.ledger.tables.keys import are_forgotten
from tidegate.pipelines.ledger.tables.pipeline_tables import FEED, Handles, PipelineTables
from tidegate.pipelines.ledger.tables.table_log import LogEntry, TableLog
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema, stored_schema

SHOWN = "tidegate_shown"
"""Name of the field in the metadata of a commit to `windows`: the version of `results` that the table reflects."""

_ATTEMPTS = 10

_ROWS_AT_ONCE = 4_000_000
"""Approximate number of rows of `results` that are held in memory to select the newest pane of each window."""


def make_windows(tables: PipelineTables, key: Sequence[str], wanted: WindowsTable) -> None:
    """Create the table if the project's settings ask for it and it does not exist.

    Raises:
        Refused: the table exists with other settings, or a column has the name of the partition column.
    """
    field, path = f"pipelines.{tables.pipeline}.windows", tables.path(windows.NAME)
    if tables.warehouse.exists(path):
        handle = _opened(tables)
        has = {"enabled": True, "partition_by": _unit(handle), "early": _early(handle)}
        for name, value in has.items():
            if value != getattr(wanted, name):
                raise Refused(
                    f"{field}.{name} = {getattr(wanted, name)!r}, but table {path} was created with {value!r}. Change "
                    "the setting back",
                    Remedy(Act.BUILD_WINDOWS, tables.pipeline)
                    if wanted.enabled
                    else Remedy(Act.MOVE_AWAY, tables.pipeline, windows.NAME),
                )
        return
    if not wanted.enabled:
        return
    _create(tables, key, wanted)


def build_windows(tables: PipelineTables, manifest: Manifest, wanted: WindowsTable) -> int:
    """Build the table with the project's settings and all windows of the published epochs. Return how many there are.

    A table with other settings is replaced in its log, so that a driver that hung can no longer commit to it; until the
    windows are written, readers see an empty table. The caller holds the lease.
    """
    if tables.warehouse.exists(tables.path(windows.NAME)):
        handle = _opened(tables)
        if (_unit(handle), _early(handle)) != (wanted.partition_by, wanted.early):
            _create(tables, tuple(manifest.schemas.key), wanted, replace=True)
    else:
        _create(tables, tuple(manifest.schemas.key), wanted)
    publish_windows(tables, manifest, again=True)
    return sum(file["num_records"] for file in active_files(_opened(tables)))


def drop_unreadable(tables: PipelineTables) -> None:
    """Remove the table if it can't be opened: it can be rebuilt from table results."""
    if tables.warehouse.exists(tables.path(windows.NAME)):
        try:
            _opened(tables)
        except Refused:
            tables.warehouse.delete_folder(tables.path(windows.NAME))


def _create(tables: PipelineTables, key: Sequence[str], wanted: WindowsTable, replace: bool = False) -> None:
    rows = arrow_schema(tables.newest(results.NAME))
    windows.check_partitions(tables.pipeline, rows.names, wanted)
    unit = wanted.partition_by
    schema = windows.schema(rows, key, unit).with_metadata({windows.EARLY: str(wanted.early).lower(), FEED: "true"})
    partitions = [windows.PARTITIONS[unit]] if unit in windows.PARTITIONS else []
    tables.create({windows.NAME: schema}, partitions, replace=replace)


def publish_windows(
    tables: PipelineTables, manifest: Manifest, again: bool = False, handles: Handles | None = None
) -> bool:
    """Update the table to the newest version of `results`. Return False if it is up to date or does not exist.

    With `again`, all windows are selected again.

    Raises:
        Refused: the table can't be opened, or its commits keep failing.
    """
    path = tables.path(windows.NAME)
    if not tables.warehouse.exists(path):
        return False
    key, handles = tuple(manifest.schemas.key), handles or Handles()
    for _ in range(_ATTEMPTS):
        handle, source = _opened(tables, handles), handles.open(tables, results.NAME)
        since = None if again else shown(tables, handle)
        changes = None if since is None else _changes(tables, since, source)
        added = None if changes is None else _added(changes)
        if added is not None and not added and since is not None and since.results == source.version():
            return False
        step = _Step(tables, handle, source, key)
        if step.widen():
            continue
        try:
            if changes is not None and _only_forgot(changes, manifest):
                step.forget(manifest)
            else:
                step.commit(added, manifest)
        except Outrun:
            continue
        handles.keep(windows.NAME, handle)
        return True
    raise Refused(
        f"epoch {manifest.epoch} can't be published to {path}: other commits to that table keep interfering. "
        "Only tidegate may write to it: stop the other writer, then run again"
    )


@dataclass(frozen=True, slots=True)
class Shown:
    """The version of table `results` that the table reflects, and the id of the commit that created that version.

    The id differs if the log of `results` lost its end and was continued afterwards.
    """

    results: int
    commit: str | None


def shown(tables: PipelineTables, handle: DeltaTable) -> Shown | None:
    """Return what the table reflects, or None if that is unknown, for example because somebody else changed it."""
    log = TableLog(tables, windows.NAME)
    for version in range(handle.version(), -1, -1):
        try:
            entry = log.entry(version)
        except Refused:
            return None
        if version == 0 and entry is not None and not entry.added:
            return _nothing(tables)
        if entry is None or COMMIT not in entry.info:
            return None
        if SHOWN in entry.info:
            return Shown(**entry.info[SHOWN])
        if (entry.added or entry.removed) and not moves_rows(entry):
            return None
    return None


def _nothing(tables: PipelineTables) -> Shown | None:
    """Return the version that created `results`, or None if it already had rows or its log entry no longer exists."""
    entry = TableLog(tables, results.NAME).entry(0)
    return None if entry is None or entry.added else Shown(0, id_in(entry.info))


def _changes(tables: PipelineTables, since: Shown, source: DeltaTable) -> list[LogEntry] | None:
    """Return the entries that changed rows of `results` since a version, or None if its log does not tell."""
    if since.results > source.version():
        return None
    log, changes = TableLog(tables, results.NAME), list[LogEntry]()
    for version in range(since.results, source.version() + 1):
        entry = log.entry(version)
        if entry is None or (version == since.results and id_in(entry.info) != since.commit):
            return None
        if version > since.results and (entry.added or entry.removed) and not moves_rows(entry):
            changes.append(entry)
    return changes


def _added(changes: Sequence[LogEntry]) -> list[str] | None:
    """Return the files that epochs added, or None if the changes are anything else."""
    added = list[str]()
    for entry in changes:
        epoch = entry.snapshot
        if entry.removed or epoch is None or (epoch["parent"] or 0) != epoch["epoch"] - 1:
            return None
        added += sorted(entry.added)
    return added


def _only_forgot(changes: Sequence[LogEntry], manifest: Manifest) -> bool:
    """Return True if the changes are those of an epoch that forgets keys."""
    return manifest.kind == "forget" and all(
        entry.snapshot is not None and entry.snapshot["epoch"] == manifest.epoch for entry in changes
    )


def _opened(tables: PipelineTables, handles: Handles | None = None) -> DeltaTable:
    try:
        return (handles or Handles()).open(tables, windows.NAME)
    except Refused as error:
        raise Refused(
            f"table {tables.path(windows.NAME)} can't be used: {error.__cause__ or error.message}",
            *tables.remedies(windows.NAME),
        ) from error


def _unit(handle: DeltaTable) -> str:
    columns = handle.metadata().partition_columns
    return next((unit for unit, column in windows.PARTITIONS.items() if column in columns), "none")


def _early(handle: DeltaTable) -> bool:
    return handle.metadata().configuration.get(windows.EARLY) == "true"


@dataclass(frozen=True, slots=True)
class _Step:
    """One commit to the table. Its handle was opened before anything is read."""

    tables: PipelineTables
    handle: DeltaTable
    source: DeltaTable
    key: tuple[str, ...]

    def widen(self) -> bool:
        """Add the columns that `results` has gained since. Return True if there were any."""
        wanted = windows.schema(arrow_schema(self.source), self.key, _unit(self.handle))
        known = list(arrow_schema(self.handle))
        return any(column not in known for column in wanted) and self.tables.widen({windows.NAME: wanted})

    def commit(self, added: Sequence[str] | None, manifest: Manifest) -> None:
        """Add the windows of these files of `results`, and remove what they replace; None selects all windows again."""
        try:
            changed = None if added is None else self._appended(added)
        except Refused:
            # The file has been compacted and cleaned up, or a file of this table is damaged: results has all rows.
            changed = None
        self._commit(*(changed or self._selected()), manifest)

    def forget(self, manifest: Manifest) -> None:
        """Rewrite the files that hold forgotten keys without their windows.

        Like a compaction, the commit says that it changes no data: a reader of the change feed can't read the windows
        that it erases, and whoever copied them has to erase the copies.
        """
        path, schema = self.tables.path(windows.NAME), stored_schema(self.handle)
        adds, removes = list[AddAction](), list[RemoveAction]()
        for file in active_files(self.handle):
            rows = self.tables.warehouse.read_files(path, [file["path"]], schema)
            goes = are_forgotten(rows, self.key, manifest.publish[results.NAME].forgotten)
            if not pc.any(goes).as_py():
                continue
            removes.append(remove_action(file, data_change=False))
            adds += self._file(rows.filter(pc.invert(goes)), partition_of(file), data_change=False)
        self._commit(adds, removes, manifest)

    def _commit(self, adds: Sequence[AddAction], removes: Sequence[RemoveAction], manifest: Manifest) -> None:
        entry = TableLog(self.tables, results.NAME).entry(self.source.version())
        now = Shown(self.source.version(), None if entry is None else id_in(entry.info))
        application = self.tables.application
        epoch = self.source.transaction_version(application) or manifest.epoch
        commit(
            self.tables.warehouse,
            self.handle,
            [*adds, *removes],
            {"tidegate": {"timeline": manifest.timeline, "epoch": epoch}, SHOWN: asdict(now)},
            transactions=[Transaction(application, epoch)],
        )

    def _selected(self) -> tuple[list[AddAction], list[RemoveAction]]:
        """Return all windows in new files, replacing every file of the table."""
        early, adds = _early(self.handle), list[AddAction]()
        for rows in self._read(active_files(self.source)):
            adds += self._divided(windows.current_panes(rows, self.key, early))
        return adds, [remove_action(file) for file in active_files(self.handle)]

    def _appended(self, added: Sequence[str]) -> tuple[list[AddAction], list[RemoveAction]] | None:
        """Return the windows of added files, and the remaining rows of files with windows that they replace."""
        files = active_files(self.source, added)
        if len(files) != len(added):
            # The file was compacted since then.
            return None
        if all(windows.are_first_panes(file, _early(self.handle)) for file in files):
            return self._copies(files), []
        adds, removes, replaced = list[AddAction](), list[RemoveAction](), list[pa.Table]()
        for rows in self._read(files):
            adds += self._divided(windows.current_panes(rows, self.key, _early(self.handle)))
            replaced.append(windows.replacing(rows, self.key))
        gone = pa.concat_tables(replaced) if replaced else None
        if gone is None or not len(gone):
            return adds, removes
        starts, without_start = windows.starts_of(gone)
        schema, path = stored_schema(self.handle), self.tables.path(windows.NAME)
        for file in active_files(self.handle):
            if not windows.may_hold(file, starts, without_start):
                continue
            rows = self.tables.warehouse.read_files(path, [file["path"]], schema)
            left = windows.without(rows, gone, self.key)
            if left is not None:
                removes.append(remove_action(file))
                adds += [add for part in left for add in self._file(part, partition_of(file))]
        return adds, removes

    def _copies(self, files: Sequence[dict[str, Any]]) -> list[AddAction]:
        """Return copies of files that have one row per window. Files with windows of several partitions are split."""
        warehouse, path, unit = self.tables.warehouse, self.tables.path(windows.NAME), _unit(self.handle)
        source, columns = self.tables.path(results.NAME), stored_schema(self.handle).names
        adds, copies, partitions = list[AddAction](), dict[str, DataFile](), list[dict[str, str | None]]()
        for file in files:
            if (partition := windows.partition_of_all(file, unit)) is None:
                for rows in self._read([file]):
                    adds += self._divided(rows)
                continue
            copy = copied(file, f"{windows.NAME}-{uuid.uuid4().hex}.parquet", columns)
            copies[file["path"]] = copy
            partitions.append(partition)
        warehouse.copy_files((source, name, path, copy.path) for name, copy in copies.items())
        check_written(warehouse, path, list(copies.values()))
        described = with_footers(warehouse, path, list(copies.values()))
        of_copies = zip(described, partitions, strict=True)
        return [*adds, *(add_action(copy, partition=partition) for copy, partition in of_copies)]

    def _read(self, files: Sequence[dict[str, Any]]) -> Iterator[pa.Table]:
        """Yield the rows of files of `results`, all panes of a window together, in parts that fit into memory."""
        schema, path = arrow_schema(self.source), self.tables.path(results.NAME)
        names, rows = [file["path"] for file in files], sum(file["num_records"] for file in files)
        parts = 1 << (rows // _ROWS_AT_ONCE).bit_length()
        for part in range(parts):
            of_part = pc.equal(pc.bit_wise_and(pc.field("window_id"), pa.scalar(parts - 1, pa.int64())), part)
            try:
                yield self.tables.warehouse.read_files(path, names, schema, where=of_part if parts > 1 else None)
            except Refused as error:
                reason = in_words(error.__cause__ or error).rstrip(".")
                raise Refused(
                    f"a file of table {path} can't be read, so its windows can't be published: {reason}",
                    *self.tables.remedies(results.NAME),
                ) from error

    def _divided(self, rows: pa.Table) -> Iterator[AddAction]:
        """Write windows into a file for each partition, and return the files."""
        columns = stored_schema(self.handle)
        for partition, part in windows.by_partition(rows, _unit(self.handle)):
            yield from self._file(part.select(columns.names).cast(columns), partition)

    def _file(self, rows: pa.Table, partition: dict[str, str | None], data_change: bool = True) -> list[AddAction]:
        warehouse, path = self.tables.warehouse, self.tables.path(windows.NAME)
        files = write_rows(warehouse, path, windows.NAME, rows)
        check_written(warehouse, path, files)
        return [add_action(file, data_change, partition) for file in files]

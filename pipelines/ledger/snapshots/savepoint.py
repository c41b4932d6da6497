"""Savepoints: named copies of a snapshot that no retention, VACUUM or cleanup of the log removes.

A savepoint is a folder with a Delta table of the state rows and the manifest, and, if wanted, copies of the published
tables. It is below the pipeline's folder in the warehouse or in another place. Any engine can read its tables, and
users can copy its folder elsewhere. The table of the state is created last: without it, there is no savepoint.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError

from tidegate.pipelines.definition import state
from tidegate.pipelines.definition.names import check_name
from tidegate.pipelines.errors import FilesMissing, Refused, TidegateError, UsageError
from tidegate.pipelines.ledger.manifest import DataFile, Manifest
from tidegate.pipelines.ledger.snapshots.foreign_changes import find_change
from tidegate.pipelines.ledger.snapshots.head import (
    Snapshot,
    lineage,
    newest_record,
    no_snapshot_yet,
    require_snapshot,
    snapshot_in,
    snapshots_by_epoch,
)
from tidegate.pipelines.ledger.snapshots.table_copies import FOLDER as COPIES
from tidegate.pipelines.ledger.snapshots.table_copies import TableContent, contents_in, copy_to_savepoint
from tidegate.pipelines.ledger.tables.commits import Outrun, create
from tidegate.pipelines.ledger.tables.files import add_action, check_written, copied, with_footers
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, SAVEPOINTS, PipelineTables
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.storage.delta_log import FOLDER as LOG
from tidegate.pipelines.storage.warehouse import Warehouse, active_files, path_of
from tidegate.windowing.time import Millis

SAVEPOINT = "savepoint:"
"""Prefix of a savepoint's name where other snapshots can also be named."""


@dataclass(frozen=True, slots=True)
class SavepointEntry:
    """A readable savepoint in a list. The time is int64 epoch milliseconds, the size of its files is in bytes.

    `with_tables` is True if it has copies of the published tables.
    """

    name: str
    path: str
    created_at: Millis
    size: int
    manifest: Manifest
    with_tables: bool = False


@dataclass(frozen=True, slots=True)
class BrokenSavepoint:
    """A savepoint that can't be read; the reason is the first line of the error."""

    name: str
    path: str
    reason: str


def create_savepoint(
    tables: PipelineTables,
    snapshot: Snapshot,
    name: str,
    now: Millis,
    *,
    place: PipelineTables | None = None,
    contents: Mapping[str, TableContent] | None = None,
) -> SavepointEntry:
    """Copy a snapshot under a name.

    Args:
        tables: the tables of the pipeline.
        snapshot: the snapshot.
        name: name of the savepoint.
        now: current time, int64 epoch milliseconds.
        place: the folder of the pipeline in another place; None for the warehouse.
        contents: the published tables as of the snapshot; None copies only the state.

    Raises:
        UsageError: the name is not valid, or is taken.
        Refused: a file of the snapshot has been removed, or a key that it may hold was forgotten.
    """
    copy = _Copy(tables, snapshot, place or tables, name, contents)
    left_behind = copy.make_room()
    files = copy.copy_files()
    copy.commit(files, now)
    copy.check(files)
    for file in left_behind:
        copy.place.warehouse.delete_file(copy.path, file)
    return _entry(copy.place, name)


@dataclass(frozen=True, slots=True)
class _Copy:
    """A savepoint that is being created. Each step may find that another command has taken its name.

    The fields are the arguments of `create_savepoint`.
    """

    tables: PipelineTables
    snapshot: Snapshot
    place: PipelineTables
    name: str
    contents: Mapping[str, TableContent] | None

    @property
    def path(self) -> str:
        return _path(self.place, self.name)

    @property
    def _taken(self) -> UsageError:
        return UsageError(
            f"savepoint {self.name!r} of {self.tables.pipeline} exists: delete it first, or give another name"
        )

    def make_room(self) -> list[str]:
        """Check that the name is free, and return the files that an interrupted command left under it."""
        path, warehouse = self.path, self.place.warehouse
        # The warehouse of another place does not know which folders of this one may not be links.
        for folder in (self.snapshot.path, *(content.folder for content in (self.contents or {}).values())):
            self.tables.warehouse.check_no_link(folder)
        exists = warehouse.exists(path)
        if _is_complete(self.place, path):
            raise self._taken
        if exists or self.name in warehouse.links(path.rpartition("/")[0]):
            # If it is a link, only that is removed.
            warehouse.delete_folder(path)
        left_behind = [*warehouse.names(path)]
        # An interrupted command may have left copied tables.
        warehouse.delete_folder(f"{path}/{COPIES}")
        return left_behind

    def copy_files(self) -> list[DataFile]:
        """Copy the tables and the files of the snapshot, and return the copied files of the snapshot."""
        try:
            if self.contents is not None:
                others = [entry.path for entry in list_savepoints(self.place) if entry.with_tables]
                copy_to_savepoint(self.place.warehouse, self.path, self.contents, others)
            # Another command may be copying under this name: whichever creates the table first gets the name.
            return copy_files(self.place, self.snapshot, self.path, "state", with_manifest=True)
        except Outrun as error:
            raise self._taken from error

    def commit(self, files: Sequence[DataFile], now: Millis) -> None:
        """Create the table of the savepoint with its files."""
        tables, place, warehouse, manifest = self.tables, self.place, self.place.warehouse, self.snapshot.manifest
        record = {
            **manifest.short(),
            "savepoint": self.name,
            "created_at": now,
            "with_tables": self.contents is not None,
            "table_id": str(tables.newest(state.NAME).metadata().id),
            "schemas": {table: tables.newest(table).schema().to_json() for table in ALL},
            "run_ids": {str(entry.epoch): entry.manifest["run_id"] for entry in lineage(tables, manifest.epoch)},
        }
        title, actions = f"{tables.pipeline}.{SAVEPOINTS}.{self.name}", [add_action(file) for file in files]
        try:
            check_written(warehouse, self.path, files)
            create(warehouse, self.path, self.snapshot.handle.schema(), actions, {"tidegate": record}, title)
        except Outrun as error:
            for file in files:
                warehouse.delete_file(self.path, file.path)
            if not any(entry.with_tables for entry in list_savepoints(place) if entry.name == self.name):
                warehouse.delete_folder(f"{self.path}/{COPIES}")
            raise self._taken from error
        except FilesMissing as error:
            # The command that takes the name first, or `forget`, also removes incomplete copies.
            if _is_complete(place, self.path):
                raise self._taken from error
            _check_copy(tables, self.snapshot, place, self.name)
            raise

    def check(self, files: Sequence[DataFile]) -> None:
        """Delete the savepoint, and raise an error, if it may hold a forgotten key or is not whole."""
        path, warehouse = self.path, self.place.warehouse
        _check_copy(self.tables, self.snapshot, self.place, self.name)
        try:
            # A process that removed part of the copy before the table existed did not know about it.
            check_written(warehouse, path, files)
            if self.contents is not None and len(contents_in(warehouse, path)) < len(self.contents):
                raise FilesMissing(f"tables of savepoint {path} were removed while it was created")
        except (FilesMissing, Refused):
            warehouse.delete_folder(path)
            raise


def _check_copy(tables: PipelineTables, copied: Snapshot, place: PipelineTables, name: str) -> None:
    """Delete a copy that may hold a key that was forgotten during the copy."""
    try:
        check_nothing_forgotten(tables, copied)
    except Refused as error:
        place.warehouse.delete_folder(_path(place, name))
        raise Refused(f"{error}: savepoint {name!r} was not created. Try again") from error


def check_nothing_forgotten(tables: PipelineTables, copied: Snapshot) -> None:
    """Refuse a copy that may hold a key that was forgotten during the copy.

    `forget` commits its epoch, removes all older snapshots, and then cleans all copies, even incomplete ones. A later
    copy either sees the epoch of `forget` here, or its own snapshot is gone.

    Raises:
        Refused: the copied snapshot was removed, or a later epoch forgot a key.
    """
    if copied.path != tables.path(state.NAME):
        return
    entries, epoch = snapshots_by_epoch(tables), copied.manifest.epoch
    kinds = [entry.manifest["kind"] for later, entry in entries.items() if later > epoch]
    if epoch not in entries or "forget" in kinds:
        raise Refused(
            f"epoch {epoch} of {tables.pipeline} was removed while it was copied, or a key that it may hold was "
            "forgotten"
        )


def read_savepoint(tables: PipelineTables, name: str) -> Snapshot:
    """Return the snapshot in a savepoint.

    Raises:
        UsageError: there is no such savepoint.
        Refused: the savepoint belongs to another pipeline.
    """
    path = _path(tables, name)
    if not _is_complete(tables, path):
        names = ", ".join(entry.name for entry in list_savepoints(tables)) or "none"
        raise UsageError(f"no savepoint {name!r} of {tables.pipeline}; its savepoints: {names}")
    snapshot = _open(tables, path)
    if snapshot.manifest.pipeline != tables.pipeline:
        raise Refused(
            f"savepoint {path} belongs to pipeline {snapshot.manifest.pipeline!r}, not to {tables.pipeline!r}: move "
            f"its folder to the savepoints of {snapshot.manifest.pipeline}, and restore it with --from "
            f"{snapshot.manifest.pipeline}"
        )
    return snapshot


def find_snapshot(tables: PipelineTables, target: str) -> Snapshot:
    """Return the snapshot that a user names: `latest`, an epoch's number, or `savepoint:NAME`.

    If somebody else changed table `state`, `latest` is the snapshot before the change.

    Raises:
        UsageError: no snapshot has that name; the message lists the names that exist.
        Refused: the pipeline has no snapshot at all, or the savepoint belongs to another pipeline.
    """
    if target.startswith(SAVEPOINT):
        return read_savepoint(tables, target.removeprefix(SAVEPOINT))
    versions = {str(epoch): entry.version for epoch, entry in snapshots_by_epoch(tables).items()}
    if target != "latest" and target not in versions:
        if not versions:
            raise UsageError(
                f"{target!r} is not a snapshot: {no_snapshot_yet(tables)}. For a savepoint, give savepoint:NAME"
            )
        raise UsageError(
            f"{target!r} is not a snapshot of {tables.pipeline}: give latest, savepoint:NAME, or one of the epochs "
            f"{', '.join(versions)}"
        )
    if target == "latest" and tables.exist and (change := find_change(tables, state.NAME)) is not None:
        return require_snapshot(tables, change.good)
    return require_snapshot(tables, versions.get(target))


@dataclass(frozen=True, slots=True)
class Origin:
    """The pipeline in which a savepoint was created.

    Args:
        table_id: Delta id of its table `state`.
        schemas: by table, the columns.
        run_ids: by epoch, the run id of the savepoint's epoch and of its ancestors in the log at that time. A
            savepoint of an older tidegate has none.
    """

    table_id: str
    schemas: dict[str, pa.Schema]
    run_ids: dict[int, str]


def origin_of(warehouse: Warehouse, savepoint: Snapshot) -> Origin:
    """Return the pipeline in which a savepoint was created. Its folder may have been copied since then."""
    record = _record(warehouse, savepoint.handle)
    schemas = {table: pa.schema(Schema.from_json(text).to_arrow()) for table, text in record["schemas"].items()}
    return Origin(record["table_id"], schemas, {int(epoch): run for epoch, run in record.get("run_ids", {}).items()})


def list_savepoints(tables: PipelineTables) -> list[SavepointEntry]:
    """Return every readable savepoint of a pipeline, newest first."""
    readable = [entry for entry in _entries(tables) if isinstance(entry, SavepointEntry)]
    return sorted(readable, key=lambda entry: -entry.created_at)


def broken_savepoints(tables: PipelineTables) -> list[BrokenSavepoint]:
    """Return every unreadable savepoint by name: damaged, partially copied, or written by a newer tidegate."""
    return [entry for entry in _entries(tables) if isinstance(entry, BrokenSavepoint)]


def delete_savepoint(tables: PipelineTables, name: str) -> None:
    """Remove a savepoint, even an unreadable one, or what an interrupted command left of it.

    Nothing else refers to its files.

    Raises:
        UsageError: there is no such savepoint.
        Refused: the savepoint belongs to another pipeline.
    """
    path = _path(tables, name)
    has_rest = any(tables.warehouse.names(folder) for folder in (path, f"{path}/{LOG}"))
    has_rest |= COPIES in tables.warehouse.folders(path)
    if name not in {broken.name for broken in broken_savepoints(tables)} and (
        _is_complete(tables, path) or not has_rest
    ):
        read_savepoint(tables, name)
    tables.warehouse.delete_folder(path)


def remove_rests(tables: PipelineTables) -> None:
    """Remove what interrupted commands left of savepoints; refuse while another command is copying one."""
    folder = tables.warehouse.path(tables.pipeline, SAVEPOINTS)
    listed = {entry.name for entry in _entries(tables)}
    for name in tables.warehouse.folders(folder):
        if name in listed:
            continue
        path = f"{folder}/{name}"
        if not tables.warehouse.exists(path):
            # A process that is copying into it, or hangs, must not create the table once its files are gone.
            with suppress(Outrun):
                create(tables.warehouse, path, tables.newest(state.NAME).schema(), [], {}, f"{tables.pipeline}.{name}")
        if not _is_complete(tables, path):
            tables.warehouse.delete_folder(path)


def copy_files(
    tables: PipelineTables,
    snapshot: Snapshot,
    target: str,
    prefix: str,
    with_manifest: bool = False,
    share: bool = False,
) -> list[DataFile]:
    """Copy a snapshot's state files into another table's folder, without a commit. Return the copies.

    With `share`, they are hard links if the file system supports that.
    """
    listed = {file["path"]: file for file in (*snapshot.files, *(snapshot.manifest_files if with_manifest else ()))}
    # The name of a copy is new: if it included the original's name, names of repeated copies would become too long.
    copies = {
        path: copied(file, f"{prefix}-{number:05d}-{uuid.uuid4().hex}.parquet")
        for number, (path, file) in enumerate(listed.items())
    }
    tables.warehouse.copy_files(((snapshot.path, path, target, copy.path) for path, copy in copies.items()), share)
    return with_footers(tables.warehouse, target, list(copies.values()))


def _path(tables: PipelineTables, name: str) -> str:
    try:
        check_name(name)
    except ValueError as error:
        raise UsageError(f"savepoint {error}") from error
    return tables.warehouse.path(tables.pipeline, SAVEPOINTS, name)


def _is_complete(tables: PipelineTables, path: str) -> bool:
    """Return True if a folder holds a table with files, even if its log is damaged."""
    try:
        return tables.warehouse.exists(path) and bool(active_files(tables.warehouse.open(path)))
    except DeltaError:
        # An interrupted deletion, which removes the log last, leaves no data files.
        return any(name.endswith(".parquet") for name in tables.warehouse.names(path))


def _open(tables: PipelineTables, path: str) -> Snapshot:
    try:
        handle = tables.warehouse.open(path)
    except DeltaError as error:
        reason = str(error).partition("\n")[0]
        raise Refused(f"savepoint {path} can't be opened: {reason}", Remedy(Act.COPY_AGAIN)) from error
    snapshot = snapshot_in(tables.warehouse, path, handle, [Remedy(Act.COPY_AGAIN)])
    if snapshot is None:
        raise Refused(f"savepoint {path} has no manifest: only tidegate may change it. Remove that folder")
    return snapshot


def _record(warehouse: Warehouse, handle: DeltaTable) -> dict[str, Any]:
    """Return the metadata that `create_savepoint` wrote into the commit of a savepoint."""
    record: dict[str, Any] = newest_record(warehouse, handle).get("tidegate", {})
    if not {"created_at", "table_id", "schemas"} <= record.keys():
        raise Refused(
            f"savepoint {path_of(handle)} does not record where it was created: its log was changed",
            Remedy(Act.COPY_AGAIN),
        )
    return record


def _entries(tables: PipelineTables) -> Iterator[SavepointEntry | BrokenSavepoint]:
    folder = tables.warehouse.path(tables.pipeline, SAVEPOINTS)
    for name in tables.warehouse.folders(folder):
        path = f"{folder}/{name}"
        try:
            if _is_complete(tables, path):
                yield _entry(tables, name)
        except (TidegateError, DeltaError) as error:
            yield BrokenSavepoint(name, path, str(error).partition("\n")[0])


def _entry(tables: PipelineTables, name: str) -> SavepointEntry:
    path = _path(tables, name)
    snapshot = _open(tables, path)
    record = _record(tables.warehouse, snapshot.handle)
    files: Sequence[dict[str, object]] = (*snapshot.files, *snapshot.manifest_files)
    sizes = {str(file["path"]): int(str(file["size_bytes"])) for file in files}
    with_tables = bool(record.get("with_tables"))
    copies = contents_in(tables.warehouse, path) if with_tables else {}
    size = sum(sizes.values()) + sum(file.size for content in copies.values() for file in content.files)
    return SavepointEntry(name, path, record["created_at"], size, snapshot.manifest, with_tables)

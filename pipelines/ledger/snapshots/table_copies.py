"""Copied tables: the published tables in a savepoint, or in a pipeline that begins from another one's snapshot.

In a savepoint, each copied table is a Delta table of its own, which any engine can read; nothing in it names the
pipeline. `tables_at` says which rows a copy has.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from deltalake import DeltaTable, Schema

from tidegate.pipelines.errors import FilesMissing, Refused
from tidegate.pipelines.ledger.manifest import DataFile
from tidegate.pipelines.ledger.snapshots.head import Snapshot
from tidegate.pipelines.ledger.tables.commits import create
from tidegate.pipelines.ledger.tables.files import add_action, check_written, copied
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.storage.delta_log import FOLDER as LOG
from tidegate.pipelines.storage.delta_log import statistics_in
from tidegate.pipelines.storage.warehouse import Warehouse, active_files, path_of

FOLDER = "_tables"
"""Folder of the copied tables in a savepoint. Cleanups by Delta leave out folders whose name begins with `_`."""


@dataclass(frozen=True, slots=True)
class TableContent:
    """The files of a published table as of a snapshot.

    Args:
        folder: their folder.
        schema: columns of the table.
        files: the files.
        written: names of the files that were written for the copy only.
    """

    folder: str
    schema: Schema
    files: tuple[DataFile, ...]
    written: tuple[str, ...] = ()


def data_files(warehouse: Warehouse, handle: DeltaTable) -> tuple[DataFile, ...]:
    """Return the active files of an opened table, with the statistics that its log has."""
    path = path_of(handle)
    names = [*warehouse.names(f"{path}/{LOG}")]
    adds = warehouse.log(path).added(handle.version(), names, ["stats"])
    files = [copied(file, file["path"]) for file in active_files(handle)]
    return tuple(
        file.model_copy(update={"stats": json.dumps(statistics_in(adds[file.path]))}) if file.path in adds else file
        for file in files
    )


def copy_to_savepoint(
    warehouse: Warehouse, path: str, contents: Mapping[str, TableContent], others: Sequence[str]
) -> None:
    """Create the tables of a savepoint in its folder; a file that another savepoint has is copied from there.

    On a disk, such a file is a hard link, so that unchanged files take no further space.

    Args:
        warehouse: the warehouse or place of the savepoint.
        path: folder of the savepoint.
        contents: the contents to copy.
        others: folders of other savepoints in the same place, newest first.

    Raises:
        Outrun: another command is creating the same savepoint.
    """
    for table, content in contents.items():
        target = f"{path}/{FOLDER}/{table}"
        present = {
            name: (folder, size)
            for other in reversed(others)
            for folder in (f"{other}/{FOLDER}/{table}",)
            for name, size in warehouse.names(folder).items()
        }
        kept = [file for file in content.files if present.get(file.path, ("", -1))[1] == file.size]
        names = {file.path for file in kept}
        new = [file for file in content.files if file.path not in names]
        warehouse.copy_files([(present[file.path][0], file.path, target, file.path) for file in kept], share=True)
        warehouse.copy_files([(content.folder, file.path, target, file.path) for file in new])
        check_written(warehouse, target, content.files)
        create(warehouse, target, content.schema, [add_action(file) for file in content.files], {}, f"{table}")


def copied_tables(warehouse: Warehouse, path: str) -> Iterator[tuple[str, DeltaTable]]:
    """Yield the copied tables of a savepoint, opened; none if it holds only the state."""
    for table in PUBLISHED:
        folder = f"{path}/{FOLDER}/{table}"
        if warehouse.exists(folder):
            yield table, warehouse.open(folder)


def contents_in(warehouse: Warehouse, path: str) -> dict[str, TableContent]:
    """Return the contents of the tables in a savepoint; empty if it holds only the state.

    Raises:
        Refused: a file is missing.
    """
    contents = {
        table: TableContent(f"{path}/{FOLDER}/{table}", handle.schema(), data_files(warehouse, handle))
        for table, handle in copied_tables(warehouse, path)
    }
    if contents and (lost := [table for table in PUBLISHED if table not in contents]):
        raise Refused(f"savepoint {path} is incomplete: its copy of table {lost[0]} is lost. Restore another savepoint")
    for content in contents.values():
        _check_complete(warehouse, path, content.folder, content.files)
    return contents


def check_state_in(warehouse: Warehouse, savepoint: Snapshot) -> None:
    """Check that all files of a savepoint's state exist.

    Raises:
        Refused: a file is missing or has a different size.
    """
    files = [copied(file, file["path"]) for file in (*savepoint.files, *savepoint.manifest_files)]
    _check_complete(warehouse, savepoint.path, savepoint.path, files)


def _check_complete(warehouse: Warehouse, savepoint: str, folder: str, files: Sequence[DataFile]) -> None:
    try:
        check_written(warehouse, folder, files)
    except FilesMissing as error:
        raise Refused(f"savepoint {savepoint} is incomplete: {error}. Restore another savepoint") from error


def bring(tables: PipelineTables, table: str, content: TableContent, epoch: int) -> tuple[DataFile, ...]:
    """Copy the files of a content into a pipeline's table, without a commit. Return the copies."""
    target = tables.path(table)
    copies = [
        (file, file.model_copy(update={"path": f"{table}-{epoch:06d}-{uuid.uuid4().hex}.parquet"}))
        for file in content.files
    ]
    tables.warehouse.copy_files(((content.folder, file.path, target, copy.path) for file, copy in copies), share=True)
    return tuple(copy for _, copy in copies)

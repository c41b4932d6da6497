"""Lost tables made again from a backup: with the same files, versions and ids, so whoever read them goes on reading."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.backups.backup import POOL, Backup, content_of, copy_all
from tidegate.pipelines.delta_log import FOLDER, LAST_CHECKPOINT, version_of
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.tables import state
from tidegate.pipelines.tables.pipeline_tables import PipelineTables


def restore_backup(tables: PipelineTables, place: PipelineTables, backup: Backup) -> int:
    """Make the tables of a pipeline again as a backup has them; return the number of bytes that were copied.

    Data files come first and log entries last, those of table `state` at the very end, the newest first. So no command
    takes tables for complete that are not, and after an interruption the same call goes on. The caller holds the lease
    of the pipeline.

    Raises:
        Refused: there are tables that are not of an interrupted call, or a file of the backup is missing.
    """
    rows = content_of(place, backup.name)
    names = list(backup.versions)
    _check_free(tables, rows, names)
    copied = sum(_bring_files(tables, place, _of(rows, name, is_log=False), name) for name in names)
    for name in names:
        folder = f"{tables.path(name)}/{FOLDER}"
        present = tables.warehouse.names(folder)
        entries = {row["name"]: row["content"] for row in _of(rows, name, is_log=True).to_pylist()}
        for entry in sorted(entries, key=lambda each: (each == LAST_CHECKPOINT, version_of(each) or 0), reverse=True):
            if present.get(entry) != len(entries[entry]):
                within, _, file = f"{folder}/{entry}".rpartition("/")
                tables.warehouse.replace_file(within, file, entries[entry])
        tables.warehouse.make_durable(folder)
    return copied


def _check_free(tables: PipelineTables, rows: pa.Table, names: list[str]) -> None:
    """Refuse to write over tables that exist, unless an interrupted call left them."""
    for name in (*names, state.NAME):
        listed = tables.warehouse.names(f"{tables.path(name)}/{FOLDER}")
        # A process that was killed may have left the beginning of a file.
        present = {file: size for file, size in listed.items() if not file.endswith(".tmp")}
        expected = {row["name"]: row["size"] for row in _of(rows, name, is_log=True).to_pylist()}
        complete = expected.items() <= present.items()
        if not present.items() <= expected.items() or (name == state.NAME and complete):
            raise Refused(
                f"there is a table {tables.path(name)}: a backup is restored only where the pipeline has no tables. "
                f"Move the folder {tables.warehouse.path(tables.pipeline)} away, and run the command again. To go back "
                f"within tables that are whole, use `tidegate restore {tables.pipeline}` with a snapshot"
            )


def _bring_files(tables: PipelineTables, place: PipelineTables, files: pa.Table, name: str) -> int:
    pool, target = place.path(f"{POOL}/{name}"), tables.path(name)
    sizes = {row["name"]: row["size"] for row in files.to_pylist()}
    stored, present = place.warehouse.names(pool), tables.warehouse.names(target)
    lost = sorted(file for file, size in sizes.items() if stored.get(file) != size)
    if lost:
        raise Refused(
            f"{len(lost)} files of the backup are missing or cut short in {pool}, the first is {lost[0]}: nothing of "
            f"table {name} was restored. Restore another backup: `tidegate backup list {tables.pipeline}`"
        )
    missing = [file for file, size in sizes.items() if present.get(file) != size]
    copy_all(tables.warehouse, [(pool, target, file) for file in missing])
    if missing:
        tables.warehouse.make_durable(target)
    return sum(sizes[file] for file in missing)


def _of(rows: pa.Table, name: str, is_log: bool) -> pa.Table:
    """Return the rows of one table's log, or of its data files."""
    content = pc.field("content")
    return rows.filter((pc.field("table") == name) & (content.is_valid() if is_log else content.is_null()))

"""Lost tables made again from a backup: with the same files, versions and ids, so whoever read them goes on reading."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.backups.backup import POOL, Backup, content_of, copy_all
from tidegate.pipelines.backups.cut import SIDECARS, TableCut
from tidegate.pipelines.delta_log import FOLDER, LAST_CHECKPOINT, is_entry, version_of
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.tables import state
from tidegate.pipelines.tables.pipeline_tables import PipelineTables


def restore_backup(tables: PipelineTables, place: PipelineTables, backup: Backup) -> int:
    """Make the tables of a pipeline again as a backup has them; return the number of bytes that were copied.

    The caller holds the lease of the pipeline.

    Raises:
        Refused: there are tables that are not of an interrupted call, or a file of the backup is missing.
    """
    rows = content_of(place, backup.name)
    cuts = [_cut(rows, name, version) for name, version in backup.versions.items()]
    if (table := taken(tables, cuts)) is not None:
        raise Refused(
            f"there is a table {tables.path(table)}: a backup is restored only where the pipeline has no tables. "
            f"Move the folder {tables.warehouse.path(tables.pipeline)} away, and run the command again. To go back "
            f"within tables that are whole, use `tidegate restore {tables.pipeline}` with a snapshot"
        )
    for cut in cuts:
        pool = place.path(f"{POOL}/{cut.name}")
        stored = place.warehouse.names(pool)
        if lost := sorted(file for file, size in cut.files.items() if stored.get(file) != size):
            raise Refused(
                f"{len(lost)} files of the backup are missing or cut short in {pool}, the first is {lost[0]}: nothing "
                f"of table {cut.name} was restored. Restore another backup: `tidegate backup list {tables.pipeline}`"
            )
    return make_tables(tables, cuts, lambda name: place.path(f"{POOL}/{name}"))


def taken(tables: PipelineTables, cuts: Sequence[TableCut]) -> str | None:
    """Return a table that is not of an interrupted `make_tables` with these cuts; None if there is none.

    A table `state` that is whole is one: then the call was not interrupted.
    """
    for cut in cuts:
        # A process that was killed may have left the beginning of a file.
        present = {name for name in log_files(tables, cut.name) if not name.endswith(".tmp")}
        log = tables.warehouse.log(tables.path(cut.name))
        is_whole = cut.name == state.NAME and cut.log.keys() <= present
        if is_whole or any(name not in cut.log or log.read(name) != cut.log[name] for name in present):
            return cut.name
    return None


def make_tables(
    tables: PipelineTables,
    cuts: Sequence[TableCut],
    folder_of: Callable[[str], str],
    check_lease: Callable[[], None] = lambda: None,
) -> int:
    """Make tables as cuts have them; return the number of bytes that were copied.

    Data files come first and logs last, that of table `state` at the very end: its entries, the newest first, and then
    its checkpoints, the newest last. A log without the oldest of its entries, or without the checkpoint that stands for
    older ones, can't be opened. So no command takes tables for complete that are not, and after an interruption the
    same call goes on.

    Args:
        tables: the tables to make; `taken` returned None for them.
        cuts: the tables; `state` comes last.
        folder_of: returns the folder with the data files of a table.
        check_lease: raises LeaseHeld if another command has the lease of the pipeline.
    """
    copied = sum(_bring_files(tables, cut, folder_of(cut.name)) for cut in cuts)
    for cut in cuts:
        folder = f"{tables.path(cut.name)}/{FOLDER}"
        present = log_files(tables, cut.name)
        for entry in sorted(cut.log, key=_order):
            if entry not in present:
                check_lease()
                within, _, file = f"{folder}/{entry}".rpartition("/")
                tables.warehouse.replace_file(within, file, cut.log[entry])
        tables.warehouse.make_durable(folder)
    return copied


def _order(name: str) -> tuple[int, int]:
    """Return the place of a log file among those that are written: the note of the newest checkpoint comes first."""
    if name == LAST_CHECKPOINT or name.startswith(SIDECARS):
        return 0, 0
    return (1, -(version_of(name) or 0)) if is_entry(name) else (2, version_of(name) or 0)


def log_files(tables: PipelineTables, table: str) -> set[str]:
    """Return the files of a table's log, by their paths in it."""
    folder = f"{tables.path(table)}/{FOLDER}"
    below = {f"{SIDECARS}/{each}" for each in tables.warehouse.names(f"{folder}/{SIDECARS}")}
    return below | tables.warehouse.names(folder).keys()


def _cut(rows: pa.Table, name: str, version: int) -> TableCut:
    of_table = rows.filter(pc.field("table") == name)
    content = pc.field("content")
    log = {row["name"]: row["content"] for row in of_table.filter(content.is_valid()).to_pylist()}
    files = {row["name"]: row["size"] for row in of_table.filter(content.is_null()).to_pylist()}
    return TableCut(name, version, log, files)


def _bring_files(tables: PipelineTables, cut: TableCut, source: str) -> int:
    target = tables.path(cut.name)
    present = tables.warehouse.names(target)
    missing = [file for file, size in cut.files.items() if present.get(file) != size]
    copy_all(tables.warehouse, [(source, target, file) for file in missing])
    if missing:
        tables.warehouse.make_durable(target)
    return sum(cut.files[file] for file in missing)

"""Removal of all that is below a table's folder and that its newest versions do not need.

This decides by versions alone, so it does not matter what the clocks of commits said. It is for data that must not
stay anywhere: it also removes what killed commands and other writers left, such as uncommitted data files, change data,
damaged log entries that were set aside, and parts of files.
"""

from __future__ import annotations

from collections.abc import Iterable

from tidegate.pipelines.delta_log import FOLDER, LAST_CHECKPOINT, version_of
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.tables.table_log import TableLog


def leave_newest(tables: PipelineTables, table: str, since: int, listed: Iterable[str]) -> None:
    """Remove the versions of a table before a version, and every file and folder that no later version needs.

    Args:
        tables: the pipeline's tables.
        table: folder of the table, such as `results` or `savepoints/NAME`.
        since: the version from which on all versions stay.
        listed: files in the table's folder before a commit to it, so that nobody can commit one of them any more.
    """
    path, log = tables.path(table), TableLog(tables, table)
    # The log loses its entries before the files go, so each listed version stays readable if this stops halfway.
    log.keep((), since)
    needed = log.files_since(since)
    for name in sorted(set(listed) - needed):
        tables.warehouse.delete_file(path, name)
    for folder in tables.warehouse.folders(path):
        if folder != FOLDER:
            tables.warehouse.delete_folder(f"{path}/{folder}")
    # What is left in the log's folder was not made by `keep`, whose checkpoints are one file each.
    for name in tables.warehouse.names(log.folder):
        if version_of(name) is None and name != LAST_CHECKPOINT:
            tables.warehouse.delete_file(log.folder, name)
    for folder in tables.warehouse.folders(log.folder):
        tables.warehouse.delete_folder(f"{log.folder}/{folder}")


def has_leftovers(tables: PipelineTables, table: str) -> bool:
    """Return True if a table's folder has something other than data files and a log, which may hold anything."""
    path = tables.path(table)
    return any(not name.endswith(".parquet") for name in tables.warehouse.names(path)) or any(
        folder != FOLDER for folder in tables.warehouse.folders(path)
    )

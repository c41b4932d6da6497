"""Files of tidegate's tables whose footer differs from the one that was written.

The checksum of a footer is among the statistics of its file, in the manifest and in the log. Commands that check tables
compare it before they read a file: a damaged footer may also make reads lack rows.

Each comparison is a request to a store. So a check that continues from an earlier one compares only the files that were
written since: it reads the contents of older files no more either, and a check of everything compares all of them.
"""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from deltalake import DeltaTable

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.tables.files import FOOTER, epoch_of
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, PipelineTables
from tidegate.pipelines.storage.delta_log import FOLDER, statistics_in
from tidegate.pipelines.storage.footers import footer_checksum
from tidegate.pipelines.storage.warehouse import active_files

_AT_ONCE = 8
"""Number of footers that are read concurrently."""


def damaged_footers(
    tables: PipelineTables, table: str, handle: DeltaTable, among: Collection[str] | None = None
) -> frozenset[str]:
    """Return the files of an opened table whose footer was changed. Missing files are not among them.

    Only the files `among` are compared; None stands for all.
    """
    if among is not None and not among:
        return frozenset()
    warehouse, path = tables.warehouse, tables.path(table)
    names = [*warehouse.names(f"{path}/{FOLDER}")]
    adds = warehouse.log(path).added(handle.version(), names, ["stats"])
    active = [file["path"] for file in active_files(handle) if among is None or file["path"] in among]
    recorded = {name: statistics_in(adds[name]).get(FOOTER) for name in active if name in adds}

    def is_damaged(name: str) -> bool:
        try:
            with warehouse.open_file(path, name) as file:
                return footer_checksum(file) != recorded[name]
        except FileNotFoundError:
            return False

    known = [name for name, footer in recorded.items() if footer is not None]
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        return frozenset(name for name, damaged in zip(known, threads.map(is_damaged, known), strict=True) if damaged)


def written_since(handle: DeltaTable, epoch: int | None) -> frozenset[str] | None:
    """Return the files of a table that were written after an epoch; None for all files if `epoch` is None.

    The name of a file has the epoch that wrote it. Compactions and restores write files without one, which may be new.
    """
    if epoch is None:
        return None
    names = (file["path"] for file in active_files(handle))
    return frozenset(name for name in names if (written := epoch_of(name)) is None or written > epoch)


def check_footers(tables: PipelineTables, since: int | None = None) -> None:
    """Refuse tables with a damaged footer in a file that was written after the epoch `since`; None: in any file.

    Raises:
        Refused: a footer is damaged; the message names the file and the remedy.
    """
    for table in tables.with_windows(ALL):
        handle = tables.newest(table)
        if damaged := sorted(damaged_footers(tables, table, handle, written_since(handle, since))):
            raise Refused(
                f"the footer of file {damaged[0]} of table {tables.path(table)} is damaged ({len(damaged)} such)",
                *tables.remedies(table),
            )

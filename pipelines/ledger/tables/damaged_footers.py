"""Files of tidegate's tables whose footer differs from the one that was written.

The checksum of a footer is among the statistics of its file, in the manifest and in the log. Commands that check tables
compare it before they read a file: a damaged footer may also make reads lack rows.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from deltalake import DeltaTable

from tidegate.pipelines.definition import state, windows
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.tables.files import FOOTER
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, PipelineTables
from tidegate.pipelines.storage.delta_log import FOLDER, statistics_in
from tidegate.pipelines.storage.footers import footer_checksum
from tidegate.pipelines.storage.warehouse import active_files

_AT_ONCE = 8
"""Number of footers that are read concurrently."""


def damaged_footers(tables: PipelineTables, table: str, handle: DeltaTable) -> frozenset[str]:
    """Return the files of an opened table whose footer was changed. Missing files are not among them."""
    warehouse, path = tables.warehouse, tables.path(table)
    names = [*warehouse.names(f"{path}/{FOLDER}")]
    adds = warehouse.log(path).added(handle.version(), names, ["stats"])
    active = [file["path"] for file in active_files(handle)]
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


def check_footers(tables: PipelineTables) -> None:
    """Refuse tables with a damaged footer."""
    name = tables.pipeline
    ways = {
        state.NAME: f"restore an older snapshot (`tidegate snapshot list {name}`) or a savepoint",
        windows.NAME: f"run `tidegate windows build {name}`",
    }
    for table in tables.with_windows(ALL):
        if damaged := sorted(damaged_footers(tables, table, tables.newest(table))):
            way = ways.get(table, f"continue without its rows, `tidegate restore {name} latest --give-up-results`")
            raise Refused(
                f"the footer of file {damaged[0]} of table {tables.path(table)} is damaged ({len(damaged)} such). "
                f"Put the file back from a copy, or {way}"
            )

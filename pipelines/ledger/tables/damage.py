"""What a user can do about damaged tables: restore a savepoint, or compute everything again from the source.

Tidegate finds damage, refuses to continue, and names the ways that lose nothing. It repairs no table. Both ways work
with tables that can't be opened, because they remove damaged tables before they create new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from deltalake.exceptions import DeltaError

from tidegate.pipelines.definition import epochs, late, rejects, results, state, windows
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.tables.commits import is_whole
from tidegate.pipelines.ledger.tables.pipeline_tables import QUALITY, PipelineTables
from tidegate.pipelines.storage import delta_log

REMOVED = (QUALITY, windows.NAME, state.NAME, results.NAME, late.NAME, rejects.NAME, epochs.NAME)
"""The tables that a restart removes, in order.

Without table `state` no command continues, so an interrupted removal is noticed and can be repeated. The outcomes of
checks refer to versions and epochs of the other tables, which begin again.
"""


def remove_tables(tables: PipelineTables, check_lease: Callable[[], None] = lambda: None) -> None:
    """Remove all tables of a pipeline, even damaged ones, but not its savepoints. The caller holds the lease."""
    for table in REMOVED:
        check_lease()
        tables.warehouse.delete_folder(tables.path(table))


def has_damaged_log(tables: PipelineTables, table: str) -> bool:
    """Return True if a table exists but can't be opened, or the newest entry of its log lacks the end of its commit."""
    if not tables.warehouse.exists(tables.path(table)):
        return False
    try:
        tables.warehouse.open(tables.path(table))
    except DeltaError:
        return True
    return truncated_entry(tables, table) is not None


def truncated_entry(tables: PipelineTables, table: str) -> str | None:
    """Return the name of the newest log entry if Delta reads it although it lacks the end of its commit, or None."""
    log = tables.warehouse.log(tables.path(table))
    versions = delta_log.entry_versions([*tables.warehouse.names(f"{tables.path(table)}/{delta_log.FOLDER}")])
    if not versions:
        return None
    # An entry that is not JSON keeps the table from being opened, and an empty one is a commit without rows to Delta.
    with suppress(FileNotFoundError, ValueError):
        actions = log.actions(versions[-1])
        if actions and not is_whole(actions):
            return delta_log.entry_name(versions[-1])
    return None


def check_logs(tables: PipelineTables, names: tuple[str, ...]) -> None:
    """Refuse a log whose newest entry is truncated at the end of a line: Delta would read only a part of it."""
    for table in names:
        if tables.warehouse.exists(tables.path(table)) and (name := truncated_entry(tables, table)) is not None:
            raise Refused(
                f"entry {name} in the log of table {tables.path(table)} is truncated: it lacks the end of its commit",
                *tables.remedies(table),
            )

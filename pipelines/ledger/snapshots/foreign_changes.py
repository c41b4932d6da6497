"""Changes of rows that tidegate did not make: found in the log of each table, refused, and undone on request.

The newest epoch of a table does not reveal such a change: Delta's RESTORE removes published rows but keeps the
transaction of their epoch. The files do reveal it, so they are followed through the log, starting with the newest
epoch. No epoch starts from such a change of table `state`, and none is published on top of one of the other tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidegate.pipelines.definition import state
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.tables.commits import commit, commit_by
from tidegate.pipelines.ledger.tables.compaction import COMPACTION, is_unmarked
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.ledger.tables.table_log import LogEntry, TableLog
from tidegate.pipelines.storage.warehouse import active_files

PUT_BACK = "tidegate_put_back"
"""Metadata field of a commit that repaired a table: the version whose files it restored."""

GIVE_UP = "--give-up-results"
"""Option of `tidegate restore` that gives up published rows that can't be read or restored."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of the rows of a table that tidegate did not make: the table, and the version of the change.

    `good` is the newest version with exactly the rows of the newest epoch.
    """

    table: str
    version: int
    good: int


def find_change(tables: PipelineTables, table: str, newest: int | None = None) -> Change | None:
    """Return the change since which a table lacks rows of its epochs or has extra ones, or None if there is none.

    A commit that only moves rows to other files, such as OPTIMIZE, is ignored, and so is a RESTORE that undoes it.
    """
    since = _since_newest_epoch(tables, table, newest)
    if not since:
        return None
    # `differs` is the set of paths added or removed since the newest epoch, and `whole` has the values of it for which
    # the table holds exactly the rows of its epochs.
    differs, good = frozenset[str](), since[0].version
    whole = {differs}
    for entry in since[1:]:
        was_whole = differs in whole
        differs ^= entry.added ^ entry.removed
        if was_whole and moves_rows(table, entry):
            whole.add(differs)
        if differs in whole:
            good = entry.version
    return None if differs in whole else Change(table, good + 1, good)


def from_source(tables: PipelineTables) -> str:
    """Describe how to compute everything again from the source, which loses nothing that the source still has."""
    name = tables.pipeline
    return (
        f"compute everything again from the source, which loses nothing: `tidegate stream {name} --restore none "
        "--available-now`, or the backfills of all intervals with `--again`"
    )


def in_new_folder(tables: PipelineTables) -> str:
    """Describe how to compute everything again when a table is missing and no command can continue."""
    name = tables.pipeline
    return (
        f"compute everything again from the source: move the folder {tables.warehouse.path(name)} away, and run "
        f"`tidegate stream {name} --available-now`, or the backfills of all intervals"
    )


def check_unchanged(tables: PipelineTables, table: str, newest: int | None = None) -> None:
    """Refuse a table whose rows somebody else changed. For the arguments, see `find_change`."""
    if (change := find_change(tables, table, newest)) is not None:
        raise Refused(f"{described(tables, change)}; then run again")


def described(tables: PipelineTables, change: Change) -> str:
    """Describe a change, with the command that brings the rows back."""
    entry = TableLog(tables, change.table).entry(change.version)
    info = {} if entry is None else entry.info
    by = f"{info.get('operation', 'a commit')} by {info.get('engineInfo', 'somebody')}"
    return (
        f"somebody else changed rows of table {tables.path(change.table)}: tidegate did not make its version "
        f"{change.version} ({by}). {_remedy(tables, change)}"
    )


def put_back(tables: PipelineTables, give_up: bool = False) -> list[str]:
    """Undo changes of published tables. Return a sentence for each. The caller holds the lease.

    The table gets back the files of the version before the change. With `give_up`, files of that version may be
    missing; the restore that follows names and removes them. If the version itself is no longer in the log, the table
    is left unchanged.

    Raises:
        Refused: rows would be lost. Then nothing was changed.
    """
    # The handles are opened before the search for changes, so that later commits by others are not undone.
    handles = {table: tables.open(table) for table in PUBLISHED if tables.warehouse.exists(tables.path(table))}
    changes = [
        change
        for table, handle in handles.items()
        if (change := find_change(tables, table, handle.version())) is not None
    ]
    for change in changes if not give_up else ():
        if lost_rows(tables, change):
            raise Refused(described(tables, change))
    return [_put_back(tables, change, handles[change.table], give_up) for change in changes]


def _put_back(tables: PipelineTables, change: Change, handle: DeltaTable, give_up: bool) -> str:
    path = tables.path(change.table)
    if _before(tables, change) is None:
        commit(tables.warehouse, handle, [], {PUT_BACK: str(handle.version())})
        return f"table {path} is left unchanged: the changes of version {change.version} are accepted"
    commit_by(
        lambda properties, hooks: handle.restore(
            change.good, ignore_missing_files=give_up, commit_properties=properties, post_commithook_properties=hooks
        ),
        tables.warehouse,
        handle,
        {PUT_BACK: str(change.good)},
    )
    return (
        f"table {path} was put back to version {change.good}: version {change.version} was a change that tidegate "
        "did not make"
    )


def _remedy(tables: PipelineTables, change: Change) -> str:
    name = tables.pipeline
    if change.table == state.NAME:
        return (
            f"`tidegate restore {name} latest` continues from the snapshot before it. If its files no longer exist, "
            f"put them back from a copy, or restore an older snapshot (`tidegate snapshot list {name}`) or a savepoint "
            f"(`tidegate savepoint list {name}`)"
        )
    if lost := lost_rows(tables, change):
        return (
            f"{'; '.join(lost)}. Put the files back from a copy and run `tidegate restore {name} latest`, restore a "
            f"savepoint, {from_source(tables)}, or continue without these rows, which are then lost: `tidegate restore "
            f"{name} latest {GIVE_UP}`"
        )
    return f"`tidegate restore {name} latest` brings back those of version {change.good}"


def lost_rows(tables: PipelineTables, change: Change) -> list[str]:
    """Return a sentence for each reason why a change can't be undone, or nothing if it can."""
    path, before = tables.path(change.table), _before(tables, change)
    if before is None:
        return [f"version {change.good} of table {path}, the last with all published rows, is no longer in its log"]
    files = active_files(before)
    sizes = tables.warehouse.sizes(path, [file["path"] for file in files])
    return [
        f"{file['num_records']} rows of table {path} are lost with file {file['path']}"
        for file in files
        if sizes[file["path"]] is None
    ]


def _before(tables: PipelineTables, change: Change) -> DeltaTable | None:
    """Return the table before a change, or None if that version is no longer in the log."""
    try:
        return tables.warehouse.open(tables.path(change.table), change.good)
    except DeltaError:
        return None


def _since_newest_epoch(tables: PipelineTables, table: str, newest: int | None) -> list[LogEntry]:
    """Return the commit of the newest epoch (or a later repair) and the commits after it, oldest first."""
    log, entries = TableLog(tables, table), list[LogEntry]()
    # A table without a log is missing. Opening the table reports that.
    last = (log.versions[-1] if log.versions else -1) if newest is None else newest
    # Others may have made any number of commits since; unread ones would count as correct.
    for version in range(last, -1, -1):
        if (entry := log.entry(version)) is None:
            break
        entries.append(entry)
        if entry.snapshot is not None or PUT_BACK in entry.info:
            break
    return entries[::-1]


def moves_rows(table: str, entry: LogEntry) -> bool:
    """Return True if a commit leaves the published rows unchanged, and only moves them to other files."""
    operation = entry.info.get("operation")
    return COMPACTION in entry.info or operation == "OPTIMIZE" or is_unmarked(table, operation, entry.added)

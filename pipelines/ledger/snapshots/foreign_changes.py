"""Changes of rows that tidegate did not make: found in the log of each table, and refused.

The newest epoch of a table does not reveal such a change: Delta's RESTORE removes published rows but keeps the
transaction of their epoch. The files do reveal it, so they are followed through the log, starting with the newest
epoch. No epoch starts from such a change of table `state`, and none is published on top of one of the other tables.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.pipelines.definition import state
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.tables.compaction import COMPACTION
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.ledger.tables.table_log import LogEntry, TableLog
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.storage.warehouse import active_files


@dataclass(frozen=True, slots=True)
class ForeignChange:
    """A change of the rows of a table that tidegate did not make: the table, and the version of the change.

    `good` is the newest version with exactly the rows of the newest epoch.
    """

    table: str
    version: int
    good: int


def find_change(tables: PipelineTables, table: str, newest: int | None = None) -> ForeignChange | None:
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
        if was_whole and moves_rows(entry):
            whole.add(differs)
        if differs in whole:
            good = entry.version
    return None if differs in whole else ForeignChange(table, good + 1, good)


def check_unchanged(tables: PipelineTables, table: str, newest: int | None = None) -> None:
    """Refuse a table whose rows somebody else changed. For the arguments, see `find_change`."""
    if (change := find_change(tables, table, newest)) is not None:
        raise refusal_of(tables, change)


def refusal_of(tables: PipelineTables, change: ForeignChange) -> Refused:
    """Return the error about a change, with the remedies that replace the table."""
    entry = TableLog(tables, change.table).entry(change.version)
    info = {} if entry is None else entry.info
    by = f"{info.get('operation', 'a commit')} by {info.get('engineInfo', 'somebody')}"
    return Refused(
        f"somebody else changed rows of table {tables.path(change.table)}: tidegate did not make its version "
        f"{change.version} ({by})",
        *([Remedy(Act.RESTORE, tables.pipeline, "latest")] if _has_snapshot_before(tables, change) else ()),
        *tables.remedies(change.table),
    )


def _has_snapshot_before(tables: PipelineTables, change: ForeignChange) -> bool:
    """Return True if the snapshot before a change of table `state` is still complete."""
    if change.table != state.NAME:
        return False
    files = active_files(tables.open(state.NAME, change.good))
    sizes = tables.warehouse.sizes(tables.path(state.NAME), [file["path"] for file in files])
    return all(sizes[file["path"]] == file["size_bytes"] for file in files)


def _since_newest_epoch(tables: PipelineTables, table: str, newest: int | None) -> list[LogEntry]:
    """Return the commit of the newest epoch and the commits after it, oldest first."""
    log, entries = TableLog(tables, table), list[LogEntry]()
    # A table without a log is missing. Opening the table reports that.
    last = (log.versions[-1] if log.versions else -1) if newest is None else newest
    # Others may have made any number of commits since; unread ones would count as correct.
    for version in range(last, -1, -1):
        if (entry := log.entry(version)) is None:
            break
        entries.append(entry)
        if entry.snapshot is not None:
            break
    return entries[::-1]


def moves_rows(entry: LogEntry) -> bool:
    """Return True if a commit leaves the published rows unchanged, and only moves them to other files."""
    return COMPACTION in entry.info or entry.info.get("operation") == "OPTIMIZE"

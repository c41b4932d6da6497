"""Detection, by the log, of published tables that somebody set back with Delta's own RESTORE.

A RESTORE removes published rows and keeps the transaction of their epoch, so the newest epoch of a table does not show
it. The files do. This module follows them through the log from the newest epoch on.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.storage import active_files
from tidegate.pipelines.tables.compaction import COMPACTION
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.tables.table_log import LogEntry, TableLog

PUT_BACK = "tidegate_put_back"
"""Name of the field in the metadata of a commit that repaired a table: the version whose files it has again."""

_LOOKED_AT = 200
"""Limit of the commits to look at, from the newest one back to the newest epoch.

Tidegate makes few commits without an epoch, but others may run OPTIMIZE often on a table without new epochs.
"""


@dataclass(frozen=True, slots=True)
class SetBack:
    """A RESTORE that removed published rows from a table.

    Args:
        table: name of the table.
        version: the version that the RESTORE made.
        good: the newest version before it with the published files.
    """

    table: str
    version: int
    good: int


def find_set_back(
    tables: PipelineTables, table: str, newest: int | None = None, needed: int | None = None
) -> SetBack | None:
    """Return the RESTORE that removed published rows from a table; None if there is none.

    A RESTORE that only undoes changes of others, such as OPTIMIZE, removes no rows and is ignored.

    Args:
        tables: the pipeline's tables.
        table: name of a published table.
        newest: the version to look at; None looks at the newest.
        needed: the newest epoch whose rows are needed, if a restore takes away those of later epochs; None needs all.

    Raises:
        Refused: an entry of the log is damaged.
    """
    since = _since_newest_epoch(tables, table, newest)
    if not any(_is_restore(entry) for entry in since):
        return None
    # `differs` has the paths that were added or removed since the newest epoch. `right` has the values of it with which
    # the table holds all published rows.
    differs, right = frozenset[str](), {frozenset[str]()}
    good, restored = since[0].version, since[0].version
    for entry in since[1:]:
        was_right = differs in right
        differs ^= entry.added ^ entry.removed
        if was_right and not _is_restore(entry):
            right = {differs} if _moves_rows(entry) else {*right, differs}
        if differs in right:
            good = entry.version
        elif was_right:
            restored = entry.version
    if differs in right or (needed is not None and _holds_epoch(tables, table, since[-1].version, restored, needed)):
        return None
    return SetBack(table, restored, good)


def check_not_set_back(
    tables: PipelineTables, table: str, newest: int | None = None, needed: int | None = None
) -> None:
    """Refuse a published table that somebody set back; arguments as of `find_set_back`.

    Raises:
        Refused: the table was set back; the message tells how to continue.
    """
    fault = find_set_back(tables, table, newest, needed)
    if fault is not None:
        raise Refused(
            f"table {tables.path(table)} was set back: version {fault.version} of it is a RESTORE that tidegate did "
            f"not make, and published rows are missing. `tidegate restore {tables.pipeline} latest` brings back "
            f"those of version {fault.good}; then run again"
        )


def _holds_epoch(tables: PipelineTables, table: str, newest: int, restored: int, needed: int) -> bool:
    """Return whether a table has the files that it had after an epoch, by the version that a RESTORE went back to."""
    entry = TableLog(tables, table).entry(restored)
    version = None if entry is None else entry.info.get("operationParameters", {}).get("version")
    if version is None:
        return False
    before, now = (tables.open(table, opened) for opened in (int(version), newest))
    published = before.transaction_version(tables.application)
    files = [{file["path"] for file in active_files(handle)} for handle in (before, now)]
    return published is not None and published >= needed and files[0] == files[1]


def _since_newest_epoch(tables: PipelineTables, table: str, newest: int | None) -> list[LogEntry]:
    """Return the commit of the newest epoch (or of a later repair) and the commits after it, the oldest first."""
    log, entries = TableLog(tables, table), list[LogEntry]()
    last = log.versions[-1] if newest is None else newest
    for version in range(last, max(last - _LOOKED_AT, -1), -1):
        if (entry := log.entry(version)) is None:
            break
        entries.append(entry)
        if entry.snapshot is not None or PUT_BACK in entry.info:
            break
    return entries[::-1]


def _moves_rows(entry: LogEntry) -> bool:
    """Return True if a commit moved rows to other files, so that the earlier files are no longer right."""
    return COMPACTION in entry.info or entry.info.get("operation") == "OPTIMIZE"


def _is_restore(entry: LogEntry) -> bool:
    return entry.info.get("operation") == "RESTORE" and PUT_BACK not in entry.info

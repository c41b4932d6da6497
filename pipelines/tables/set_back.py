"""Published tables that somebody set back with Delta's own RESTORE: seen in the log.

A RESTORE takes published rows away and leaves the transaction of their epoch, so the newest epoch of a table does not
show it. The files do: they are followed through the log from the newest epoch on.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.tables.compaction import COMPACTION
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.tables.table_log import LogEntry, TableLog

PUT_BACK = "tidegate_put_back"
"""Metadata of the commit that put a table back: the version with the files that it has again."""

_LOOKED_AT = 200
"""Commits since the newest epoch that are looked at. Those of ours are few; others may OPTIMIZE a quiet table."""


@dataclass(frozen=True, slots=True)
class SetBack:
    """A RESTORE by which a table lacks published rows.

    Args:
        table: name of the table.
        version: that the RESTORE made.
        good: the newest version before it with the files that were published.
    """

    table: str
    version: int
    good: int


def find_set_back(tables: PipelineTables, table: str, newest: int | None = None) -> SetBack | None:
    """Find the RESTORE by which a table lacks published rows; None where there is none.

    A RESTORE to the files of before what others did is none: so somebody takes that back.

    Args:
        tables: of the pipeline.
        table: name of a published table.
        newest: the version to look at; None looks at the newest.

    Raises:
        Refused: an entry of the log is damaged.
    """
    since = _since_newest_epoch(tables, table, newest)
    if not any(_is_restore(entry) for entry in since):
        return None
    # The paths by which the files differ from those of the newest epoch.
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
    return None if differs in right else SetBack(table, restored, good)


def check_not_set_back(tables: PipelineTables, table: str, newest: int | None = None) -> None:
    """Refuse a published table that somebody set back.

    Raises:
        Refused: with the way on.
    """
    fault = find_set_back(tables, table, newest)
    if fault is not None:
        raise Refused(
            f"table {tables.path(table)} was set back: version {fault.version} of it is somebody's RESTORE, and rows "
            f"that were published are not in it any more. `tidegate restore {tables.pipeline} latest` brings back "
            f"those of version {fault.good}; then run again"
        )


def _since_newest_epoch(tables: PipelineTables, table: str, newest: int | None) -> list[LogEntry]:
    """The commit of the newest epoch, or what put the table back since, and those after it, the oldest first."""
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
    """Whether a commit put rows into other files, so that those of before are not wanted any more."""
    return COMPACTION in entry.info or entry.info.get("operation") == "OPTIMIZE"


def _is_restore(entry: LogEntry) -> bool:
    return entry.info.get("operation") == "RESTORE" and PUT_BACK not in entry.info

"""Detection, by the log, of rows that somebody else changed in a published table, and the command that mends it.

The newest epoch of a table does not show such a change: a RESTORE of Delta removes published rows and keeps the
transaction of their epoch. The files do. This module follows them through the log from the newest epoch on; an epoch
that is published on top of a change records the last version before it, so the change stays known.
"""

from __future__ import annotations

from dataclasses import dataclass

from deltalake.exceptions import DeltaError

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.snapshots.head import list_snapshots
from tidegate.pipelines.storage import active_files
from tidegate.pipelines.tables.compaction import COMPACTION
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.tables.table_log import LogEntry, TableLog

PUT_BACK = "tidegate_put_back"
"""Name of the field in the metadata of a commit that repaired a table: the version whose files it has again."""

LAST_GOOD = "tidegate_last_good"
"""Name of the field in the metadata of an epoch published on top of a change: the last version before the change."""

GIVE_UP = "--give-up-results"
"""Option of `tidegate restore` that gives up published rows which can't be read or restored."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a published table that tidegate did not make.

    Args:
        table: name of the table.
        version: the version that the change made.
        good: the newest version that has all rows that were published until then.
        is_set_back: True if a RESTORE removed what epochs published, so that no epoch may be published on top.
        is_known: True if the newest epoch was published on top of the change.
    """

    table: str
    version: int
    good: int
    is_set_back: bool
    is_known: bool


def find_change(tables: PipelineTables, table: str, newest: int | None = None) -> Change | None:
    """Return the change by somebody else after which a table lacks published rows or has others; None if there is none.

    A commit that only moves rows to other files, such as OPTIMIZE, is ignored, and so is a RESTORE that undoes it.

    Args:
        tables: the pipeline's tables.
        table: name of a published table.
        newest: the version to look at; None looks at the newest.

    Raises:
        Refused: an entry of the log is damaged.
    """
    since = _since_newest_epoch(tables, table, newest)
    if not since:
        return None
    noted = since[0].info.get(LAST_GOOD)
    # `differs` has the paths that were added or removed since the newest epoch. `whole` has the values of it with which
    # the table holds exactly the published rows, and `kept` those that no RESTORE made.
    differs = frozenset[str]()
    kept, whole = {differs}, {differs} if noted is None else set[frozenset[str]]()
    good, restored = since[0].version if noted is None else int(noted), since[0].version
    for entry in since[1:]:
        was_kept, was_whole = differs in kept, differs in whole
        differs ^= entry.added ^ entry.removed
        if was_kept and not _is_restore(entry):
            kept.add(differs)
        if was_whole and _moves_rows(table, entry):
            whole.add(differs)
        if differs in whole:
            good = entry.version
        if was_kept and differs not in kept:
            restored = entry.version
    if differs in whole:
        return None
    is_set_back = differs not in kept
    return Change(table, restored if is_set_back else good + 1, good, is_set_back, noted is not None)


def check_not_set_back(tables: PipelineTables, table: str, newest: int | None = None) -> Change | None:
    """Refuse a published table that somebody set back, and return any other change; arguments as of `find_change`.

    Raises:
        Refused: the table was set back; the message tells how to continue.
    """
    change = find_change(tables, table, newest)
    if change is not None and change.is_set_back:
        raise Refused(
            f"table {tables.path(table)} was set back: version {change.version} of it is a RESTORE that tidegate did "
            f"not make, and published rows are missing. {remedy(tables, change)}; then run again"
        )
    return change


def warning(tables: PipelineTables, change: Change) -> str:
    """Return the warning about a change after which the pipeline can go on."""
    entry = TableLog(tables, change.table).entry(change.version)
    info = {} if entry is None else entry.info
    by = f"{info.get('operation', 'a commit')} by {info.get('engineInfo', 'somebody')}"
    return (
        f"somebody else changed rows of table {tables.path(change.table)}: version {change.version} of it ({by}) was "
        f"not made by tidegate. {remedy(tables, change)}"
    )


def remedy(tables: PipelineTables, change: Change) -> str:
    """Return what brings the published rows back: a command that loses none of them, if there is one."""
    name, snapshots = tables.pipeline, [entry.epoch for entry in list_snapshots(tables)]
    try:
        lost, epoch = lost_files(tables, change), epoch_at(tables, change)
    except Refused as error:
        return f"{str(error).rstrip('.')}. To go on without them: `tidegate restore {name} latest {GIVE_UP}`"
    if lost:
        return (
            f"{'; '.join(lost)}. Put the files back from a copy and run `tidegate restore {name} latest`, or go on "
            f"without their rows: `tidegate restore {name} latest {GIVE_UP}`"
        )
    if can_publish_again(snapshots, epoch):
        later = "" if not snapshots or epoch >= snapshots[0] else ", and publishes the later epochs again"
        return f"`tidegate restore {name} latest` brings back those of version {change.good}{later}"
    if older := [number for number in snapshots if number <= epoch]:
        return (
            f"Snapshots of later epochs are no longer retained, so these can't be published again: `tidegate restore "
            f"{name} {max(older)}` goes back to before the change, and the next run computes them again"
        )
    return (
        "No snapshot from before the change is retained, so a savepoint or a backup has to bring them back. To go on "
        f"without them: `tidegate restore {name} latest {GIVE_UP}`"
    )


def can_publish_again(snapshots: list[int], epoch: int) -> bool:
    """Return True if the retained snapshots, the newest first, can publish all epochs after one."""
    return not snapshots or {*range(epoch + 1, snapshots[0] + 1)} <= {*snapshots}


def held_epoch(tables: PipelineTables, change: Change, newest: int) -> int | None:
    """Return the newest epoch of a table that was set back, if it has what it had then; None if it has other rows.

    Args:
        tables: the pipeline's tables.
        change: the change that set the table back.
        newest: version of the table.
    """
    entry = TableLog(tables, change.table).entry(change.version)
    version = None if entry is None else entry.info.get("operationParameters", {}).get("version")
    if not change.is_set_back or version is None or find_change(tables, change.table, int(version)) is not None:
        return None
    before, now = (tables.open(change.table, opened) for opened in (int(version), newest))
    files = [{file["path"] for file in active_files(handle)} for handle in (before, now)]
    return before.transaction_version(tables.application) if files[0] == files[1] else None


def epoch_at(tables: PipelineTables, change: Change) -> int:
    """Return the newest epoch in a table before a change.

    Raises:
        Refused: that version is no longer in the log.
    """
    try:
        handle = tables.warehouse.open(tables.path(change.table), change.good)
    except DeltaError as error:
        raise Refused(
            f"version {change.good} of table {tables.path(change.table)}, the last with all published rows, is no "
            "longer in its log"
        ) from error
    return handle.transaction_version(tables.application) or 0


def lost_files(tables: PipelineTables, change: Change) -> list[str]:
    """Return a sentence for each missing file of the version before a change.

    Raises:
        Refused: that version is no longer in the log.
    """
    epoch_at(tables, change)
    path = tables.path(change.table)
    files = active_files(tables.open(change.table, change.good))
    sizes = tables.warehouse.sizes(path, [file["path"] for file in files])
    return [
        f"{file['num_records']} rows of table {path} are lost with file {file['path']}"
        for file in files
        if sizes[file["path"]] is None
    ]


def _since_newest_epoch(tables: PipelineTables, table: str, newest: int | None) -> list[LogEntry]:
    """Return the commit of the newest epoch (or of a later repair) and the commits after it, the oldest first."""
    log, entries = TableLog(tables, table), list[LogEntry]()
    # A table without a log is gone, and whoever opens it says so.
    last = (log.versions[-1] if log.versions else -1) if newest is None else newest
    # Others may have made any number of commits since: whatever was not read would count as right.
    for version in range(last, -1, -1):
        if (entry := log.entry(version)) is None:
            break
        entries.append(entry)
        if entry.snapshot is not None or PUT_BACK in entry.info:
            break
    return entries[::-1]


def _moves_rows(table: str, entry: LogEntry) -> bool:
    """Return True if a commit leaves the published rows as they are, and only moves them to other files."""
    # Compactions of old versions of tidegate wrote no mark into their commits.
    is_old = bool(entry.added) and all(path.startswith(f"{table}-compacted-") for path in entry.added)
    return COMPACTION in entry.info or entry.info.get("operation") == "OPTIMIZE" or is_old


def _is_restore(entry: LogEntry) -> bool:
    return entry.info.get("operation") == "RESTORE" and PUT_BACK not in entry.info

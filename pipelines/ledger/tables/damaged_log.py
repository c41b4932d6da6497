"""Damaged entries of a table's log: find them, and set them aside so that the table opens again.

Delta writes a log entry completely or not at all, so a truncated entry was damaged later, by a power loss or a disk.
Its content is not lost, because manifests list it. The damaged file is kept in a subfolder of the log that no reader
opens.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from deltalake.exceptions import DeltaError

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.tables.commits import COMMIT, is_whole
from tidegate.pipelines.ledger.tables.compaction import is_unmarked
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, QUALITY, PipelineTables
from tidegate.pipelines.storage import delta_log
from tidegate.pipelines.storage.warehouse import active_files

FOLDER = "damaged"


def set_aside_damaged(tables: PipelineTables, check_lease: Callable[[], None] = lambda: None) -> list[str]:
    """Move damaged entries, and the entries after them, out of the logs of tables.

    The caller holds the lease, and brings the tables into agreement afterwards.

    Returns:
        A sentence for each changed table; nothing if no entry was damaged.

    Raises:
        Refused: a table can't be opened even without these entries, or another command repaired it at the same time.
        LeaseHeld: this command hung while another one worked.
    """
    told = (set_aside(tables, table, check_lease, read_all=True) for table in tables.with_windows((*ALL, QUALITY)))
    return [sentence for sentence in told if sentence is not None]


def set_aside(
    tables: PipelineTables, table: str, check_lease: Callable[[], None] = lambda: None, read_all: bool = False
) -> str | None:
    """Do what `set_aside_damaged` does for one table. Return None if no entry was damaged.

    `read_all` also reads the log of a table that opens: Delta treats an empty entry as a commit without actions.
    """
    path = tables.path(table)
    log, moved = f"{path}/{delta_log.FOLDER}", list[str]()
    while tables.warehouse.exists(path):
        opens = _opens(tables, table) and cut_entry(tables, table) is None
        damaged = _from_first_damaged(tables, table) if read_all or not opens else {}
        if opens and not damaged:
            break
        damaged = damaged or _stray_hint(tables, table) or _newest_checkpoint(tables, table)
        if not damaged:
            raise Refused(
                f"table {path} can't be opened, even without the damaged entries of its log. Put its folder back from "
                f"a copy, or move the folder away: then the table counts as missing, and the next command says what "
                f"to do"
            )
        # The newest entry is moved first, so the log has no gap even if this stops halfway.
        for name, content in reversed(damaged.items()):
            check_lease()
            if not tables.warehouse.move_file(log, name, f"{log}/{FOLDER}", name):
                continue
            moved.append(name)
            if tables.warehouse.log(path).read(f"{FOLDER}/{name}") != content:
                # This command hung, and another one repaired the log and continued: this is one of that command's
                # entries.
                tables.warehouse.move_file(f"{log}/{FOLDER}", name, log, name)
                raise Refused(
                    f"another command wrote entry {name} in the log of table {path} while this one hung. Nothing was "
                    f"changed: run it again"
                )
    if moved or read_all:
        _end_with_entry(tables, table, check_lease)
    if not moved:
        return None
    return f"{len(moved)} files of the log of table {path} were set aside in {log}/{FOLDER}: {', '.join(moved)}"


def _end_with_entry(tables: PipelineTables, table: str, check_lease: Callable[[], None]) -> None:
    """Write an entry without actions if a log ends with a checkpoint: Delta opens it, but commits only after one."""
    names = _names(tables, table)
    newest = max(delta_log.checkpoint_versions(names), default=-1)
    if newest > max(delta_log.entry_versions(names), default=-1):
        check_lease()
        log = f"{tables.path(table)}/{delta_log.FOLDER}"
        tables.warehouse.replace_file(log, delta_log.entry_name(newest), b'{"commitInfo":{}}')


def cut_entry(tables: PipelineTables, table: str) -> str | None:
    """Return the name of the newest log entry if Delta reads it although it is truncated at a line's end, or None."""
    versions = delta_log.entry_versions(_names(tables, table))
    if not versions:
        return None
    newest = delta_log.entry_name(versions[-1])
    entry = tables.warehouse.log(tables.path(table)).read(newest)
    return newest if _are_actions(entry) and not _is_whole(tables, table, versions[-1], entry) else None


def _opens(tables: PipelineTables, table: str) -> bool:
    try:
        tables.warehouse.open(tables.path(table))
    except DeltaError:
        return False
    return True


def _stray_hint(tables: PipelineTables, table: str) -> dict[str, bytes]:
    """Return the file that names the newest checkpoint if that checkpoint is missing; otherwise nothing.

    Delta does not need the file, but can't open a table whose log begins after the checkpoint that it names.
    """
    names = _names(tables, table)
    if delta_log.LAST_CHECKPOINT not in names:
        return {}
    hint = tables.warehouse.log(tables.path(table)).read(delta_log.LAST_CHECKPOINT)
    try:
        version = json.loads(hint)["version"]
    except (ValueError, KeyError):
        return {}
    return {} if delta_log.checkpoint_files(names, version) else {delta_log.LAST_CHECKPOINT: hint}


def _newest_checkpoint(tables: PipelineTables, table: str) -> dict[str, bytes]:
    """Return the files of the newest checkpoint if the table does not need it; otherwise nothing.

    The table does not need it if all entries since the previous checkpoint, or since version 0, exist.
    """
    names = _names(tables, table)
    checkpoints = delta_log.checkpoint_versions(names)
    if not checkpoints:
        return {}
    before = checkpoints[-2] if len(checkpoints) > 1 else -1
    if not all(delta_log.entry_name(version) in names for version in range(before + 1, checkpoints[-1] + 1)):
        return {}
    newest = {name for name in names if delta_log.checkpoint_versions([name]) == checkpoints[-1:]}
    log = tables.warehouse.log(tables.path(table))
    return {name: log.read(name) for name in sorted(newest | ({delta_log.LAST_CHECKPOINT} & names))}


def _from_first_damaged(tables: PipelineTables, table: str) -> dict[str, bytes]:
    """Return the first damaged entry and those after it, in order, with their content; nothing if none is damaged.

    A checkpoint replaces the entries up to its version, so those after it are not returned. The versions in between
    can't be opened without the damaged entry.
    """
    names = _names(tables, table)
    log, versions = tables.warehouse.log(tables.path(table)), delta_log.entry_versions(names)
    checkpoints = delta_log.checkpoint_versions(names)
    for version in versions:
        if not _is_whole(tables, table, version, log.read(delta_log.entry_name(version))):
            end = min((each for each in checkpoints if each >= version), default=versions[-1] + 1)
            lost = [each for each in versions if version <= each < end] or [version]
            return {name: log.read(name) for name in map(delta_log.entry_name, lost)}
    return {}


def _names(tables: PipelineTables, table: str) -> set[str]:
    return {*tables.warehouse.names(f"{tables.path(table)}/{delta_log.FOLDER}")}


def _is_whole(tables: PipelineTables, table: str, version: int, entry: bytes) -> bool:
    if not _are_actions(entry):
        return False
    actions = delta_log.actions_in(entry)
    return is_whole(actions) and not _doubles_rows(tables, table, version, actions)


def _doubles_rows(tables: PipelineTables, table: str, version: int, actions: list[delta_log.Action]) -> bool:
    """Return True if a compaction by an older tidegate, which recorded no action count, removes less than it adds."""
    added, removed = delta_log.files_in(actions, "add"), delta_log.files_in(actions, "remove")
    info = delta_log.commit_info(actions)
    if COMMIT in info or not is_unmarked(table, info.get("operation"), added):
        return False
    try:
        before = active_files(tables.warehouse.open(tables.path(table), version - 1))
    except DeltaError:
        return False
    rows = {file["path"]: file["num_records"] for file in before}
    written = sum(delta_log.statistics_in(action).get("numRecords", 0) for action in added.values())
    return bool(sum(rows.get(path, 0) for path in removed) < written)


def _are_actions(entry: bytes) -> bool:
    return bool(entry.strip()) and _is_read(entry)


def _is_read(entry: bytes) -> bool:
    try:
        actions = delta_log.actions_in(entry)
        # Delta reads the statistics too, which are JSON in a string.
        added = delta_log.files_in(actions, "add").values()
        return all(isinstance(json.loads(action.get("stats") or "{}"), dict) for action in added)
    except (ValueError, TypeError, KeyError, AttributeError):
        # It is not JSON, or an action has another shape.
        return False

"""Handles of tables at their newest version, shared by readers in one process while nobody commits.

Opening a table reads its log from the last checkpoint on, which takes milliseconds, and on an object store a request
per entry. An epoch uses the same tables many times before it commits to them, and each time only has to check that
there is no newer entry.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from tidegate.pipelines.storage.delta_log import FOLDER, LAST_CHECKPOINT, entry_name, is_entry, version_of
from tidegate.pipelines.storage.warehouse import Warehouse, is_local

_KEPT = 16
"""Number of cached handles: the tables of two pipelines and a few more."""

_ENTRIES = 12
"""Number of newest log entries that are compared: about as many as opening the table would read."""

_Mark = tuple[tuple[object, ...] | None, ...]
"""Identity of each file from which a version is opened; it changes if the file is replaced."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A handle, its version, and the mark of its log."""

    handle: DeltaTable
    version: int
    mark: _Mark


_kept: OrderedDict[tuple[object, str], _Kept] = OrderedDict()
_lock = threading.Lock()


def newest(warehouse: Warehouse, path: str) -> DeltaTable:
    """Return a table at its newest version, for reading only: others may use the same handle, so it must not be moved.

    On an object store, if nobody has committed, this takes a single list request instead of one for each entry since
    the last checkpoint.
    """
    key = (None if is_local(path) else warehouse.objects(path)[0], path)
    with _lock:
        kept = _kept.pop(key, None)
    if kept is None or kept.handle.version() != kept.version or _mark(warehouse, path, kept.version) != kept.mark:
        handle = warehouse.open(path)
        mark = _mark(warehouse, path, handle.version())
        if mark is None:
            return handle
        kept = _Kept(handle, handle.version(), mark)
    with _lock:
        _kept[key] = kept
        while len(_kept) > _KEPT:
            _kept.popitem(last=False)
    return kept.handle


def _mark(warehouse: Warehouse, path: str, version: int) -> _Mark | None:
    """Return the mark of a version's log, or None if a newer version exists."""
    log, first = f"{path}/{FOLDER}", max(0, version - _ENTRIES)
    if is_local(path):
        _, folder = warehouse.filesystem(log)
        if _identity(f"{folder}/{entry_name(version + 1)}") is not None:
            return None
        entries = (entry_name(number) for number in range(version, first - 1, -1))
        return tuple(_identity(f"{folder}/{name}") for name in ("", LAST_CHECKPOINT, *entries))
    files, key = warehouse.objects(log)
    # A prefix of the first entry's name sorts before that entry, and after all older files.
    listed = files.listed_after(key, entry_name(first).partition(".")[0])
    if any(is_entry(name) and (version_of(name) or 0) > version for name in listed):
        return None
    return tuple((name, *identity) for name, identity in sorted(listed.items()))


def mark_of(warehouse: Warehouse, path: str, since: object = None) -> object:
    """Return a value that changes with each commit to a table; None if there is no table.

    Args:
        warehouse: the warehouse.
        path: path of the table.
        since: an earlier mark of the table, from which an object store lists the log with one request.
    """
    log = f"{path}/{FOLDER}"
    if is_local(path):
        # A new log entry changes the modification time of the folder.
        _, folder = warehouse.filesystem(log)
        return _identity(folder)
    files, key = warehouse.objects(log)
    after = since[0].partition(".")[0] if isinstance(since, tuple) else ""
    entries = {name: identity for name, identity in files.listed_after(key, after).items() if is_entry(name)}
    return max(entries.items(), default=None)


def _identity(path: str) -> tuple[object, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def ends_at(warehouse: Warehouse, path: str, version: int) -> bool:
    """Return True if a table's log has the entry of a version, and none after it."""
    log = f"{path}/{FOLDER}"
    if is_local(path):
        _, folder = warehouse.filesystem(log)
        has, has_next = (_identity(f"{folder}/{entry_name(number)}") is not None for number in (version, version + 1))
        return has and not has_next
    files, key = warehouse.objects(log)
    listed = files.listed_after(key, entry_name(version).partition(".")[0])
    return [version_of(name) for name in listed if is_entry(name)] == [version]


def is_moved(handle: DeltaTable) -> bool:
    """Move a handle over the commit that this process made on it; return True if there was no other commit.

    Commits of tidegate don't retry, so the entry after their handle's version is theirs. If there are more entries,
    others have committed and the table must be reopened: it may have a property that would make further commits wrong.
    """
    wanted = handle.version() + 1
    try:
        handle.update_incremental()
    except (DeltaError, OSError):
        # Opening the table reads it again and reports the fault.
        return False
    return handle.version() == wanted

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
from typing import TYPE_CHECKING, Protocol

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs

from tidegate.pipelines.storage.delta_log import FOLDER, LAST_CHECKPOINT, entry_name, is_entry, version_of
from tidegate.pipelines.storage.warehouse import Warehouse

if TYPE_CHECKING:
    from tidegate.pipelines.storage.object_files import ObjectFiles

_KEPT = 16
"""Number of cached handles: the tables of two pipelines and a few more."""

_ENTRIES = 12
"""Number of newest log entries that are compared: about as many as opening the table would read."""

_Identity = tuple[object, ...]
"""Identity of a file, which changes if the file is replaced."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """A handle, its version, and the marks of its log's files."""

    handle: DeltaTable
    version: int
    mark: tuple[_Identity | None, ...]


_kept: OrderedDict[tuple[object, str], _Kept] = OrderedDict()
_lock = threading.Lock()


def newest(warehouse: Warehouse, path: str) -> DeltaTable:
    """Return a table at its newest version, for reading only: others may use the same handle, so it must not be moved.

    On an object store, if nobody has committed, this takes a single list request instead of one for each entry since
    the last checkpoint.
    """
    filesystem, log = warehouse.filesystem(f"{path}/{FOLDER}")
    is_folder = isinstance(filesystem, fs.LocalFileSystem)
    look = _Folder(log) if is_folder else _InStore(*warehouse.objects(f"{path}/{FOLDER}"))
    key = (None if is_folder else warehouse.objects(path)[0], log)
    with _lock:
        kept = _kept.pop(key, None)
    if kept is None or kept.handle.version() != kept.version or look.mark(kept.version) != kept.mark:
        handle = warehouse.open(path)
        mark = look.mark(handle.version())
        if mark is None:
            return handle
        kept = _Kept(handle, handle.version(), mark)
    with _lock:
        _kept[key] = kept
        while len(_kept) > _KEPT:
            _kept.popitem(last=False)
    return kept.handle


class _Log(Protocol):
    """A log that is watched for newer versions."""

    def mark(self, version: int) -> tuple[_Identity | None, ...] | None:
        """Return the identity of the files from which a version is opened, or None if a newer version exists."""


@dataclass(frozen=True, slots=True)
class _Folder:
    """A log in a folder."""

    path: str

    def mark(self, version: int) -> tuple[_Identity | None, ...] | None:
        if _identity(f"{self.path}/{entry_name(version + 1)}") is not None:
            return None
        entries = (entry_name(number) for number in range(version, _first(version) - 1, -1))
        return tuple(_identity(f"{self.path}/{name}") for name in ("", LAST_CHECKPOINT, *entries))


@dataclass(frozen=True, slots=True)
class _InStore:
    """A log in an object store."""

    files: ObjectFiles
    key: str

    def mark(self, version: int) -> tuple[_Identity | None, ...] | None:
        # A prefix of the first entry's name sorts before that entry, and after all older files.
        listed = self.files.listed_after(self.key, entry_name(_first(version)).partition(".")[0])
        if any(is_entry(name) and (version_of(name) or 0) > version for name in listed):
            return None
        return tuple((name, *identity) for name, identity in sorted(listed.items()))


def _first(version: int) -> int:
    return max(0, version - _ENTRIES)


def _identity(path: str) -> _Identity | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def is_moved(handle: DeltaTable, by: int = 1) -> bool:
    """Move a handle over the entries since its version; return True if this process committed all of them.

    Commits of tidegate don't retry, so the entry after their handle's version is theirs. If there are more entries,
    others have committed and the table must be reopened: it may have a property that would make further commits wrong.
    """
    wanted = handle.version() + by
    try:
        handle.update_incremental()
    except (DeltaError, OSError):
        # Opening the table reads it again and reports the fault.
        return False
    return handle.version() == wanted

"""Handles of tables at their newest version, which readers of one process share while nobody commits.

Opening a table reads its log from the last checkpoint on, which takes milliseconds. An epoch looks at the same tables
many times before it commits to them, and each of these looks only has to see that there is no newer entry.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass

from deltalake import DeltaTable
from pyarrow import fs

from tidegate.pipelines.delta_log import FOLDER, LAST_CHECKPOINT, entry_name
from tidegate.pipelines.storage import Warehouse

_KEPT = 16
"""Number of handles that are kept: the tables of two pipelines and a few more."""

_ENTRIES = 12
"""Newest entries of a log that are compared: about those that opening the table would read."""

_Mark = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class _Kept:
    """A handle, its version, and the marks of its log's files."""

    handle: DeltaTable
    version: int
    mark: _Mark


_kept: OrderedDict[str, _Kept] = OrderedDict()
_lock = threading.Lock()


def newest(warehouse: Warehouse, path: str) -> DeltaTable:
    """Return a table at its newest version, to read only: others may hold the same handle, so it must not be moved.

    A table on an object store is opened each time.

    Raises:
        DeltaError: the table can't be opened.
    """
    filesystem, log = warehouse.filesystem(f"{path}/{FOLDER}")
    if not isinstance(filesystem, fs.LocalFileSystem):
        return warehouse.open(path)
    with _lock:
        kept = _kept.pop(log, None)
    if kept is None or kept.handle.version() != kept.version or _mark(log, kept.version) != kept.mark:
        handle = warehouse.open(path)
        mark = _mark(log, handle.version())
        if mark is None:
            return handle
        kept = _Kept(handle, handle.version(), mark)
    with _lock:
        _kept[log] = kept
        while len(_kept) > _KEPT:
            _kept.popitem(last=False)
    return kept.handle


def _mark(log: str, version: int) -> _Mark | None:
    """Return the identity of the files from which a version is opened; None if a newer version exists."""
    if _identity(f"{log}/{entry_name(version + 1)}") is not None:
        return None
    entries = (entry_name(number) for number in range(version, max(0, version - _ENTRIES) - 1, -1))
    return tuple(_identity(f"{log}/{name}") for name in ("", LAST_CHECKPOINT, *entries))


def _identity(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size

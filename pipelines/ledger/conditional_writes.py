"""Checks, once for each warehouse in a store, that commits to it are exclusive, and that new ones are found.

If two drivers start from one snapshot, only the store can separate them: it must refuse to write a log entry that
already exists. A store that ignores this condition (`If-None-Match`) silently loses commits. So does one that checks
for the object and then writes it, because two drivers may both check before either writes.

New commits are found by listing the log from a name on. A store that ignores where the list should begin returns the
whole log, which the libraries read as new commits.
"""

from __future__ import annotations

import json
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from tidegate.pipelines.definition.config import RESERVED
from tidegate.pipelines.errors import Refused, StoreFailed
from tidegate.pipelines.storage.warehouse import Warehouse, is_local

_MARKER = "store.json"
_UNSAFE = "allow_unsafe_rename"

WRITERS, ROUNDS = 4, 2
SIZE = 4 << 20
"""The number of concurrent writers, the number of rounds, and the size of the object in bytes. A store that checks
before it writes was detected in 12 of 20 rounds with 1 MiB, and in 19 of 20 with 4 MiB.
"""


def check_conditional_writes(warehouse: Warehouse) -> None:
    """Refuse a warehouse whose store lets two writers commit the same version.

    The outcome is recorded in the warehouse, with its address: a copy of the warehouse on another store is checked
    again.
    """
    if is_local(warehouse.uri):
        return
    options = {name.lower(): value for name, value in warehouse.options.items()}
    if any(_UNSAFE in name and value.lower() == "true" for name, value in options.items()):
        raise Refused(
            f"storage option {_UNSAFE} is on for {warehouse.uri}: with it two drivers can commit the same version, and "
            "one of the commits is lost without an error. Remove it: stores that refuse to overwrite an existing "
            "object (If-None-Match) need no option"
        )
    address = {"uri": warehouse.uri, "endpoint": options.get("aws_endpoint_url", options.get("endpoint"))}
    folder = warehouse.path(RESERVED)
    if _noted(warehouse, folder) == address:
        return
    if not _refuses_to_write_twice(warehouse, folder):
        raise Refused(
            f"the store of {warehouse.uri} ignores If-None-Match: it overwrote an object that the request required not "
            "to exist, so two drivers could overwrite each other's commits without an error. Nothing was changed. Use "
            "a store that honours the condition, as Amazon S3 and current versions of others do, or a folder"
        )
    if any(_allows_concurrent_creates(warehouse, folder) for _ in range(ROUNDS)):
        raise Refused(
            f"the store of {warehouse.uri} honours If-None-Match for one writer, but let several of {WRITERS} "
            "concurrent writers create the same object, so two drivers could overwrite each other's commits without an "
            "error. "
            "Nothing was changed. Use a store that honours the condition for concurrent writers, as Amazon S3 and "
            "current versions of others do (versitygw from 1.8 on), or a folder"
        )
    if not _lists_from_an_offset(warehouse, folder):
        raise Refused(
            f"the store of {warehouse.uri} ignores the name from which a list of objects should begin, so new commits "
            "to a table can't be told from old ones. Nothing was changed. Use a store that honours it (start-after on "
            "S3, startFrom on Azure, startOffset on Google), or a folder"
        )
    warehouse.replace_file(folder, _MARKER, json.dumps(address).encode())


def _lists_from_an_offset(warehouse: Warehouse, folder: str) -> bool:
    """Write two files, and return True if a list of those after the first has only the second."""
    files, key = warehouse.objects(f"{folder}/probe-{uuid.uuid4().hex}")
    try:
        for name in ("1", "2"):
            files.put(f"{key}/{name}", b"")
        return [*files.listed_after(key, "1")] == ["2"]
    finally:
        for name in ("1", "2"):
            files.remove(f"{key}/{name}")


def _refuses_to_write_twice(warehouse: Warehouse, folder: str) -> bool:
    """Write a file twice on the condition that it does not exist, and return True if the second write was refused.

    A busy store may refuse the first request. One that ignores the condition refuses neither.
    """
    files, key = warehouse.objects(f"{folder}/probe-{uuid.uuid4().hex}")
    try:
        return not all(files.create(key, content) for content in (b"first", b"second"))
    finally:
        with suppress(FileNotFoundError):
            files.delete_file(key)


def _allows_concurrent_creates(warehouse: Warehouse, folder: str) -> bool:
    """Return True if more than one of several concurrent conditional writes to the same new file reports success."""
    files, key = warehouse.objects(f"{folder}/probe-{uuid.uuid4().hex}")
    together, content = threading.Barrier(WRITERS), bytes(SIZE)

    def write(number: int) -> bool:
        together.wait()
        try:
            return files.create(key, content)
        except StoreFailed:
            # Some stores refuse by closing the connection.
            return False

    try:
        with ThreadPoolExecutor(WRITERS) as pool:
            return sum(pool.map(write, range(WRITERS))) > 1
    finally:
        files.remove(key)


def _noted(warehouse: Warehouse, folder: str) -> object:
    try:
        return json.loads(warehouse.read_file(folder, _MARKER))
    except (FileNotFoundError, ValueError):
        return None

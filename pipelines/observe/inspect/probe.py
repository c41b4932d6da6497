"""The probe of a warehouse: whether a driver can read and write it, and whether its store is safe for two drivers.

Importing this module loads no library for tables.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.pipelines.definition.names import count_of
from tidegate.pipelines.errors import UsageError

if TYPE_CHECKING:
    from tidegate.pipelines.storage.warehouse import Warehouse as Warehouse

_CONTENT = b"written by a test of the connection"


def open_warehouse(uri: str, options: Mapping[str, str]) -> Warehouse:
    """Return the warehouse at a folder or URI. Credentials that the options lack come from the environment."""
    from tidegate.pipelines.storage.credentials import complete
    from tidegate.pipelines.storage.warehouse import Warehouse

    return Warehouse(uri.rstrip("/"), complete(options))


def probe_warehouse(warehouse: Warehouse) -> str:
    """Write a small object to a warehouse, read and remove it, and return a line about the warehouse's content.

    Raises:
        UsageError: the warehouse is a folder that does not exist on this host or can't be written to.
        Refused: its store lets two drivers commit the same version.
        StoreFailed: the store refused a request, or does not answer.
    """
    from tidegate.pipelines.ledger.conditional_writes import check_conditional_writes
    from tidegate.pipelines.storage.warehouse import is_local

    if is_local(warehouse.uri):
        folder = Path(warehouse.uri.removeprefix("file://"))
        if not folder.is_dir():
            raise UsageError(f"folder {folder} does not exist on this host, where the connection was tested")
        if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
            raise UsageError(f"folder {folder} can't be written to by the user of this process")
    else:
        _write_read_and_remove(warehouse)
        check_conditional_writes(warehouse)
    names = [name for name in warehouse.folders(warehouse.uri) if not name.startswith("_")]
    return f"{warehouse.uri} can be read and written to; it has {count_of(len(names), 'folder')} of tables"


def _write_read_and_remove(warehouse: Warehouse) -> None:
    name = f"probe-{uuid.uuid4().hex}"
    warehouse.replace_file(warehouse.uri, name, _CONTENT)
    try:
        if warehouse.read_file(warehouse.uri, name) != _CONTENT:
            raise UsageError(f"{warehouse.uri} returned a different object from the one that was written")
    finally:
        warehouse.delete_file(warehouse.uri, name)

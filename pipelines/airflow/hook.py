"""The hook of a connection of type `tidegate`: a warehouse with credentials, and the probe behind its Test button."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from tidegate.pipelines.airflow.connections import options_of
from tidegate.pipelines.airflow.provider import CONNECTION_TYPE
from tidegate.pipelines.definition.names import check_address
from tidegate.pipelines.errors import TidegateError, UsageError
from tidegate.pipelines.storage.credentials import masked

if TYPE_CHECKING:
    from tidegate.pipelines.storage.warehouse import Warehouse


class WarehouseHook(BaseHook):
    """Opens the warehouse of a connection.

    Args:
        tidegate_conn_id: name of the connection.
    """

    conn_name_attr = "tidegate_conn_id"
    default_conn_name = "tidegate_default"
    conn_type = CONNECTION_TYPE
    hook_name = "Tidegate warehouse"

    def __init__(self, tidegate_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.tidegate_conn_id = tidegate_conn_id

    def get_conn(self) -> Warehouse:
        """Return the warehouse.

        Raises:
            UsageError: the connection names no warehouse or an invalid one, or a field of it can't be read.
        """
        connection = self.get_connection(self.tidegate_conn_id)
        uri = connection.extra_dejson.get("warehouse")
        if not uri:
            raise UsageError(
                f"connection {self.tidegate_conn_id!r} names no warehouse: give one, such as s3://bucket/warehouse"
            )
        try:
            check_address(str(uri))
        except ValueError as error:
            # Without the parser's error: the address may have a password.
            raise UsageError(f"connection {self.tidegate_conn_id!r}: warehouse: {error}") from None
        return open_warehouse(str(uri), options_of(self.tidegate_conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """Read the warehouse and write to it as a driver would; return True and a summary, or False and the reason."""
        try:
            return True, probe_warehouse(self.get_conn())
        except TidegateError as error:
            return False, masked(f"{error}")
        except Exception as error:  # Errors of stores have many types, and further lines for debugging.
            return False, masked(f"{error}".partition("\n")[0])


_CONTENT = b"written by a test of the connection"


def open_warehouse(uri: str, options: Mapping[str, str]) -> Warehouse:
    """Return the warehouse at a folder or URI; credentials that the options lack come from the environment."""
    from tidegate.pipelines.storage.credentials import complete
    from tidegate.pipelines.storage.warehouse import Warehouse

    return Warehouse(uri.rstrip("/"), complete(options))


def probe_warehouse(warehouse: Warehouse) -> str:
    """Write a small object to a warehouse, read and remove it, and return a line about what the warehouse has.

    Raises:
        UsageError: the warehouse is a folder that this host does not have, or that can't be written to.
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
    return f"{warehouse.uri} can be read and written to; it has {len(names)} folder(s) of pipelines and tables"


def _write_read_and_remove(warehouse: Warehouse) -> None:
    name = f"probe-{uuid.uuid4().hex}"
    warehouse.replace_file(warehouse.uri, name, _CONTENT)
    try:
        if warehouse.read_text(warehouse.uri, name).encode() != _CONTENT:
            raise UsageError(f"{warehouse.uri} returned another object than was written")
    finally:
        warehouse.delete_file(warehouse.uri, name)

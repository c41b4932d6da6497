"""The hook of a connection of type `tidegate`: a warehouse, with the credentials of its store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from tidegate.pipelines.airflow.connections import options_of
from tidegate.pipelines.airflow.provider import CONNECTION_TYPE
from tidegate.pipelines.definition.names import check_address
from tidegate.pipelines.errors import TidegateError, UsageError
from tidegate.pipelines.observe.inspect.probe import open_warehouse, probe_warehouse
from tidegate.pipelines.storage.credentials import masked

if TYPE_CHECKING:
    from tidegate.pipelines.observe.inspect.probe import Warehouse


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
            # The parser's error is left out, because the address may contain a password.
            raise UsageError(f"connection {self.tidegate_conn_id!r}: warehouse: {error}") from None
        return open_warehouse(str(uri), options_of(self.tidegate_conn_id))

    def test_connection(self) -> tuple[bool, str]:
        """Read and write the warehouse as a driver would. Return True and a summary, or False and the reason."""
        try:
            return True, probe_warehouse(self.get_conn())
        except TidegateError as error:
            return False, masked(f"{error}")
        except Exception as error:  # Errors of stores have many types, and additional lines for debugging.
            return False, masked(f"{error}".partition("\n")[0])

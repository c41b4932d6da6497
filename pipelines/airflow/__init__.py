"""Airflow: the DAGs of a project, and operators, sensors and assets for your own DAGs. Importable without Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidegate.extras import require
from tidegate.pipelines.storage.credentials import mask_secrets_by, read_connections_by

if TYPE_CHECKING:
    from tidegate.pipelines.airflow.assets import final_windows_asset, snapshot_asset
    from tidegate.pipelines.airflow.hook import WarehouseHook
    from tidegate.pipelines.airflow.operator import TidegateOperator
    from tidegate.pipelines.airflow.project import project_dags
    from tidegate.pipelines.airflow.sensors import SnapshotSensor
    from tidegate.pipelines.airflow.triggers import SnapshotTrigger

__all__ = [
    "SnapshotSensor",
    "SnapshotTrigger",
    "TidegateOperator",
    "WarehouseHook",
    "final_windows_asset",
    "project_dags",
    "snapshot_asset",
]

_MODULES = {
    "SnapshotSensor": "sensors",
    "SnapshotTrigger": "triggers",
    "TidegateOperator": "operator",
    "WarehouseHook": "hook",
    "final_windows_asset": "assets",
    "project_dags": "project",
    "snapshot_asset": "assets",
}
"""Module of each name. Modules are imported on first use, so that `command` and `embedded` load without Airflow."""


def _options_of(connection: str) -> dict[str, str]:
    from tidegate.pipelines.airflow.connections import options_of

    return options_of(connection)


def _mask(secret: str) -> None:
    from airflow.sdk.log import mask_secret

    mask_secret(secret)


# Code that reads tables in an Airflow process finds the credentials, and Airflow masks those of tidegate.toml as `***`
# in its logs and fields.
read_connections_by(_options_of)
mask_secrets_by(_mask)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require(name, "airflow")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)

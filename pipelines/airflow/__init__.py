"""Airflow: the operator that runs `tidegate`, and the DAGs of a project. Importable without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tidegate.extras import require
from tidegate.pipelines.stores.credentials import mask_secrets_by, read_connections_by

if TYPE_CHECKING:
    from tidegate.pipelines.airflow.factory import project_dags
    from tidegate.pipelines.airflow.operator import TidegateOperator

__all__ = ["TidegateOperator", "project_dags"]


def _options_of(connection: str) -> dict[str, str]:
    from tidegate.pipelines.airflow.connections import options_of

    return options_of(connection)


def _mask(secret: str) -> None:
    from airflow.sdk.log import mask_secret

    mask_secret(secret)


# Whatever reads tables in a process of Airflow finds the credentials, and Airflow's logs and fields show `***` for
# those of tidegate.toml, too; the process supervisor starts without Airflow.
read_connections_by(_options_of)
mask_secrets_by(_mask)


def __getattr__(name: str) -> Any:
    # The process supervisor below this package must start without Airflow.
    if name in __all__:
        require(name, "airflow")
    if name == "project_dags":
        from tidegate.pipelines.airflow.factory import project_dags

        return project_dags
    if name == "TidegateOperator":
        from tidegate.pipelines.airflow.operator import TidegateOperator

        return TidegateOperator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

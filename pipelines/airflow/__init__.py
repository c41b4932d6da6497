"""Airflow: the operator that runs `tidegate`, and the DAGs of a project. Importable without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.pipelines.airflow.factory import project_dags
    from tidegate.pipelines.airflow.operator import TidegateOperator

__all__ = ["TidegateOperator", "project_dags"]


def __getattr__(name: str) -> Any:
    # The process supervisor below this package must start without Airflow.
    if name == "project_dags":
        from tidegate.pipelines.airflow.factory import project_dags

        return project_dags
    if name == "TidegateOperator":
        from tidegate.pipelines.airflow.operator import TidegateOperator

        return TidegateOperator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

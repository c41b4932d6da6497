"""The environment of processes that run pipeline code: without Airflow's own variables.

Airflow's processes have the Fernet key, the address of its database with the password, the keys that sign its tokens,
and connections in variables that begin with AIRFLOW. A command needs none of them. This module imports nothing of
Airflow. docs/operations/security.md says against whom this helps, and against whom it does not.
"""

from __future__ import annotations

from collections.abc import Mapping

_OF_AIRFLOW = "AIRFLOW"
_NAMES_OF_THE_RUN = "AIRFLOW_CTX_"
"""Beginning of the variables with the DAG, the task and the run, which logs of pipeline code may name."""


def without_airflow(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables without Airflow's own; names of the DAG, the task and the run stay."""
    return {name: value for name, value in variables.items() if not _is_airflows(name)}


def _is_airflows(name: str) -> bool:
    # Airflow's own scripts begin some names with underscores.
    return name.lstrip("_").upper().startswith(_OF_AIRFLOW) and not name.startswith(_NAMES_OF_THE_RUN)

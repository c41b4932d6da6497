"""The options that code passes for all DAGs of a project, in addition to tidegate.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.pipelines.definition.names import listed
from tidegate.pipelines.errors import UsageError

_OWN = {
    "default_args": ("pre_execute",),
    "dag_args": (
        *("dag_id", "schedule", "start_date", "end_date", "catchup", "params", "default_args", "max_active_runs"),
        *("description", "doc_md"),
    ),
    "operator_args": (
        *("task_id", "arguments", "config", "pipeline", "shown_as", "windows", "event", "note", "announce", "links"),
        *("only_if", "skip_if_held", "outlets", "inlets", "trigger_rule", "depends_on_past", "dag", "pre_execute"),
    ),
}
"""Names that Tidegate sets itself, by argument of `project_dags`."""


@dataclass(frozen=True, slots=True)
class DagOptions:
    """The options that code passes for all DAGs of a project; see `project_dags`.

    Args:
        prefix: beginning of the ids of the DAGs.
        default_args: default arguments of tasks.
        dag_args: arguments of the DAGs.
        operator_args: arguments of the operators that run a command.
    """

    prefix: str = ""
    default_args: Mapping[str, Any] = field(default_factory=dict)
    dag_args: Mapping[str, Any] = field(default_factory=dict)
    operator_args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.prefix and not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]{0,99}", self.prefix):
            raise UsageError(
                f"prefix={self.prefix!r}: give letters, digits, _ and -, beginning with a letter, such as team_a_"
            )
        for argument, own in _OWN.items():
            if taken := sorted(set(own) & set(getattr(self, argument))):
                raise UsageError(
                    f"{argument}: {listed(taken)} is set by Tidegate: leave it out. Schedules, start and end are in "
                    "tidegate.toml, and default_args is a separate argument"
                )

"""The DAGs of a project: their pipelines and kinds, and the options that code passes for all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, get_parsing_context

from tidegate.pipelines.airflow.bundles import check_outside_bundles
from tidegate.pipelines.airflow.factory import DagOptions, PipelineDags
from tidegate.pipelines.definition.config import Config, load_config
from tidegate.pipelines.definition.names import listed
from tidegate.pipelines.errors import UsageError


def project_dags(
    config: str | Path | None = None,
    *,
    select: Sequence[str] | None = None,
    prefix: str = "",
    default_args: Mapping[str, Any] | None = None,
    dag_args: Mapping[str, Any] | None = None,
    operator_args: Mapping[str, Any] | None = None,
) -> dict[str, DAG]:
    """Return the DAGs of the pipelines in tidegate.toml by id, to put into the globals of a DAG file.

    When Airflow parses the file for a task, only the DAG of that task is made.

    Args:
        config: tidegate.toml, best built from the path of the DAG file: Airflow's processes run in other folders. None
            finds the file as the command line does.
        select: names of pipelines (`visits`) or of single DAGs (`visits__stream`), with `*` for any text; None for all.
        prefix: prefix of the DAG ids and asset names, so that projects whose pipelines have the same names fit into one
            Airflow: letters, digits, `_` and `-`, such as `team_a_`.
        default_args: `default_args` of every DAG. A pipeline's settings in tidegate.toml take precedence; an
            `on_failure_callback` given here is called in addition to Tidegate's alarm.
        dag_args: further arguments of every DAG, such as `access_control`. Tags are added to Tidegate's own.
        operator_args: arguments of every TidegateOperator, such as `command`, or an `executor_config` with a pod; they
            take precedence over `default_args`.

    Raises:
        UsageError: the file or an argument is faulty; Airflow shows it as an import error.

    Example:
        >>> from pathlib import Path
        >>> from tidegate.pipelines.airflow import project_dags
        >>> globals().update(project_dags(Path(__file__).parent.parent / "tidegate.toml"))
    """
    file = None if config is None else Path(config)
    try:
        project = load_config(file)
    except UsageError as error:
        if file is not None and (file.is_absolute() or file.exists()):
            raise
        raise UsageError(
            f"{error}. In a DAG file, build its path from that file's: "
            'project_dags(Path(__file__).parent.parent / "tidegate.toml")'
        ) from error
    project.check_entries()
    check_outside_bundles(project)
    options = DagOptions(prefix, dict(default_args or {}), dict(dag_args or {}), dict(operator_args or {}))
    made = {name: PipelineDags(project, name, entry, options) for name, entry in project.pipelines.items()}
    dags: dict[str, Callable[[], DAG]] = {
        f"{name}__{kind}": getattr(dags, kind) for name, dags in made.items() for kind in dags.kinds
    }
    for group, names in project.stream_groups.items():
        dags[f"{group}__streams"] = partial(made[names[0]].streams, group, names)
    wanted = list(dags) if select is None else _selected(project, [*dags], select)
    only = get_parsing_context().dag_id
    return {f"{prefix}{each}": dags[each]() for each in wanted if only in (None, f"{prefix}{each}")}


def _selected(project: Config, dags: Sequence[str], select: Sequence[str]) -> list[str]:
    """Return the DAGs (ids without a prefix) that a selection names directly or by their pipeline.

    Raises:
        UsageError: a pattern matches no DAG.
    """
    if isinstance(select, str):
        raise UsageError(f'select={select!r}: give a list, such as ["{select}"]')
    found = set[str]()
    for pattern in select:
        named = {each for each in dags if fnmatchcase(each, pattern) or fnmatchcase(each.rpartition("__")[0], pattern)}
        if not named:
            raise UsageError(
                f"select: {pattern!r} matches no pipeline and no DAG: {project.names}; DAGs are {listed(sorted(dags))}"
            )
        found |= named
    return [each for each in dags if each in found]

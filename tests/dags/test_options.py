"""What code and tidegate.toml set for DAGs: selection, prefix, arguments, time zone, maintenance, held events."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import jinja2
import pytest
from airflow.sdk import DAG, Asset
from airflow.sdk.exceptions import AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization

from tests.dags.project import write_project
from tidegate.pipelines.airflow import project_dags
from tidegate.pipelines.airflow.alarms import Alarm
from tidegate.pipelines.airflow.operator import TidegateOperator
from tidegate.pipelines.airflow.report_link import PageLink, report_url
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.errors import UsageError

KINDS = ("backfill", "stream", "restart", "quality")
"""The DAGs of a pipeline without further settings."""


@pytest.mark.parametrize(
    ("select", "kinds"),
    [
        (["sessions"], KINDS),
        (["sess*"], KINDS),
        (["sessions__stream", "sessions__restart"], ("stream", "restart")),
        (["*__quality"], ("quality",)),
    ],
)
def test_a_selection_names_pipelines_or_single_dags(select: list[str], kinds: tuple[str, ...], tmp_path: Path) -> None:
    assert set(project_dags(write_project(tmp_path), select=select)) == {f"sessions__{kind}" for kind in kinds}


@pytest.mark.parametrize(
    ("task_of", "made"),
    [("team_sessions__stream", {"team_sessions__stream"}), ("sessions__stream", set()), ("another", set())],
)
def test_for_a_task_only_its_dag_is_made(
    task_of: str, made: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", task_of)
    assert set(project_dags(write_project(tmp_path), prefix="team_")) == made


@pytest.mark.parametrize(("select", "told"), [(["hours"], "'hours' matches no pipeline"), ("sessions", "give a list")])
def test_a_selection_of_nothing_is_refused(select: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told):
        project_dags(write_project(tmp_path), select=select)


def test_projects_with_pipelines_of_one_name_do_not_collide_in_one_airflow(tmp_path: Path) -> None:
    settings = {
        "stream_mode": '"commits"',
        "hold": '"partitions"',
        "reopen_schedule": '"0 4 * * *"',
        "max_lag_minutes": "9",
    }
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = project_dags(write_project(tmp_path / "a", **settings), prefix="team_a_")
    other = project_dags(write_project(tmp_path / "b", **settings), prefix="team_b_")
    assert set(one) & set(other) == set()
    assert assets_of(one) & assets_of(other) == set()
    stream = one["team_a_sessions__stream"].get_task("stream")
    assert stream.arguments[:2] == ["stream", "sessions"], "commands know no prefix"
    assert str(one["team_a_sessions__backfill"].get_task("windows")._post_execute_hook.prefix) == "team_a_"
    assert "tidegate late reopen sessions" in (one["team_a_sessions__late"].doc_md or "")
    watched = DagSerialization.to_dict(one["team_a_sessions__stream"])["dag"]["timetable"]
    assert "team_a_sessions__commits" in str(watched)
    assert "'prefix': 'team_a_'" in str(watched), "the watcher counts the runs of its own DAGs"


def assets_of(dags: dict[str, DAG]) -> set[str]:
    return {outlet.name for dag in dags.values() for task in dag.tasks for outlet in task.outlets}


def test_links_lead_to_the_pipeline_under_the_name_of_its_dags(tmp_path: Path) -> None:
    dags = project_dags(write_project(tmp_path), prefix="team_a_")
    quality = dags["team_a_sessions__quality"].get_task("quality")
    assert PageLink().get_link(quality, ti_key=None).endswith("/tidegate/#team_a_sessions")  # type: ignore[arg-type]
    result = {"pipeline": "sessions", "epoch": 7, "report": "7.html", "shown_as": quality.shown_as}
    assert str(report_url(result)).endswith("/tidegate/pipelines/team_a_sessions/reports/7")


@pytest.mark.parametrize("prefix", ["1a", "a b", "-", "a/"])
def test_a_prefix_that_can_not_begin_a_dag_is_refused(prefix: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="such as team_a_"):
        project_dags(write_project(tmp_path), prefix=prefix)


def test_what_a_pipeline_sets_goes_before_default_args_and_these_before_our_defaults(tmp_path: Path) -> None:
    def theirs(context: Any) -> None:
        """Stands for a user's callback."""

    given = {"owner": "platform", "retries": 5, "queue": "small", "on_failure_callback": theirs, "pool": "shared"}
    file = write_project(
        tmp_path, default_args='{ owner = "billing", queue = "big", executor_config = { KubernetesExecutor = "x" } }'
    )
    for dag in project_dags(file, default_args=given).values():
        for task in dag.tasks:
            assert (task.owner, task.queue) == ("billing", "big")
            assert task.executor_config == {"KubernetesExecutor": "x"}
            assert [type(each) for each in task.on_failure_callback[:1]] == [Alarm]
            assert task.on_failure_callback[1:] == [theirs]
            assert task.pool == "shared"
            if isinstance(task, TidegateOperator):
                assert task.retries == 5


def test_arguments_of_dags_and_operators_reach_them(tmp_path: Path) -> None:
    dags = project_dags(
        write_project(tmp_path),
        dag_args={"tags": ["gold"], "dagrun_timeout": timedelta(hours=5)},
        operator_args={"command": "/opt/tidegate/bin/tidegate"},
    )
    for dag in dags.values():
        assert {"gold", "tidegate"} <= set(dag.tags)
        assert dag.dagrun_timeout == timedelta(hours=5)
    commands = [task for dag in dags.values() for task in dag.tasks if isinstance(task, TidegateOperator)]
    assert {task.command for task in commands} == {"/opt/tidegate/bin/tidegate"}


@pytest.mark.parametrize(
    "given",
    [
        {"default_args": {"pre_execute": print}},
        {"dag_args": {"schedule": "@daily"}},
        {"operator_args": {"config": "x"}},
    ],
)
def test_arguments_that_tidegate_sets_are_refused_by_name(given: dict[str, Any], tmp_path: Path) -> None:
    ((argument, values),) = given.items()
    with pytest.raises(UsageError, match=f"{argument}: {next(iter(values))} is set by Tidegate"):
        project_dags(write_project(tmp_path), **given)


def test_schedules_and_days_are_in_the_time_zone_of_the_pipeline(tmp_path: Path) -> None:
    file = write_project(tmp_path, timezone='"Europe/Berlin"', end="2024-04-01", reopen_schedule='"0 4 * * *"')
    entry = load_config(file).entry("sessions")
    assert entry.start == datetime(2024, 3, 1, tzinfo=ZoneInfo("Europe/Berlin"))
    assert entry.end == datetime(2024, 3, 31, 22, tzinfo=UTC)
    dags = project_dags(file)
    for kind in ("backfill", "stream", "late"):
        assert "Europe/Berlin" in str(DagSerialization.to_dict(dags[f"sessions__{kind}"])["dag"]["timetable"])


def test_a_zone_that_does_not_exist_is_refused_by_its_field(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"pipelines.sessions.timezone: give the name of a time zone"):
        project_dags(write_project(tmp_path, timezone='"Berlin"'))


def test_maintenance_makes_a_savepoint_then_merges_and_removes_files(tmp_path: Path) -> None:
    plain = project_dags(write_project(tmp_path / "plain", maintenance_schedule='"0 3 * * *"'))
    assert [task.task_id for task in plain["sessions__maintenance"].topological_sort()] == ["optimize", "vacuum"]
    file = write_project(tmp_path, maintenance_schedule='"0 3 * * *"', maintenance_savepoints="7")
    tasks = list(project_dags(file)["sessions__maintenance"].topological_sort())
    assert [task.task_id for task in tasks] == ["savepoint", "optimize", "vacuum"]
    run = SimpleNamespace(run_after=datetime(2024, 3, 8, 3, tzinfo=UTC))
    made = [jinja2.Template(argument).render(dag_run=run) for argument in tasks[0].arguments]
    assert made == ["savepoints", "create", "sessions", "maintenance-20240308T030000", "--if-missing", "--keep=7"]


@pytest.mark.parametrize("name", ["pre_execute", "on_failure_callback", "pool"])
def test_default_args_that_tidegate_sets_are_refused_by_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"pipelines.sessions.default_args: {name} is set by Tidegate: leave it out"):
        project_dags(write_project(tmp_path, default_args=f'{{ {name} = "x" }}'))


def test_events_name_the_table_itself(tmp_path: Path) -> None:
    check = project_dags(write_project(tmp_path))["sessions__quality"].get_task("quality")
    assert check.events.table == f"{tmp_path}/warehouse/sessions/results"
    assert Asset(check.events.table).uri == check.events.table


def test_a_param_of_the_restart_is_named_with_its_dag(tmp_path: Path) -> None:
    hook: Any = project_dags(write_project(tmp_path))["sessions__stream"].get_task("stream")._pre_execute_hook
    with pytest.raises(AirflowFailException, match="but of sessions__restart: trigger that one"):
        hook({"dag_run": SimpleNamespace(conf={"take_over": True})})

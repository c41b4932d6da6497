"""The DAGs that tidegate.toml makes: their tasks, schedules, Params and assets."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import jinja2
import pendulum
import pytest
from airflow.sdk import DAG, Asset, CronDataIntervalTimetable
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable as ScheduledTimetable
from airflow.utils.types import DagRunType

from tests.dags.project import write_project
from tidegate.pipelines.airflow import project_dags
from tidegate.pipelines.airflow.operator import TidegateOperator
from tidegate.pipelines.definition.config import ENVIRONMENT
from tidegate.pipelines.errors import UsageError


@pytest.fixture
def dags(tmp_path: Path) -> dict[str, DAG]:
    return project_dags(
        write_project(
            tmp_path, max_lag_minutes="90", tags='["billing"]', pool='"spark"', retries="3", retry_delay_seconds="5"
        )
    )


def test_a_pipeline_has_its_dags_each_explained_tagged_and_paused_at_first(dags: dict[str, DAG]) -> None:
    assert set(dags) == {f"sessions__{kind}" for kind in ("backfill", "stream", "restart", "quality", "watch")}
    for dag in dags.values():
        assert {"tidegate", "sessions", "billing"} <= set(dag.tags)
        assert dag.doc_md
        assert "sessions" in dag.doc_md
        assert dag.is_paused_upon_creation
        assert all(
            param.schema.get("title") and param.description
            for param in (dag.params.get_param(name) for name in dag.params)
        )


def test_the_graph_of_assets_begins_at_the_source_as_other_dags_name_it(tmp_path: Path) -> None:
    given = '["s3://lake/events", { name = "orders", uri = "s3://lake/orders" }]'
    dags = project_dags(write_project(tmp_path, source_assets=given))
    theirs = [Asset("s3://lake/events"), Asset(name="orders", uri="s3://lake/orders")]
    assert dags["sessions__backfill"].get_task("windows").inlets == theirs
    assert dags["sessions__stream"].get_task("stream").inlets == theirs
    assert all(task.inlets == [] for task in dags["sessions__quality"].tasks)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ('["airflow://lake/events"]', ".* Write each as in the DAG that fills"),
        ('[{ name = "", uri = "s3://lake/events" }]', ".* Write each as in the DAG that fills"),
        ('"s3://lake/events"', "give a list"),
    ],
)
def test_an_asset_that_airflow_can_not_have_is_refused_by_its_field(given: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=rf"pipelines.sessions.source_assets: {told}"):
        project_dags(write_project(tmp_path, source_assets=given))


def test_with_a_schedule_every_window_and_file_is_checked_and_no_reader_is_told(tmp_path: Path) -> None:
    dag = project_dags(write_project(tmp_path, full_check_schedule='"0 5 * * 0"'))["sessions__full_check"]
    (task,) = dag.tasks
    assert (task.task_id, task.arguments, task.outlets) == ("quality", ["quality", "sessions", "--all", "--report"], [])
    assert "sessions" in (dag.doc_md or "")


def test_with_a_schedule_late_rows_are_reopened_and_then_checked_if_there_were_any(tmp_path: Path) -> None:
    dag = project_dags(write_project(tmp_path, reopen_schedule='"0 4 * * *"', pool='"spark"'))["sessions__late"]
    assert {"late", "tidegate"} <= set(dag.tags)
    assert "sessions" in (dag.doc_md or "")
    reopen, quality = dag.get_task("reopen"), dag.get_task("quality")
    assert (reopen.pool, quality.upstream_task_ids) == ("spark", {"reopen"})
    for epoch, only_if in ((7, "True"), (None, "False")):
        ti = SimpleNamespace(xcom_pull=lambda task_ids, epoch=epoch: {"reopen": {"epoch": epoch}}[task_ids])
        assert jinja2.Template(quality.only_if).render(ti=ti) == only_if


def test_without_partitions_the_final_windows_have_one_plain_event(tmp_path: Path) -> None:
    for unit in ("none", "hour"):
        dags = project_dags(write_project(tmp_path / unit, asset_partitions=f'"{unit}"'))
        quality = dags["sessions__quality"].get_task("quality")
        assert quality.windows.unit == unit
        assert len(quality.outlets) == 2


def test_tasks_that_run_spark_take_a_slot_of_the_pool_and_others_do_not(dags: dict[str, DAG]) -> None:
    pools = {task.task_id: task.pool for dag in dags.values() for task in dag.tasks}
    assert {name for name, pool in pools.items() if pool == "spark"} == {"windows", "stream"}


def test_backfills_go_in_order_and_their_data_interval_is_the_slice(dags: dict[str, DAG]) -> None:
    dag = dags["sessions__backfill"]
    windows, quality = dag.get_task("windows"), dag.get_task("quality")
    assert isinstance(dag.timetable, CronDataIntervalTimetable)
    assert windows.depends_on_past
    assert not quality.depends_on_past, "an old error must not stop new windows"
    assert quality.upstream_task_ids == {"windows"}


def test_with_following_intervals_the_last_one_is_checked(dags: dict[str, DAG]) -> None:
    (argument,) = [text for text in dags["sessions__backfill"].get_task("quality").arguments if "epoch" in text]
    result = {"epoch": 6, "runs": [{"epoch": 4}, {"epoch": 5}, {"epoch": 6}]}
    ti = SimpleNamespace(xcom_pull=lambda task_ids: {"windows": result}[task_ids])
    assert jinja2.Template(argument).render(ti=ti) == "--epoch=6"


def test_the_last_interval_ends_where_the_data_does(tmp_path: Path) -> None:
    end = datetime(2024, 3, 4, tzinfo=UTC)
    dag = project_dags(write_project(tmp_path, end="2024-03-04"))["sessions__backfill"]
    restriction = TimeRestriction(pendulum.instance(dag.start_date), pendulum.instance(dag.end_date), catchup=True)
    timetable, run, ends = ScheduledTimetable("0 0 * * *", timezone="UTC"), None, []
    while made := timetable.next_dagrun_info(last_automated_data_interval=run, restriction=restriction):
        run = made.data_interval
        ends.append(run.end)
    assert ends == [end - timedelta(days=2), end - timedelta(days=1), end]


@pytest.mark.parametrize(("kind", "skips"), [(DagRunType.SCHEDULED, "True"), (DagRunType.MANUAL, "False")])
def test_a_scheduled_run_of_a_stream_leaves_its_data_to_the_one_at_work(
    kind: DagRunType, skips: str, dags: dict[str, DAG]
) -> None:
    template = dags["sessions__stream"].get_task("stream").skip_if_held
    assert jinja2.Template(template).render(dag_run=SimpleNamespace(run_type=kind)) == skips


def test_windows_are_verified_beside_their_check(dags: dict[str, DAG], tmp_path: Path) -> None:
    assert not dags["sessions__quality"].has_task("verify"), "it reads the whole source, so it is asked for"
    (tmp_path / "other").mkdir()
    sampled = project_dags(write_project(tmp_path / "other", verify_sample="0.05"))
    verify = sampled["sessions__quality"].get_task("verify")
    arguments = ["verify", "sessions", "--budget", "0.02", "--sample", "0.05"]
    assert (verify.arguments, verify.outlets, verify.upstream_task_ids) == (arguments, [], set())
    assert verify.downstream_task_ids == set(), "a run fails if the check or the verification fails"


def test_only_windows_that_passed_their_checks_change_the_asset(dags: dict[str, DAG]) -> None:
    outlets = {
        (dag.dag_id, task.task_id): [asset.name for asset in task.outlets]
        for dag in dags.values()
        for task in dag.tasks
    }
    assert {place for place, names in outlets.items() if "sessions__final_windows" in names} == {
        ("sessions__backfill", "quality"),
        ("sessions__quality", "quality"),
    }
    assert outlets["sessions__stream", "stream"] == ["sessions__snapshot"]


def test_every_task_has_the_retries_and_the_alarm_of_its_pipeline(dags: dict[str, DAG]) -> None:
    for dag in dags.values():
        for task in dag.tasks:
            assert task.on_failure_callback
            if isinstance(task, TidegateOperator):
                assert (task.retries, task.retry_delay) == (3, timedelta(seconds=5))


@pytest.mark.parametrize(("mode", "longest"), [("available-now", timedelta(minutes=90)), ("continuous", None)])
def test_a_task_has_the_longest_time_of_its_pipeline_but_a_stream_without_end(
    tmp_path: Path, mode: str, longest: timedelta | None
) -> None:
    dags = project_dags(write_project(tmp_path, max_minutes="90", stream_mode=f'"{mode}"'))
    assert dags["sessions__backfill"].get_task("windows").execution_timeout == timedelta(minutes=90)
    assert dags["sessions__quality"].get_task("quality").execution_timeout == timedelta(minutes=90)
    assert dags["sessions__stream"].get_task("stream").execution_timeout == longest


def test_a_stream_is_replaced_only_after_its_successor_was_found_compatible(dags: dict[str, DAG]) -> None:
    assert [task.task_id for task in dags["sessions__stream"].tasks] == ["stream"]
    dag = dags["sessions__restart"]
    order = ["before", "check", "savepoint", "stop", "stream"]
    for first, second in pairwise(order):
        assert dag.get_task(second).upstream_task_ids == {first}
    first_epoch = dag.get_task("first_epoch")
    assert first_epoch.upstream_task_ids == {"stop"}
    assert first_epoch.newer_than == "{{ ti.xcom_pull(task_ids='stop')['epoch'] }}", "not one of the old stream"


def test_a_continuous_stream_is_started_by_hand(tmp_path: Path) -> None:
    dag = project_dags(write_project(tmp_path, stream_mode='"continuous"'))["sessions__stream"]
    assert dag.schedule is None
    assert dag.params["mode"] == "continuous"


@pytest.mark.parametrize(("mode", "is_timed"), [("available-now", False), ("continuous", True)])
def test_a_stream_is_checked_when_a_run_has_ended_and_one_that_does_not_end_on_its_schedule(
    mode: str, is_timed: bool, tmp_path: Path
) -> None:
    file = write_project(tmp_path, stream_mode=f'"{mode}"', stream_schedule='"*/5 * * * *"')
    stored = DagSerialization.to_dict(project_dags(file)["sessions__quality"])["dag"]["timetable"]
    assert "sessions__snapshot" in str(stored)
    assert ("*/5 * * * *" in str(stored)) == is_timed


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("restore", "savepoint:../etc"),
        ("restore", "--force"),
        ("restore", "savepoint:"),
        ("restore", "-1"),
        ("parallelism", 0),
        ("parallelism", 40_000),
        ("interval", "soon"),
        ("savepoint", "a/b"),
        ("mode", "batch"),
    ],
)
def test_a_param_that_can_not_be_is_refused_before_a_run_is_made(
    name: str, value: object, dags: dict[str, DAG]
) -> None:
    dag = dags["sessions__restart"]
    with pytest.raises(ParamValidationError, match=name):
        dag.params[name] = value


@pytest.mark.parametrize("kind", ["backfill", "stream", "restart", "quality", "watch"])
def test_a_key_that_is_no_param_is_refused_by_name_before_any_task_does_anything(
    kind: str, dags: dict[str, DAG]
) -> None:
    dag = dags[f"sessions__{kind}"]
    for task in dag.tasks:
        hook = task._pre_execute_hook
        assert hook is not None
        hook({"dag_run": SimpleNamespace(conf=dict.fromkeys(dag.params))})  # type: ignore[arg-type]
        hook({"dag_run": SimpleNamespace(conf=None)})  # type: ignore[arg-type]
        with pytest.raises(AirflowFailException, match=f"'restor' is not a Param of this DAG.*{', '.join(dag.params)}"):
            hook({"dag_run": SimpleNamespace(conf={"restor": "1"})})  # type: ignore[arg-type]


def test_a_misspelt_param_is_told_with_the_one_that_was_meant(dags: dict[str, DAG]) -> None:
    hook = dags["sessions__restart"].get_task("before")._pre_execute_hook
    with pytest.raises(AirflowFailException, match=r"'restor' is not a Param of this DAG: did you mean restore\?"):
        hook({"dag_run": SimpleNamespace(conf={"restor": "1", "take_over": True})})  # type: ignore[misc, arg-type]


def test_a_config_that_is_taken_from_the_folder_of_the_process_is_told_how_to_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as refused:
        project_dags("tidegate.toml")
    assert f"there is no {tmp_path}/tidegate.toml; tidegate.toml is relative to the current folder" in str(
        refused.value
    )
    assert 'project_dags(Path(__file__).parent.parent / "tidegate.toml")' in str(refused.value)
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    with pytest.raises(UsageError, match="In a DAG file, build its path from that file"):
        project_dags()


@pytest.mark.parametrize("restore", ["latest", "none", "17", "savepoint:before_upgrade"])
def test_a_stream_starts_from_any_snapshot(restore: str, dags: dict[str, DAG]) -> None:
    dag = dags["sessions__restart"]
    dag.params["restore"] = restore
    assert dag.params.validate()["restore"] == restore


PLACED = 'warehouse = "{0}/lake"\nwork = "{0}/work"\n'


@pytest.mark.parametrize(
    ("before", "relative"),
    [
        ("", "`warehouse`, `work` can't"),
        (PLACED + 'backups = "backups"\n', "`backups` can't"),
        (PLACED, None),
        (PLACED + 'artifacts = "s3://bucket/artifacts"\n', None),
    ],
)
def test_data_of_a_project_in_a_dag_bundle_lies_outside_its_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, relative: str | None
) -> None:
    """A new version of a bundle is another folder, in which a relative warehouse would be empty."""
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH", str(tmp_path / "bundles"))
    copy = tmp_path / "bundles" / "git" / "versions" / "0a1b2c"
    copy.mkdir(parents=True)
    file = write_project(copy)
    file.write_text(before.format(tmp_path) + file.read_text())
    if relative is None:
        assert "sessions__stream" in project_dags(file)
        return
    with pytest.raises(UsageError, match=f"{relative} be relative to it. Give an absolute path or a URI"):
        project_dags(file)

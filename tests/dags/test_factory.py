"""The DAGs that are created from tidegate.toml: their tasks, schedules, Params and assets. A group of streams in
Airflow: one command, the events of those that succeeded, an alarm for each that failed. Code of a project runs in
separate processes, and none of them has Airflow's secrets in its environment.
"""

from __future__ import annotations

import copy
import json
import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pendulum
import pytest
from airflow.sdk import DAG, Asset, CronDataIntervalTimetable
from airflow.sdk.exceptions import AirflowFailException, ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization
from airflow.timetables.base import TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable as ScheduledTimetable

from tests.dags.project import OutletEvents, task_instance, write_project
from tests.expectations.quality_lake import hour_lake, session_lake
from tidegate.pipelines.airflow import project_dags
from tidegate.pipelines.airflow.command import without_airflow
from tidegate.pipelines.airflow.operator import TidegateOperator
from tidegate.pipelines.airflow.tasks import FailedStreams, ReadStatus, StaleNote, StreamsFailed
from tidegate.pipelines.definition.config import ENVIRONMENT, load_config
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.observe.inspect.overview import pipeline_names, pipeline_overview


@pytest.fixture(scope="module")
def dags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DAG]:
    """The DAGs of one pipeline; no test changes them."""
    settings = {"max_lag_minutes": "90", "tags": '["billing"]', "pool": '"spark"'}
    folder = tmp_path_factory.mktemp("project")
    return project_dags(write_project(folder, default_args="{ retries = 3, retry_delay = 5 }", **settings))


def test_a_pipeline_has_its_dags_each_explained_tagged_and_paused_if_it_starts_by_itself(dags: dict[str, DAG]) -> None:
    assert set(dags) == {f"sessions__{kind}" for kind in ("backfill", "stream", "restart", "quality", "watch")}
    for dag in dags.values():
        assert {"tidegate", "sessions", "billing"} <= set(dag.tags)
        assert dag.doc_md
        assert "sessions" in dag.doc_md
        assert dag.is_paused_upon_creation is (dag.dag_id != "sessions__restart"), "a run of a paused DAG would wait"
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
    assert (task.task_id, task.arguments, task.outlets) == (
        "quality",
        ["quality", "check", "sessions", "--all", "--report"],
        [],
    )
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
        assert quality.events.unit == unit
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


@pytest.mark.parametrize(("mode", "longest"), [("schedule", timedelta(minutes=90)), ("continuous", None)])
def test_a_task_has_the_longest_time_of_its_pipeline_but_a_stream_without_end(
    tmp_path: Path, mode: str, longest: timedelta | None
) -> None:
    dags = project_dags(write_project(tmp_path, default_args="{ execution_timeout = 5400 }", stream_mode=f'"{mode}"'))
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


@pytest.mark.parametrize(("mode", "is_timed"), [("schedule", False), ("continuous", True)])
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


def test_a_misspelled_param_is_told_with_the_one_that_was_meant(dags: dict[str, DAG]) -> None:
    hook = dags["sessions__restart"].get_task("before")._pre_execute_hook
    with pytest.raises(AirflowFailException, match=r"'restor' is not a Param of this DAG: did you mean restore\? The"):
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
    params = copy.deepcopy(dags["sessions__restart"].params)
    params["restore"] = restore
    assert params.validate()["restore"] == restore


PLACED = 'warehouse = "{0}/lake"\nwork = "{0}/work"\n'


@pytest.mark.parametrize(
    ("before", "relative"),
    [
        ("", "`warehouse`, `work` can't"),
        (PLACED + 'artifacts = "artifacts"\n', "`artifacts` can't"),
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


def grouped(folder: Path, groups: str = 'small = ["sessions", "hours"]', **settings: str) -> Path:
    file = write_project(folder, session_lake(), hour_lake(), **settings)
    file.write_text(f"{file.read_text()}\n[stream_groups]\n{groups}\n")
    return file


def test_a_group_has_one_dag_with_the_schedule_of_its_first_pipeline(tmp_path: Path) -> None:
    dags = project_dags(grouped(tmp_path, stream_schedule='"7 * * * *"', pool='"spark"'), prefix="team_")
    dag = dags["team_small__streams"]
    streams, failed = dag.topological_sort()
    assert (streams.task_id, failed.task_id, streams.pool) == ("streams", "failed", "spark")
    assert "7 * * * *" in str(dag.timetable)
    assert dags["team_sessions__stream"].schedule is dags["team_hours__stream"].schedule is None, "by hand"
    assert [asset.name for asset in streams.outlets] == ["team_sessions__snapshot", "team_hours__snapshot"]
    given = {
        "params": SimpleNamespace(mode="available-now", interval="10s"),
        "dag_run": SimpleNamespace(run_type="scheduled"),
    }
    made = [jinja2.Template(argument).render(**given) for argument in streams.arguments]
    assert [each for each in made if each] == ["stream", "sessions", "hours", "--available-now"]


@pytest.mark.parametrize(
    ("groups", "told"),
    [
        ('small = ["sessions", "hour"]', "stream_groups.small: unknown pipeline 'hour'"),
        ('small = ["sessions"]', "stream_groups.small: a group has at least two pipelines"),
        ('a = ["sessions", "hours"]\nb = ["hours", "sessions"]', "stream_groups.b: 'hours' is already in group 'a'"),
    ],
)
def test_a_faulty_group_is_refused_by_its_field(groups: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=told):
        load_config(grouped(tmp_path, groups))


def test_a_group_with_a_pipeline_whose_entry_is_faulty_is_no_other_fault(tmp_path: Path) -> None:
    file = grouped(tmp_path)
    file.write_text(file.read_text().replace("[pipelines.hours]", "[pipelines.hours]\ndefault_args.retries = -1"))
    assert load_config(file).entry("sessions").default_args.retries == 1
    with pytest.raises(UsageError, match=r"pipelines.hours.default_args.retries: give at least 0"):
        project_dags(file)


RESULT = {"streams": [], "failed": {"hours": {"message": "no source", "exit_code": 3}}}


def test_a_stream_that_failed_has_no_event_and_the_others_have_theirs(tmp_path: Path) -> None:
    streams = project_dags(grouped(tmp_path))["small__streams"].get_task("streams")
    assert streams.events.may_emit(RESULT, 3)
    assert not streams.events.may_emit(None, 1), "a command that told nothing failed as a whole"
    events = OutletEvents()
    context: Any = {"ti": SimpleNamespace(task=streams), "outlet_events": events}
    assert streams.events.emit(context, RESULT) == "failed: hours"
    assert [asset.name for asset in streams.outlets] == ["sessions__snapshot"]
    assert {asset.name: about.extra["epoch"] for asset, about in events.items()} == {"sessions__snapshot": 2}


@pytest.mark.parametrize(("code", "held", "fails"), [(3, "True", True), (4, "True", False), (4, "False", True)])
def test_a_lease_that_is_held_fails_only_a_run_that_somebody_wants(code: int, held: str, fails: bool) -> None:
    task = FailedStreams(task_id="failed", streams="streams", skip_if_held=held)
    result = {"failed": {"hours": {"message": "m", "exit_code": code}}}
    context: Any = {"ti": SimpleNamespace(xcom_pull=lambda task_ids: result)}
    if not fails:
        task.execute(context)
        return
    with pytest.raises(StreamsFailed, match="hours: m"):
        task.execute(context)


def alarms(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (load_config(file).work_folder / "alarms.jsonl").read_text().splitlines()]


def test_each_owner_hears_of_its_own_pipeline(tmp_path: Path) -> None:
    file = grouped(tmp_path, default_args='{ owner = "ops" }')
    of_sessions, of_hours = file.read_text().split("[pipelines.hours]")
    file.write_text(f"{of_sessions}[pipelines.hours]{of_hours.replace('default_args', '# default_args')}")
    dags = project_dags(file, prefix="team_", default_args={"owner": "billing"})
    task = dags["team_small__streams"].get_task("failed")
    (fails,) = task.on_failure_callback
    instance = task_instance("team_small__streams", "failed", task=task)
    fails({"ti": instance, "exception": StreamsFailed(RESULT["failed"])})  # type: ignore[arg-type]
    (alarm,) = alarms(file)
    named = ("owner", "pipeline", "exit_code", "reason")
    assert tuple(alarm[name] for name in named) == ("billing", "team_hours", 3, "no source")


def test_a_group_whose_worker_died_has_an_alarm_for_each_pipeline(tmp_path: Path) -> None:
    """Airflow's DAG processor then calls the callback with a context that has no exception."""
    file = grouped(tmp_path)
    task = project_dags(file)["small__streams"].get_task("streams")
    (fails,) = task.on_failure_callback
    fails({"ti": task_instance("small__streams", "streams", task=task)})
    assert sorted(alarm["pipeline"] for alarm in alarms(file)) == ["hours", "sessions"]


SECRETS = {
    "AIRFLOW__CORE__FERNET_KEY": "fernet-0123",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "postgresql://airflow:database-0123@postgres/airflow",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD": "cat /run/command-0123",
    "AIRFLOW__API_AUTH__JWT_SECRET": "jwt-0123",
    "AIRFLOW__API__SECRET_KEY": "api-0123",
    "AIRFLOW__CELERY__BROKER_URL": "redis://:broker-0123@redis/0",
    "AIRFLOW_CONN_BANK": "https://user:connection-0123@bank",
    "AIRFLOW_VAR_TOKEN": "variable-0123",
    "_AIRFLOW_WWW_USER_PASSWORD": "first-user-0123",
    "__AIRFLOW_SUPERVISOR_FD": "9",
}
OTHERS = {
    "AIRFLOW_CTX_DAG_ID": "duty__backfill",
    "AWS_SECRET_ACCESS_KEY": "store-0123",
    "_SPARK_AUTH_SECRET": "spark-0123",
    "PATH": "/usr/bin",
    "HTTPS_PROXY": "http://proxy",
}
COMMAND = """#!{python}
import json, os, sys
from pathlib import Path

Path(sys.argv[sys.argv.index("--output") + 1]).write_text(json.dumps(dict(os.environ)))
"""
"""An executable in place of `tidegate`: it records its environment."""


def test_of_an_environment_only_airflows_own_settings_are_taken_away() -> None:
    assert without_airflow({**SECRETS, **OTHERS}) == OTHERS


def test_a_command_does_not_have_airflows_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**SECRETS, "AIRFLOW_CTX_DAG_ID": "duty__backfill", "MINE": "stays"}.items():
        monkeypatch.setenv(name, value)
    command = tmp_path / "tidegate"
    command.write_text(COMMAND.format(python=sys.executable))
    command.chmod(0o755)
    operator = TidegateOperator(
        task_id="windows",
        arguments=["backfill", "duty"],
        config=str(tmp_path / "tidegate.toml"),
        command=str(command),
    )
    instance = task_instance("duty", "windows", stats_tags={})
    context: Any = {"ti": instance}
    own = operator.execute(context)
    assert [name for name, value in SECRETS.items() if value in json.dumps(own) and len(value) > 1] == []
    assert (own["MINE"], own["AIRFLOW_CTX_DAG_ID"]) == ("stays", "duty__backfill")


def test_airflows_processes_import_no_code_of_a_project(tmp_path: Path) -> None:
    """The DAG processor, tasks that run no command, the triggerer and the page: the code can't be imported here."""
    lake = session_lake()
    config = write_project(tmp_path, lake, max_lag_minutes="1", reopen_schedule='"0 0 * * *"')
    text = config.read_text()
    for line in [line for line in text.splitlines() if line.startswith(("object", "suites.final"))]:
        text = text.replace(line, f'{line.partition("=")[0]}= "no_such_module:pipeline"')
    config.write_text(text)
    assert len(project_dags(config)) == 6
    name = lake.pipeline.name
    assert ReadStatus(task_id="before", config=str(config), pipeline=name).execute({})["epoch"] == 2  # type: ignore[typeddict-item]
    assert StaleNote(str(config), name).text() is None
    assert pipeline_names(config) == [name]
    assert pipeline_overview(config, name)["epoch"] == 2

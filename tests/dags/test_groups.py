"""A group of streams in Airflow: one command, the events of those that ended well, an alarm for each that failed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest

from tests.dags.project import OutletEvents, task_instance, write_project
from tests.expectations.quality_lake import hour_lake, session_lake
from tidegate.pipelines.airflow import project_dags
from tidegate.pipelines.airflow.alarms import open_incidents
from tidegate.pipelines.airflow.groups import FailedStreams, StreamsFailed
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.errors import UsageError


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
    file.write_text(file.read_text().replace("[pipelines.hours]", "[pipelines.hours]\nretries = -1"))
    assert load_config(file).entry("sessions").retries == 1
    with pytest.raises(UsageError, match=r"pipelines.hours.retries: give at least 0"):
        project_dags(file)


RESULT = {"streams": [], "failed": {"hours": {"message": "no source", "exit_code": 3}}}


def test_a_stream_that_failed_has_no_event_and_the_others_have_theirs(tmp_path: Path) -> None:
    streams = project_dags(grouped(tmp_path))["small__streams"].get_task("streams")
    assert streams.windows.may_tell(RESULT, 3)
    assert not streams.windows.may_tell(None, 1), "a command that told nothing failed as a whole"
    events = OutletEvents()
    context: Any = {"ti": SimpleNamespace(task=streams), "outlet_events": events}
    streams._finish(context, RESULT)
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


def test_each_owner_hears_of_its_own_pipeline_and_of_the_end(tmp_path: Path) -> None:
    file = grouped(tmp_path, owner='"ops"')
    of_sessions, of_hours = file.read_text().split("[pipelines.hours]")
    file.write_text(f"{of_sessions}[pipelines.hours]{of_hours.replace('owner', '# owner')}")
    config = load_config(file)
    dags = project_dags(file, prefix="team_", default_args={"owner": "billing"})
    task = dags["team_small__streams"].get_task("failed")
    (fails,), (ends,) = task.on_failure_callback, task.on_success_callback
    instance = task_instance("team_small__streams", "failed", task=task)
    fails({"ti": instance, "exception": StreamsFailed(RESULT["failed"])})  # type: ignore[arg-type]
    assert list(open_incidents(config, "hours")) == ["team_small__streams/failed"]
    assert open_incidents(config, "sessions") == {}
    (line,) = (config.work_folder / "alarms.jsonl").read_text().splitlines()
    told = ('"owner": "billing"', '"pipeline": "team_hours"', '"exit_code": 3', "no source")
    assert all(part in line for part in told)
    ends({"ti": instance})
    assert open_incidents(config, "hours") == {}

"""Sensors and watches read the newest snapshot and start no JVM. The task that fails after a check that held back
partitions: its exit code and its alarm.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from tests.dags.project import first_event, task_instance, write_project
from tests.expectations.quality_lake import QualityLake, at, hour_lake, session_lake
from tests.expectations.test_acknowledge import FEW, acknowledged
from tests.expectations.test_failed_expectation import checked, project
from tidegate.pipelines.airflow import project_dags, triggers
from tidegate.pipelines.airflow.alarms import describe
from tidegate.pipelines.airflow.operator import CommandRefused
from tidegate.pipelines.airflow.sensors import SnapshotSensor
from tidegate.pipelines.airflow.tasks import HELD, HeldPartitions, StaleNote, StopStream, WatermarkWatch
from tidegate.pipelines.airflow.triggers import SnapshotTrigger
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.observe.inspect.status import PipelineStatus, read_status


def restored() -> QualityLake:
    """A lake whose newest epoch only restored an older one."""
    lake = session_lake()
    lake.epochs[-1]["kind"] = "restore"
    return lake


def sensor(config: Path, **options: Any) -> SnapshotSensor:
    return SnapshotSensor(task_id="wait", pipeline="sessions", config=config, **options)


def test_a_pipeline_stands_at_its_newest_snapshot(tmp_path: Path) -> None:
    status = read_status(write_project(tmp_path), "sessions")
    assert (status.epoch, status.timeline) == (2, 1)
    assert status.is_past(at("13:10"))
    assert not status.is_past(at("13:11"))
    assert status.lag(at("14:10")) == 3600


def test_a_pipeline_that_never_ran_stands_before_its_first_epoch(tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_text('[pipelines.new]\nobject = "a:b"\nstart = 2024-03-01\n')
    assert read_status(tmp_path / "tidegate.toml", "new") == PipelineStatus("new")
    with pytest.raises(UsageError, match="unknown pipeline"):
        read_status(tmp_path / "tidegate.toml", "other")


@pytest.mark.parametrize(
    "options", [{"newer_than": 1}, {"newer_than": "1"}, {"watermark_past": at("13:00").isoformat()}]
)
def test_what_has_come_already_is_not_waited_for(options: dict[str, Any], tmp_path: Path) -> None:
    assert sensor(write_project(tmp_path), **options).execute({})["epoch"] == 2


@pytest.mark.parametrize(
    ("lake", "options"),
    [
        (session_lake(), {"newer_than": 2}),
        (session_lake(), {"watermark_past": at("14:00").isoformat()}),
        pytest.param(restored(), {"newer_than": 1}, id="a restore is no step of the stream that made it"),
    ],
)
def test_what_has_not_come_is_waited_for_in_the_triggerer(
    lake: QualityLake, options: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        sensor(write_project(tmp_path, lake), **options, poke_interval=0.01).execute({})
    path, arguments = deferred.value.trigger.serialize()
    assert path.endswith("SnapshotTrigger")
    assert json.loads(json.dumps(arguments)) == arguments


@pytest.mark.parametrize("awaited", [{"newer_than": 1}, {"watermark_past": at("13:00").isoformat()}])
def test_the_trigger_fires_with_the_snapshot_that_came(awaited: dict[str, Any], tmp_path: Path) -> None:
    trigger = SnapshotTrigger(str(write_project(tmp_path)), "sessions", **awaited, poke_interval=0.01)
    assert first_event(trigger)["epoch"] == 2


def test_a_watermark_that_is_not_past_the_moment_is_waited_for_in_the_trigger_too(tmp_path: Path) -> None:
    config, moment = str(write_project(tmp_path)), at("14:00").isoformat()
    trigger = SnapshotTrigger(config, "sessions", watermark_past=moment, poke_interval=0.01)
    with pytest.raises(TimeoutError):
        first_event(trigger, 0.5)


@pytest.mark.parametrize(("state", "event"), [("failed", {"ended": "failed"}), ("up_for_retry", None), (None, None)])
def test_once_its_driver_has_ended_nothing_is_waited_for(
    state: str | None, event: dict[str, str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        triggers.RuntimeTaskInstance, "get_task_states", lambda **asked: {asked["run_ids"][0]: {"stream": state}}
    )
    driver = {"dag_id": "sessions__stream", "run_id": "manual", "task_id": "stream"}
    trigger = SnapshotTrigger(str(write_project(tmp_path)), "sessions", newer_than=2, poke_interval=0.01, driver=driver)
    if event is None:
        with pytest.raises(TimeoutError):
            first_event(trigger, 0.5)
        return
    assert first_event(trigger) == event
    with pytest.raises(AirflowFailException, match=r"task stream ended \(failed\)"):
        sensor(tmp_path / "tidegate.toml", newer_than=2, driver="stream").resume({}, event)


def test_a_sensor_that_is_not_deferrable_polls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_project(tmp_path)
    there = sensor(config, newer_than=1, deferrable=False).poke({})
    assert (there.is_done, there.xcom_value["epoch"]) == (True, 2)
    assert sensor(config, newer_than=2, deferrable=False).poke({}).is_done is False
    assert sensor(config, newer_than=1, deferrable=False).execute({})["epoch"] == 2
    monkeypatch.setattr(triggers.RuntimeTaskInstance, "get_task_states", lambda **asked: {"r": {"stream": "failed"}})
    context = {"ti": SimpleNamespace(dag_id="sessions__stream", run_id="r")}
    with pytest.raises(AirflowFailException, match=r"task stream ended \(failed\)"):
        sensor(config, newer_than=2, driver="stream", deferrable=False).poke(context)  # type: ignore[arg-type]


@pytest.mark.parametrize("take_over", ["True", "False"])
def test_a_restart_knows_the_epoch_after_which_the_new_stream_begins(take_over: str, tmp_path: Path) -> None:
    config = str(write_project(tmp_path))
    stop = StopStream(task_id="stop", pipeline="sessions", config=config, take_over=take_over)
    assert stop.execute({})["epoch"] == 2  # type: ignore[typeddict-item]


def test_a_sensor_without_anything_to_wait_for_is_a_mistake(tmp_path: Path) -> None:
    config = write_project(tmp_path)
    with pytest.raises(AirflowFailException, match="nothing to wait for"):
        sensor(config, newer_than="None").execute({})
    with pytest.raises(AirflowFailException, match="give a zone"):
        sensor(config, watermark_past="2024-03-01T00:00:00").execute({})
    with pytest.raises(AirflowSkipException):
        sensor(config, newer_than=1, only_if="False").execute({})


def watch(config: Path, now: datetime, **params: Any) -> dict[str, Any]:
    task = WatermarkWatch(
        task_id="watermark", pipeline="sessions", config=str(config), max_lag=timedelta(hours=1), clock=lambda: now
    )
    return task.execute({"params": params})  # type: ignore[arg-type]


def test_a_watch_fails_when_the_watermark_lies_too_far_behind(tmp_path: Path) -> None:
    config = write_project(tmp_path)
    assert watch(config, at("14:10"))["epoch"] == 2
    with pytest.raises(AirflowFailException, match="1:01:00 behind, more than 1:00:00"):
        watch(config, at("14:11"))
    assert watch(config, at("14:11"), max_lag_minutes=120)["epoch"] == 2


def test_a_watch_is_skipped_before_there_is_a_watermark(tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_text('[pipelines.sessions]\nobject = "a:b"\nstart = 2024-03-01\n')
    with pytest.raises(AirflowSkipException, match="no watermark yet"):
        watch(tmp_path / "tidegate.toml", at("14:10"))


def test_a_run_that_made_results_stale_names_the_command_that_runs_them_again(tmp_path: Path) -> None:
    config = write_project(tmp_path)
    note = StaleNote(str(config), "sessions")
    assert note.text() is None
    lake = session_lake(stale=(("14:00", "15:00"), ("15:00", "16:00")))
    told = StaleNote(str(write_project(tmp_path / "stale", lake)), "sessions").text()
    assert told is not None
    assert "airflow tasks clear sessions__backfill" in told
    assert "--start-date 2024-03-01T14:00:00+00:00 --end-date 2024-03-01T15:00:00+00:00" in told, "both included"


def result_of_check(folder: Path, printed: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The result of a check as Airflow keeps it: without its lists."""
    printed.readouterr()
    checked(folder, "--json", "--partitions=hour")
    result: dict[str, Any] = json.JSONDecoder().raw_decode(printed.readouterr().out)[0]
    return {name: value for name, value in result.items() if not isinstance(value, list)}


def context(task: HeldPartitions, result: dict[str, Any]) -> Any:
    pulled = {"quality": result}
    return {"ti": task_instance("hours__backfill", HELD, "one", task=task, xcom_pull=lambda task_ids: pulled[task_ids])}


def test_it_fails_with_what_the_check_found_until_all_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project(hour_lake(), tmp_path, FEW, 'hold = "partitions"\n')
    task = HeldPartitions(task_id=HELD, check="quality", config=str(tmp_path / "tidegate.toml"), pipeline="hours")
    given = context(task, result_of_check(tmp_path, capsys))
    with pytest.raises(CommandRefused, match="epoch 2: 1 partitions of hours are held back") as failed:
        task.execute(given)
    config = load_config(tmp_path / "tidegate.toml")
    alarm = describe(given | {"exception": failed.value}, config, "hours", "airflow")
    assert (alarm["exit_code"], alarm["severity"]) == (5, "critical")
    (check,) = alarm["failed"]
    assert (check["columns"], check["limits"], check["failing"]) == ("events", "max_value 3.0", 1)
    assert check["examples"][0]["key"] == "user a"
    assert "user a" in alarm["reason"]
    assert acknowledged(tmp_path, "events = 4") == 0
    given = context(task, result_of_check(tmp_path, capsys))
    assert task.execute(given)["held"] == 0
    assert describe(given, config, "hours", "airflow")["failed"] == []


@pytest.mark.parametrize("hold", ["asset", "partitions"])
def test_it_follows_each_check_that_makes_events_if_partitions_are_held_back(hold: str, tmp_path: Path) -> None:
    dags: dict[str, DAG] = project_dags(write_project(tmp_path, hold=f'"{hold}"', reopen_schedule='"0 5 * * *"'))
    kinds = ("backfill", "quality", "late")
    followers = {kind: dags[f"sessions__{kind}"].get_task("quality").downstream_task_ids for kind in kinds}
    assert followers == dict.fromkeys(kinds, {HELD} if hold == "partitions" else set())

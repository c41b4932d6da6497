"""The operator: what it runs, what it returns, which failures are retried, and what it ends. The command line of a task
follows from the Params of its run.
"""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import psutil
import pytest
import structlog
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, AirflowTaskTimeout, TaskDeferred

from tests.dags.project import OutletEvents, Store, first_event, task_instance, write_project
from tests.waiting import wait_until
from tidegate.pipelines.airflow import process
from tidegate.pipelines.airflow.assets import SnapshotEvent, WindowEvents, final_windows_asset, snapshot_asset
from tidegate.pipelines.airflow.operator import CommandFailed, CommandRefused, TidegateOperator
from tidegate.pipelines.airflow.params import (
    PATIENCE_SECONDS,
    backfill_arguments,
    check_arguments,
    quality_arguments,
    reopen_arguments,
    restart_arguments,
    savepoint_arguments,
)
from tidegate.pipelines.airflow.report_link import ReportLink
from tidegate.pipelines.airflow.triggers import CommandTrigger
from tidegate.pipelines.errors import QUALITY
from tidegate.pipelines.project.cli import run

FAKE = """#!{python}
import json, os, signal, sys, time
words = sys.argv[sys.argv.index("tidegate") + 1:]
print("working on", *words[:-2], "of", os.environ["TIDEGATE_CONFIG"], flush=True)
if "ends-kindly" in words:
    signal.signal(signal.SIGTERM, lambda *ignored: sys.exit(0))
if {{"wait", "ends-kindly"}} & set(words):
    time.sleep(600)
report = {{"pipeline": "duty", "report": "/kept/7.html"}} if "--report" in words else {{}}
report |= {{"checks": [1] * int(word[9:]) for word in words if word.startswith("--checks=")}}
if "--held" in words:
    named = {{"unit": "day", "is_any": True, "count": 1, "first": "a", "last": "a", "keys": ["a"], "held": 1}}
    report |= {{"success": False, "partitions": {{**named, "mark": {{"epoch": 7, "held": [5]}}}}}}
result = {{"epoch": 7, "quality": "passed", "watermark": 5, **report}}
open(words[words.index("--output") + 1], "w").write(json.dumps(result))
print(next((word[8:] for word in words if word.startswith("--print=")), ""), flush=True)
sys.exit(int(next((word[7:] for word in words if word.startswith("--code=")), 0)))
"""


def stand_in(folder: Path) -> str:
    """Return a stand-in for the command's interpreter: it prints what it runs, and leaves a given result and exit
    code.
    """
    file = folder / "python"
    file.write_text(FAKE.format(python=sys.executable))
    file.chmod(0o755)
    return str(file)


@pytest.fixture
def interpreter(tmp_path: Path) -> str:
    return stand_in(tmp_path)


def operator(tmp_path: Path, interpreter: str, *arguments: str, **options: Any) -> TidegateOperator:
    places = {"config": str(tmp_path / "tidegate.toml"), "runs": str(tmp_path / "runs")}
    return TidegateOperator(task_id="windows", arguments=list(arguments), python=interpreter, **places | options)


def context(tries: int = 1, store: Store | None = None) -> Any:
    instance = task_instance("duty", "windows", "scheduled__1", try_number=tries, stats_tags={})
    return {"ti": instance, "outlet_events": OutletEvents(), "task_state_store": Store() if store is None else store}


def test_the_result_is_what_the_command_left_and_goes_into_the_asset_event(tmp_path: Path, interpreter: str) -> None:
    asset = final_windows_asset("duty")
    given = context()
    ran = operator(tmp_path, interpreter, "quality", "duty", "", outlets=[asset])
    assert ran.execute(given) == {"epoch": 7, "quality": "passed", "watermark": 5}
    assert given["outlet_events"][asset].extra == {"epoch": 7, "quality": "passed", "watermark": 5}
    log = next((tmp_path / "runs").rglob("log.txt")).read_text()
    told = f"working on quality duty of {tmp_path / 'tidegate.toml'}"
    assert log.strip() == told, "an argument that is empty is left out"


def test_airflow_keeps_a_result_without_its_lists(tmp_path: Path, interpreter: str) -> None:
    ran = operator(tmp_path, interpreter, "stream", "--checks=1000")
    assert ran.execute(context()) == {"epoch": 7, "quality": "passed", "watermark": 5}
    assert len(ran.result["checks"]) == 1000, "the file of the run has them"


def test_the_event_of_a_stream_tells_where_it_stands_however_it_ran(tmp_path: Path, interpreter: str) -> None:
    config = str(write_project(tmp_path))
    asset = snapshot_asset("sessions")
    given = context()
    event = SnapshotEvent(config, "sessions")
    operator(tmp_path, interpreter, "stream", "sessions", outlets=[asset], event=event).execute(given)
    told = given["outlet_events"][asset].extra
    assert (told["pipeline"], told["timeline"], told["epoch"], told["snapshot_version"]) == ("sessions", 1, 2, 2)
    assert told["watermark"] == 1_709_298_600_000
    assert told["counters"]["late"] == 1


@pytest.mark.parametrize("code", [0, 1, 3])
def test_a_deferrable_task_waits_in_the_triggerer_and_ends_as_its_command_did(
    code: int, tmp_path: Path, interpreter: str
) -> None:
    given, trigger = context(), deferred(tmp_path, interpreter, "stream", f"--code={code}")
    path, arguments = trigger.serialize()
    assert path == "tidegate.pipelines.airflow.triggers.CommandTrigger"
    event = first_event(CommandTrigger(**{**json.loads(json.dumps(arguments)), "poll_interval": 0.05}), 60)
    assert event["is_too_late"] is False
    resumed = operator(tmp_path, interpreter, "stream", f"--code={code}", deferrable=True)
    if code == 0:
        assert resumed.resume(given, event) == {"epoch": 7, "quality": "passed", "watermark": 5}
        return
    with pytest.raises(CommandFailed if code == 1 else CommandRefused, match=f"ended with exit code {code}"):
        resumed.resume(given, event)


def test_a_deferred_command_ends_with_its_task_and_with_its_time(tmp_path: Path, interpreter: str) -> None:
    trigger = deferred(tmp_path, interpreter, "stream", "wait")
    asyncio.run(trigger.on_kill())
    run = process.Run(process.ProcessHandle(**trigger.handle))
    wait_until(lambda: not run.is_alive(), "the end of the command")
    late = deferred(tmp_path / "other", interpreter, "stream", "wait")
    event = first_event(CommandTrigger(late.handle, late.config, ends=0.0, poll_interval=0.05), 60)
    assert event["is_too_late"] is True
    with pytest.raises(AirflowTaskTimeout, match="was ended"):
        operator(tmp_path, interpreter, "stream", deferrable=True).resume(context(), event)


def deferred(tmp_path: Path, interpreter: str, *arguments: str) -> CommandTrigger:
    with pytest.raises(TaskDeferred) as told:
        # The command takes longer to start than the check waits.
        operator(tmp_path, interpreter, *arguments, deferrable=True).execute(context())
    trigger = told.value.trigger
    assert isinstance(trigger, CommandTrigger)
    return trigger


def test_without_a_folder_of_runs_it_is_in_the_work_folder_of_the_project(tmp_path: Path, interpreter: str) -> None:
    operator(tmp_path, interpreter, "stream", config=write_project(tmp_path), runs=None).execute(context())
    assert [path.name for path in (tmp_path / ".work" / "runs").iterdir()] == ["duty"]


@pytest.mark.parametrize("code", [0, 5])
def test_a_report_is_linked_whether_its_check_passed_or_not(
    code: int, tmp_path: Path, interpreter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://flow.example/prefix/")
    asset, given = final_windows_asset("duty"), context()
    check = operator(
        tmp_path, interpreter, "quality", "--report", f"--code={code}", outlets=[asset], links=[ReportLink()]
    )
    address = "https://flow.example/prefix/tidegate/pipelines/duty/reports/7"
    if code:
        with pytest.raises(CommandRefused):
            check.execute(given)
    else:
        check.execute(given)
        told = given["outlet_events"][asset].extra
        assert (told["report"], told["report_url"]) == ("/kept/7.html", address)
    (link,) = check.operator_extra_links
    assert link.get_link(check, ti_key=given["ti"]) == address


@pytest.mark.parametrize("hold", ["asset", "partitions"])
def test_events_of_partitions_that_are_right_go_out_although_others_fail(
    hold: Any, tmp_path: Path, interpreter: str
) -> None:
    windows, stored = WindowEvents("duty", "day", lambda asset: None, hold), Store()
    arguments = ("quality", "--held", f"--code={QUALITY}")
    check = operator(tmp_path, interpreter, *arguments, outlets=[windows.asset, windows.alias], windows=windows)
    given, keys = context() | {"asset_state_store": {windows.asset: stored}}, list[str]()
    given["outlet_events"][windows.asset] = SimpleNamespace(extra={}, add_partitions=keys.extend)
    if hold == "asset":
        with pytest.raises(CommandRefused):
            check.execute(given)
        assert (keys, stored) == ([], {})
        return
    returned = check.execute(given)
    assert (keys, returned["success"], returned["partitions"]["held"]) == (["a"], False, 1)
    assert stored["told"]["mark"] == {"epoch": 7, "held": [5]}


def test_where_no_report_was_written_there_is_no_link(tmp_path: Path, interpreter: str) -> None:
    check = operator(tmp_path, interpreter, "quality", links=[ReportLink()])
    check.execute(context())
    (link,) = check.operator_extra_links
    assert link.get_link(check, ti_key=None) == ""


def test_a_command_of_a_project_in_a_dag_bundle_needs_its_data_elsewhere(
    tmp_path: Path, interpreter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(tmp_path)
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH", str(tmp_path))
    with pytest.raises(CommandRefused, match="`warehouse`, `work` can't be relative to it") as refused:
        operator(tmp_path, interpreter, "stream", "sessions").execute(context())
    assert refused.value.exit_code == 2
    assert not list(tmp_path.rglob("log.txt")), "no command was started"


@pytest.mark.parametrize("code", [1, 4, 130, 137, 143, 2, 3, 5])
def test_a_failure_that_may_pass_is_worth_a_retry_and_one_that_stays_is_never_tried_again(
    code: int, tmp_path: Path, interpreter: str
) -> None:
    given, asset = context(), final_windows_asset("duty")
    with pytest.raises((CommandFailed, CommandRefused)) as failed:
        operator(tmp_path, interpreter, "quality", f"--code={code}", outlets=[asset]).execute(given)
    assert getattr(failed.value, "exit_code", None) == code
    assert isinstance(failed.value, AirflowFailException) == (code in (2, 3, 5))
    assert asset not in given["outlet_events"], "the asset is held back"


@pytest.mark.parametrize(
    ("code", "printed", "reason"),
    [
        (2, "reading\ntidegate: unknown pipeline 'dutty'\n", "unknown pipeline 'dutty'"),
        (1, "tidegate: an old try\nTraceback\n  a frame\ntidegate: the disk\nis full\n\n", "the disk is full"),
        (137, "working\nKilled\n", "Killed"),
        (3, "tidegate: run it with --fill-gaps", "run it with --fill-gaps (Params in Airflow: `fill_gaps`)"),
    ],
)
def test_the_error_of_a_task_says_why_its_command_failed(
    code: int, printed: str, reason: str, tmp_path: Path, interpreter: str
) -> None:
    failing = operator(tmp_path, interpreter, "stream", f"--code={code}", f"--print={printed}")
    with pytest.raises((CommandFailed, CommandRefused)) as failed:
        failing.execute({**context(), "params": {"fill_gaps": False, "fill": None, "again": False}})
    told = failed.value
    assert isinstance(told, CommandFailed | CommandRefused)
    assert told.reason == reason
    assert f"ended with exit code {code}: {reason}; see {tmp_path}" in str(told)


def test_what_need_not_wait_for_another_driver_is_skipped(tmp_path: Path, interpreter: str) -> None:
    with pytest.raises(AirflowSkipException):
        operator(tmp_path, interpreter, "stream", "--code=4", skip_if_held="True").execute(context())
    with pytest.raises(CommandFailed):
        operator(tmp_path, interpreter, "stream", "--code=1", skip_if_held="True").execute(context())


def test_a_command_that_is_still_running_is_found_again_and_not_started_twice(tmp_path: Path, interpreter: str) -> None:
    first = operator(tmp_path, interpreter, "stream", "wait")
    handle = first.submit_job(context())
    try:
        again = operator(tmp_path, interpreter, "stream", "wait")
        assert again.is_job_active(again.get_job_status(handle, context(tries=2)))
        again._run = process.Run(process.ProcessHandle(**handle))
        again.on_kill()
        # It waits for a process that is being ended, so that the next try starts a new one.
        assert not again.is_job_active(again.get_job_status(handle, context(tries=3))), "ended with its task"
        assert not psutil.pid_exists(handle["pid"]) or psutil.Process(handle["pid"]).status() == "zombie"
    finally:
        process.Run(process.ProcessHandle(**handle)).stop()


@pytest.mark.parametrize("how", ["wait", "ends-kindly"])
def test_a_command_that_was_ended_with_its_task_failed_however_it_took_it(
    how: str, tmp_path: Path, interpreter: str
) -> None:
    ended = operator(tmp_path, interpreter, "stream", how)
    handle = ended.submit_job(context())
    log = process.ProcessHandle(**handle).log
    wait_until(lambda: "working" in log.read_text(), "the command at work")
    ended.on_kill()
    with pytest.raises(CommandFailed) as failed:
        ended.poll_until_complete(handle, context())
    assert failed.value.exit_code == 143, (
        "a stream that ends kindly is no success: nobody asked it to stop but its task"
    )


def test_a_task_that_ended_well_and_is_cleared_runs_its_command_again(tmp_path: Path, interpreter: str) -> None:
    store = Store()
    for tries in (1, 2):
        operator(tmp_path, interpreter, "backfill", "duty").execute(context(tries, store))
    assert len(list((tmp_path / "runs").rglob("log.txt"))) == 2


def test_what_a_command_left_that_ended_while_nobody_followed_it_is_taken(tmp_path: Path, interpreter: str) -> None:
    store = Store()
    handle = operator(tmp_path, interpreter, "backfill", "duty").submit_job(context())
    process.Run(process.ProcessHandle(**handle)).follow(lambda line: None)
    store.set(TidegateOperator.external_id_key, handle)
    again = operator(tmp_path, interpreter, "backfill", "duty")
    with structlog.testing.capture_logs() as told:
        assert again.execute(context(2, store))["epoch"] == 7
    assert "working on backfill duty" in str(told), "and what it told"
    assert len(list((tmp_path / "runs").rglob("log.txt"))) == 1, "no second process"


PARAMS = {"mode": "available-now", "interval": "10s", "restore": "latest", "parallelism": None, "take_over": False}
DAY = {
    "data_interval_start": datetime(2024, 3, 1, tzinfo=UTC),
    "data_interval_end": datetime(2024, 3, 2, tzinfo=UTC),
}


def rendered(arguments: list[str], **context: Any) -> list[str]:
    """Return the arguments as the operator runs them: rendered, without empty ones."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    texts = (environment.from_string(argument).render(**context) for argument in arguments)
    return [text for text in texts if text]


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ({}, ["--available-now"]),
        ({"restore": "17"}, ["--available-now", "--restore=17", "--restore-from-timeline=3"]),
        ({"restore": "none"}, ["--available-now", "--restore=none", "--restore-from-timeline=3"]),
        (
            {"restore": "savepoint:a", "parallelism": 8},
            ["--available-now", "--restore=savepoint:a", "--restore-from-timeline=3", "--parallelism=8"],
        ),
        ({"mode": "continuous", "interval": "5s"}, ["--interval=5s"]),
    ],
)
def test_a_stream_says_only_what_differs_from_the_default(changed: dict[str, Any], options: list[str]) -> None:
    params = SimpleNamespace(**PARAMS | changed)
    ti = SimpleNamespace(xcom_pull=lambda task_ids: {"before": {"timeline": 3}}[task_ids])
    arguments = restart_arguments("duty", "before")
    scheduled, manual = SimpleNamespace(run_type="scheduled"), SimpleNamespace(run_type="manual")
    assert rendered(arguments, params=params, ti=ti, dag_run=scheduled) == ["stream", "duty", *options]
    # A run that a person started waits for a scheduled run in progress; a scheduled run leaves its data to others.
    waits = ["stream", "duty", *options, f"--patience={PATIENCE_SECONDS}"]
    assert rendered(arguments, params=params, ti=ti, dag_run=manual) == waits


ASKED = {
    "interval_start": "2024-03-05T00:00:00Z",
    "interval_end": "2024-03-06T00:00:00Z",
    "and_following": True,
    "fill_gaps": True,
    "again": True,
}


@pytest.mark.parametrize(
    ("asked", "own", "options"),
    [
        ({}, DAY, "--start=2024-03-01T00:00:00+00:00 --end=2024-03-02T00:00:00+00:00 --no-and-following"),
        (
            ASKED,
            {"data_interval_start": None, "data_interval_end": None},
            "--start=2024-03-05T00:00:00Z --end=2024-03-06T00:00:00Z --and-following --fill-gaps --again",
        ),
    ],
)
def test_a_backfill_runs_its_data_interval_or_the_one_that_is_asked_for(
    asked: dict[str, Any], own: dict[str, Any], options: str
) -> None:
    nothing = {"interval_start": None, "interval_end": None, "and_following": False, "fill_gaps": False, "again": False}
    arguments = rendered(backfill_arguments("duty"), params=SimpleNamespace(**nothing | asked), **own)
    assert arguments == ["backfill", "duty", *options.split(), f"--patience={PATIENCE_SECONDS}"]


@pytest.mark.parametrize(
    ("start", "end", "own", "options"),
    [
        (None, None, {"data_interval_start": None, "data_interval_end": None}, []),
        (None, None, {}, []),
        ("2024-03-05T00:00:00Z", None, DAY, ["--start=2024-03-05T00:00:00Z"]),
        (None, "2024-03-06T00:00:00Z", DAY, ["--end=2024-03-06T00:00:00Z"]),
    ],
)
def test_an_interval_that_is_not_given_whole_is_left_for_the_command_to_refuse(
    start: str | None, end: str | None, own: dict[str, Any], options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    params = SimpleNamespace(interval_start=start, interval_end=end, and_following=False, fill_gaps=False, again=False)
    arguments = rendered(backfill_arguments("aircraft_duty"), params=params, **own)
    assert arguments == ["backfill", "aircraft_duty", *options, "--no-and-following", f"--patience={PATIENCE_SECONDS}"]
    assert run(arguments) == 2
    told = capsys.readouterr().err
    assert "give --start and --end" in told
    assert "in Airflow, the Params interval_start and interval_end" in " ".join(told.split())


@pytest.mark.parametrize(
    ("start", "end", "options"),
    [
        (None, None, []),
        ("2024-03-05T00:00:00Z", None, ["--start=2024-03-05T00:00:00Z"]),
        (None, "2024-03-06", ["--end=2024-03-06"]),
    ],
)
def test_late_rows_are_reopened_after_a_run_that_ends_by_itself(
    start: str | None, end: str | None, options: list[str]
) -> None:
    arguments = rendered(reopen_arguments("duty"), params=SimpleNamespace(start=start, end=end))
    assert arguments == ["late", "reopen", "duty", *options, "--patience=3600"]


def test_before_a_restart_the_snapshot_is_checked_and_copied() -> None:
    params = SimpleNamespace(**PARAMS | {"restore": "17", "savepoint": "before_upgrade"})
    assert rendered(check_arguments("duty"), params=params) == ["snapshot", "check", "duty", "17"]
    savepoint = ["savepoint", "create", "duty", "before_upgrade", "--if-missing"]
    assert rendered(savepoint_arguments("duty"), params=params) == savepoint
    assert rendered(check_arguments("duty"), params=SimpleNamespace(**PARAMS))[-1] == "latest"


@pytest.mark.parametrize(("epoch", "options"), [(None, ["--report"]), (7, ["--epoch=7", "--report"])])
def test_quality_checks_the_newest_epoch_or_the_one_asked_for(epoch: int | None, options: list[str]) -> None:
    params = SimpleNamespace(epoch=epoch)
    assert rendered(quality_arguments("duty", "params.epoch"), params=params) == ["quality", "duty", *options]

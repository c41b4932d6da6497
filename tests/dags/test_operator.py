"""The operator: what it runs, what it returns, which failures are retried, and what it ends. The command line of a task
follows from the Params of its run.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest
import structlog
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from tests.dags.project import OutletEvents, Store, task_instance, write_project
from tidegate.pipelines.airflow import operator as operators
from tidegate.pipelines.airflow.assets import SnapshotEvents, WindowEvents, final_windows_asset, snapshot_asset
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
from tidegate.pipelines.errors import QUALITY
from tidegate.pipelines.project.cli import run

FAKE = """#!{python}
import json, os, sys
from pathlib import Path
words = sys.argv[1:]
print("working on", *words[:-2], "of", os.environ["TIDEGATE_CONFIG"], flush=True)
with (Path(sys.argv[0]).parent / "started").open("a") as started:
    started.write(words[0] + "\\n")
report = {{"pipeline": "duty", "report": "/kept/7.html"}} if "--report" in words else {{}}
report |= {{"checks": [1] * int(word[9:]) for word in words if word.startswith("--checks=")}}
if "--held" in words:
    named = {{"unit": "day", "is_any": True, "count": 1, "first": "a", "last": "a", "keys": ["a"], "held": 1}}
    report |= {{"success": False, "partitions": {{**named, "mark": {{"epoch": 7, "held": [5]}}}}}}
result = {{"epoch": 7, "quality": "passed", "watermark": 5, **report}}
open(words[words.index("--output") + 1], "w").write(json.dumps(result))
print(next((word[8:] for word in words if word.startswith("--print=")), ""), flush=True)
codes = next((word[7:].split(",") for word in words if word.startswith("--code=")), ["0"])
tries = len((Path(sys.argv[0]).parent / "started").read_text().split())
sys.exit(int(codes[min(tries, len(codes)) - 1]))
"""


def stand_in(folder: Path) -> str:
    """Return a stand-in for `tidegate`: it prints what it runs, and leaves a given result and the exit code of its
    first, second and further runs.
    """
    file = folder / "tidegate"
    file.write_text(FAKE.format(python=sys.executable))
    file.chmod(0o755)
    return str(file)


def starts(folder: Path) -> int:
    """Return how often the stand-in was started."""
    file = folder / "started"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture
def command(tmp_path: Path) -> str:
    return stand_in(tmp_path)


def operator(tmp_path: Path, command: str, *arguments: str, **options: Any) -> TidegateOperator:
    given = {"config": str(tmp_path / "tidegate.toml"), **options}
    return TidegateOperator(task_id="windows", arguments=list(arguments), command=command, **given)


def context(tries: int = 1) -> Any:
    instance = task_instance("duty", "windows", "scheduled__1", try_number=tries, stats_tags={})
    return {"ti": instance, "outlet_events": OutletEvents(), "params": {}}


def test_the_result_is_what_the_command_left_and_goes_into_the_asset_event(tmp_path: Path, command: str) -> None:
    asset = final_windows_asset("duty")
    given = context()
    ran = operator(tmp_path, command, "quality", "check", "duty", "", outlets=[asset])
    with structlog.testing.capture_logs() as told:
        assert ran.execute(given) == {"epoch": 7, "quality": "passed", "watermark": 5}
    assert given["outlet_events"][asset].extra == {"epoch": 7, "quality": "passed", "watermark": 5}
    line = f"working on quality check duty of {tmp_path / 'tidegate.toml'}"
    assert line in [each["event"] for each in told], "an argument that is empty is left out"


def test_airflow_keeps_a_result_without_its_lists(tmp_path: Path, command: str) -> None:
    ran = operator(tmp_path, command, "stream", "--checks=1000")
    assert ran.execute(context()) == {"epoch": 7, "quality": "passed", "watermark": 5}
    assert len(ran.result["checks"]) == 1000, "the file of the run has them"


def test_the_event_of_a_stream_tells_where_it_stands_however_it_ran(tmp_path: Path, command: str) -> None:
    config = str(write_project(tmp_path))
    asset = snapshot_asset("sessions")
    given = context()
    streams = operator(
        tmp_path,
        command,
        "stream",
        "sessions",
        outlets=[asset],
        events=SnapshotEvents(config, {"sessions": "sessions"}),
    )
    given["ti"].task = streams
    streams.execute(given)
    told = given["outlet_events"][asset].extra
    assert (told["pipeline"], told["timeline"], told["epoch"], told["snapshot_version"]) == ("sessions", 1, 2, 2)
    assert told["watermark"] == 1_709_298_600_000
    assert told["counters"]["late"] == 1


@pytest.mark.parametrize("code", [0, 5])
def test_a_report_is_linked_whether_its_check_passed_or_not(
    code: int, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://flow.example/prefix/")
    asset, given = final_windows_asset("duty"), context()
    check = operator(tmp_path, command, "quality", "--report", f"--code={code}", outlets=[asset])
    address = "https://flow.example/prefix/tidegate/pipelines/duty/reports/7"
    if code:
        with pytest.raises(CommandRefused):
            check.execute(given)
    else:
        check.execute(given)
        told = given["outlet_events"][asset].extra
        assert (told["report"], told["report_url"]) == ("/kept/7.html", address)
    link = check.operator_extra_links[0]
    assert link.get_link(check, ti_key=given["ti"]) == address


@pytest.mark.parametrize("hold", ["asset", "partitions"])
def test_events_of_partitions_that_are_right_go_out_although_others_fail(
    hold: Any, tmp_path: Path, command: str
) -> None:
    windows, stored = WindowEvents("duty", "day", lambda asset: None, hold), Store()
    arguments = ("quality", "--held", f"--code={QUALITY}")
    check = operator(tmp_path, command, *arguments, outlets=[windows.asset, windows.alias], events=windows)
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


def test_where_no_report_was_written_there_is_no_link(tmp_path: Path, command: str) -> None:
    check = operator(tmp_path, command, "quality")
    check.execute(context())
    assert [link.get_link(check, ti_key=None) for link in check.operator_extra_links] == [""]


def test_a_command_of_a_project_in_a_dag_bundle_needs_its_data_elsewhere(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_project(tmp_path)
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH", str(tmp_path))
    with pytest.raises(CommandRefused, match="`warehouse`, `work` can't be relative to it") as refused:
        operator(tmp_path, command, "stream", "sessions").execute(context())
    assert refused.value.exit_code == 2
    assert starts(tmp_path) == 0, "no command was started"


@pytest.mark.parametrize("code", [1, 4, 130, 137, 143, 2, 3, 5])
def test_a_failure_that_may_pass_is_worth_a_retry_and_one_that_stays_is_never_tried_again(
    code: int, tmp_path: Path, command: str
) -> None:
    given, asset = context(), final_windows_asset("duty")
    with pytest.raises((CommandFailed, CommandRefused)) as failed:
        operator(tmp_path, command, "quality", f"--code={code}", outlets=[asset]).execute(given)
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
    code: int, printed: str, reason: str, tmp_path: Path, command: str
) -> None:
    failing = operator(tmp_path, command, "stream", f"--code={code}", f"--print={printed}")
    with pytest.raises((CommandFailed, CommandRefused)) as failed:
        failing.execute({**context(), "params": {"fill_gaps": False, "fill": None, "again": False}})
    told = failed.value
    assert isinstance(told, CommandFailed | CommandRefused)
    assert told.reason == reason
    assert f"ended with exit code {code}: {reason}" in str(told)


def test_what_need_not_wait_for_another_driver_is_skipped(tmp_path: Path, command: str) -> None:
    with pytest.raises(AirflowSkipException):
        operator(tmp_path, command, "stream", "--code=4", skip_if_held="True").execute(context())
    with pytest.raises(CommandFailed):
        operator(tmp_path, command, "stream", "--code=1", skip_if_held="True").execute(context())


@pytest.mark.parametrize(("tries", "code", "ran"), [(1, 4, 1), (2, 0, 3), (2, 3, 2)])
def test_a_retry_waits_for_the_lease_of_the_attempt_before_it(
    tries: int, code: int, ran: int, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "AGAIN_SECONDS", 0.0)
    codes = "4,4,0" if code == 0 else f"4,{code}"
    task = operator(tmp_path, command, "stream", f"--code={codes}")
    if code == 0:
        assert task.execute(context(tries))["epoch"] == 7
    else:
        with pytest.raises((CommandFailed, CommandRefused), match=f"exit code {code}"):
            task.execute(context(tries))
    assert starts(tmp_path) == ran


def test_a_retry_does_not_wait_for_another_driver_for_ever(
    tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(operators, "LEASE_SECONDS", 0.0)
    with pytest.raises(CommandFailed, match="exit code 4"):
        operator(tmp_path, command, "stream", "--code=4").execute(context(tries=2))
    assert starts(tmp_path) == 1


def test_an_executable_that_is_not_there_is_named_and_not_tried_again(tmp_path: Path) -> None:
    with pytest.raises(CommandRefused, match=r"command = '/opt/none/bin/tidegate' can't be started on this worker"):
        operator(tmp_path, "/opt/none/bin/tidegate", "stream").execute(context())


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
        ({}, DAY, "--start=2024-03-01T00:00:00+00:00 --end=2024-03-02T00:00:00+00:00"),
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
    assert arguments == ["backfill", "aircraft_duty", *options, f"--patience={PATIENCE_SECONDS}"]
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
    assert rendered(check_arguments("duty"), params=params) == ["snapshots", "check", "duty", "17"]
    savepoint = ["savepoints", "create", "duty", "before_upgrade", "--if-missing"]
    assert rendered(savepoint_arguments("duty"), params=params) == savepoint
    assert rendered(check_arguments("duty"), params=SimpleNamespace(**PARAMS))[-1] == "latest"


@pytest.mark.parametrize(("epoch", "options"), [(None, ["--report"]), (7, ["--epoch=7", "--report"])])
def test_quality_checks_the_newest_epoch_or_the_one_asked_for(epoch: int | None, options: list[str]) -> None:
    params = SimpleNamespace(epoch=epoch)
    assert rendered(quality_arguments("duty", "params.epoch"), params=params) == ["quality", "check", "duty", *options]

"""Alarms: their content, their recipients, and that an incident raises one when it begins and one when it ends."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.dags.project import task_instance, write_project
from tidegate.pipelines.airflow import project_dags
from tidegate.pipelines.airflow.alarms import Alarm, AlarmEnds, deadline_missed, meaning
from tidegate.pipelines.airflow.operator import CommandFailed, CommandRefused
from tidegate.pipelines.errors import TidegateError

LISTENER = """import json, os
from pathlib import Path

HERE = Path(__file__).parent


def hear(alarm):
    (HERE / "heard.json").write_text(json.dumps({"alarm": alarm, "environment": dict(os.environ)}))


def refuse(alarm):
    raise ValueError("the pager is away")
"""


def failed_task(tmp_path: Path, function: str) -> None:
    """Raise the alarm of a failed check in a project that names a function of its module `listener`."""
    config = write_project(tmp_path, on_failure=f'"listener:{function}"')
    (tmp_path / "listener.py").write_text(LISTENER)
    instance = task_instance("sessions__backfill")
    Alarm(str(config), "sessions")(
        {"ti": instance, "exception": CommandRefused("quality ended: a pane came twice", 5, "a pane came twice")}
    )


def test_a_failed_task_is_noted_and_whoever_the_project_names_hears_it_away_from_airflows_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "the key of all connections")
    monkeypatch.setenv("PAGER_URL", "https://pager")
    failed_task(tmp_path, "hear")
    heard = json.loads((tmp_path / "heard.json").read_text())
    told = heard["alarm"]
    assert "the key of all connections" not in str(heard["environment"])
    assert heard["environment"]["PAGER_URL"] == "https://pager"
    assert "listener" not in sys.modules, "code of the project is not imported beside Airflow"
    assert told["reason"] == "a pane came twice"
    assert (told["exit_code"], told["task"]) == (5, "quality")
    assert "held back" in told["meaning"]
    assert json.loads((tmp_path / ".work" / "alarms.jsonl").read_text()) == told
    assert datetime.fromisoformat(told["at"]).tzinfo == UTC


def test_a_listener_that_fails_is_named_and_the_alarm_is_noted_all_the_same(tmp_path: Path) -> None:
    with pytest.raises(TidegateError, match=r"on_failure of sessions failed: .*the pager is away"):
        failed_task(tmp_path, "refuse")
    assert (tmp_path / ".work" / "alarms.jsonl").exists()


@pytest.mark.parametrize(
    ("code", "told"),
    [(4, "another driver"), (130, "SIGINT"), (137, "SIGKILL"), (143, "SIGTERM"), (255, None), (77, None), (None, None)],
)
def test_an_exit_code_is_told_in_words_and_that_of_a_signal_by_its_name(code: int | None, told: str | None) -> None:
    found = meaning(code)
    assert found is None if told is None else told in str(found)


CHECK = {
    "suite": "new final windows: duty",
    "expectation": "expect_column_values_to_be_between",
    "columns": "total",
    "limits": "min_value 0",
    "description": "hours are never negative",
    "severity": "critical",
    "success": False,
    "rows": 9,
    "failing": 1,
    "observed": "1 of 9 rows break it",
    "examples": [{"key": "s9", "window": "2024-03-01 10:00:00 to 11:00:00", "value": "-500"}],
}
RESULT = {"pipeline": "sessions", "epoch": 7, "docs": "d", "report": "r", "checks": [CHECK, {**CHECK, "success": True}]}


def instance(task: str = "quality", kind: str = "quality", run: str = "r 1", result: Any = None) -> Any:
    more = {"log_url": "https://flow.example/log", "task": SimpleNamespace(result=result)}
    return task_instance(f"sessions__{kind}", task, run, **more)


def raised(folder: Path) -> list[dict[str, Any]]:
    file = folder / ".work" / "alarms.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def refused(code: int = 5) -> CommandRefused:
    return CommandRefused("ended", code, "a pane came twice")


def test_an_alarm_has_severity_owner_addresses_and_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://flow.example/")
    config = write_project(tmp_path, owner='"hours-team"')
    Alarm(str(config), "sessions")({"ti": instance(result=RESULT), "exception": refused()})
    (alarm,) = raised(tmp_path)
    assert (alarm["status"], alarm["severity"], alarm["owner"]) == ("began", "critical", "hours-team")
    assert alarm["run_url"] == "https://flow.example/dags/sessions__quality/runs/r%201"
    assert alarm["log_url"] == "https://flow.example/log"
    assert alarm["report_url"] == "https://flow.example/tidegate/pipelines/sessions/reports/7"
    assert alarm["docs_url"] == "https://flow.example/tidegate/pipelines/sessions/checks/index.html"
    assert alarm["failed"] == [{name: value for name, value in CHECK.items() if name != "success"}]


@pytest.mark.parametrize(("entry", "owner"), [({}, "platform"), ({"owner": '"hours-team"'}, "hours-team")])
def test_an_alarm_alone_says_whose_it_is_where_two_projects_have_a_pipeline_of_the_same_name(
    entry: dict[str, str], owner: str, tmp_path: Path
) -> None:
    config = write_project(tmp_path, deadline_minutes="1", **entry)
    dags = project_dags(config, prefix="team_b_", default_args={"owner": "platform"})
    (fails, *_), (ends, *_) = (
        getattr(dags["team_b_sessions__quality"].get_task("quality"), f"on_{end}_callback")
        for end in ("failure", "success")
    )
    fails({"ti": instance(), "exception": refused()})
    ends({"ti": instance()})
    (deadline,) = dags["team_b_sessions__backfill"].deadline
    assert (deadline.interval, dags["team_b_sessions__quality"].deadline) == (timedelta(minutes=1), None)
    assert deadline.callback.path == f"{deadline_missed.__module__}.deadline_missed"
    missed = {"dag_run": {"dag_id": "d", "dag_run_id": "r"}, "deadline": {"deadline_time": "2024-03-04T01:00:00Z"}}
    asyncio.run(deadline_missed(missed, **deadline.callback.kwargs))
    told = [(alarm["owner"], alarm["pipeline"], alarm["project"], alarm["name"]) for alarm in raised(tmp_path)]
    assert told == [(owner, "team_b_sessions", str(config), "sessions")] * 3
    assert raised(tmp_path)[-1]["task"] == "deadline"
    assert "run r of d had not ended by its deadline, 2024-03-04T01:00:00Z" in raised(tmp_path)[-1]["reason"]


def test_an_incident_raises_one_alarm_and_one_when_it_ends(tmp_path: Path) -> None:
    config = str(write_project(tmp_path))
    fails, ends = Alarm(config, "sessions"), AlarmEnds(config, "sessions")
    silence = RuntimeError("the watermark lies behind")
    watch = [instance("watermark", "watch", run) for run in ("1", "2", "3", "4", "5")]
    ends({"ti": watch[0]})
    for each in watch:
        fails({"ti": each, "exception": silence})
    fails({"ti": instance("stream", "stream"), "exception": refused(3)})
    assert [(alarm["task"], alarm["status"], alarm["severity"]) for alarm in raised(tmp_path)] == [
        ("watermark", "began", "warning"),
        ("stream", "began", "error"),
    ]
    for each in watch[:2]:
        ends({"ti": each})
    (_, _, ended) = raised(tmp_path)
    assert (ended["task"], ended["status"], ended["severity"]) == ("watermark", "ended", "info")
    assert ended["since"] == raised(tmp_path)[0]["at"]
    fails({"ti": watch[0], "exception": silence})
    assert len(raised(tmp_path)) == 4, "a new incident"


def test_another_failure_of_the_same_task_is_another_incident(tmp_path: Path) -> None:
    fails = Alarm(str(write_project(tmp_path)), "sessions")
    for result in (RESULT, RESULT, {**RESULT, "checks": [CHECK, {**CHECK, "columns": "events"}]}):
        fails({"ti": instance(result=result), "exception": refused()})
    fails({"ti": instance(), "exception": refused(2)})
    assert [len(alarm["failed"]) for alarm in raised(tmp_path)] == [1, 2, 0]


def test_a_try_that_failed_and_whose_worker_is_missed_then_raises_one_alarm(tmp_path: Path) -> None:
    """A busy scheduler mistakes a worker that has already reported for dead, and calls the callback again."""
    fails = Alarm(str(write_project(tmp_path)), "sessions")
    fails({"ti": instance(), "exception": refused()})
    fails({"ti": instance(), "exception": None})
    assert [alarm["exit_code"] for alarm in raised(tmp_path)] == [5]
    fails({"ti": instance(run="r 2"), "exception": None})
    assert [alarm["exit_code"] for alarm in raised(tmp_path)] == [5, None], "the task of another run died"


def test_each_interval_of_a_backfill_is_an_incident_of_its_own_and_its_checks_are_one(tmp_path: Path) -> None:
    config = str(write_project(tmp_path))
    fails, ends = Alarm(config, "sessions"), AlarmEnds(config, "sessions")
    for run in ("monday", "tuesday"):
        fails({"ti": instance("windows", "backfill", run), "exception": refused(3)})
        fails({"ti": instance("quality", "backfill", run), "exception": refused()})
    ends({"ti": instance("windows", "backfill", "tuesday")})
    assert [(alarm["task"], alarm["run"], alarm["status"]) for alarm in raised(tmp_path)] == [
        ("windows", "monday", "began"),
        ("quality", "monday", "began"),
        ("windows", "tuesday", "began"),
        ("windows", "tuesday", "ended"),
    ]


@pytest.mark.parametrize(("state", "alarms"), [("failed", 0), ("success", 0), ("running", 1), (None, 1)])
def test_a_task_that_somebody_marked_while_it_ran_raises_no_alarm(
    state: str | None, alarms: int, tmp_path: Path
) -> None:
    fails = Alarm(str(write_project(tmp_path)), "sessions", state_of=lambda dag, run, task: state)
    fails({"ti": instance("stream", "stream"), "exception": CommandFailed("ended", 143, "Terminated")})
    assert len(raised(tmp_path)) == alarms
    fails({"ti": instance("stream", "stream"), "exception": refused(3)})
    assert len(raised(tmp_path)) == alarms + 1, "a command that failed by itself always does"


def test_a_stream_without_an_end_has_no_deadline(tmp_path: Path) -> None:
    dags = project_dags(write_project(tmp_path, deadline_minutes="45", stream_mode='"continuous"'))
    assert dags["sessions__stream"].deadline is None
    assert dags["sessions__backfill"].deadline is not None

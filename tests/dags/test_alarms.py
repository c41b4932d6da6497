"""Alarms: one message for a failed task, its content, who gets it, and what they should do."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import BaseNotifier

from tests.dags.project import task_instance, write_project
from tidegate.pipelines.airflow import project_dags
from tidegate.pipelines.airflow.alarms import Alarm, what_to_do
from tidegate.pipelines.airflow.operator import CommandFailed, CommandRefused
from tidegate.pipelines.errors import TidegateError

OWNERS = {"sessions": "hours-team"}
SENT: list[str] = []


class Kept(BaseNotifier):
    """A notifier of Airflow, whose messages are kept here."""

    template_fields = ("text",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def notify(self, context: Any) -> None:
        SENT.append(self.text)


class Failing(BaseNotifier):
    """A notifier whose service does not respond."""

    def notify(self, context: Any) -> None:
        raise ConnectionError("no answer")


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
    "examples": [{"key": "s9", "window": "2024-03-01T10:00:00Z to 2024-03-01T11:00:00Z", "value": "-500"}],
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
    Alarm(str(write_project(tmp_path)), OWNERS)({"ti": instance(result=RESULT), "exception": refused()})
    (alarm,) = raised(tmp_path)
    assert (alarm["severity"], alarm["owner"], alarm["exit_code"]) == ("critical", "hours-team", 5)
    assert (alarm["pipeline"], alarm["dag"], alarm["task"]) == ("sessions", "sessions__quality", "quality")
    assert alarm["reason"] == "a pane came twice"
    assert alarm["run_url"] == "https://flow.example/dags/sessions__quality/runs/r%201"
    assert alarm["log_url"] == "https://flow.example/log"
    assert alarm["report_url"] == "https://flow.example/tidegate/pipelines/sessions/reports/7"
    assert alarm["docs_url"] == "https://flow.example/tidegate/pipelines/sessions/checks/index.html"
    assert alarm["failed"] == [{name: value for name, value in CHECK.items() if name != "success"}]
    assert datetime.fromisoformat(alarm["at"]).tzinfo == UTC


def test_each_failed_task_is_one_message_with_owner_pipeline_task_reason_and_what_to_do(tmp_path: Path) -> None:
    config = write_project(
        tmp_path, notifiers=f'[{{ notifier = "{__name__}:Kept", text = "{{{{ tidegate.text }}}}" }}]'
    )
    SENT.clear()
    for run in ("1", "2"):
        given = {"ti": instance("watermark", "watch", run), "exception": RuntimeError("the watermark lies behind")}
        Alarm(str(config), OWNERS)(given)
    (text, other) = SENT
    why = f"See what windows are waiting for: `tidegate why sessions --config {config}`"
    assert text.splitlines() == [
        "sessions: task watermark of sessions__watch failed (for hours-team)",
        "the watermark lies behind",
        f"Check that the stream is running and that the source gets rows. {why}",
        "/dags/sessions__watch/runs/1",
    ]
    assert other.endswith("/runs/2")
    assert [alarm["severity"] for alarm in raised(tmp_path)] == ["warning", "warning"]


def test_a_notifier_that_fails_is_named_and_the_others_are_called_all_the_same(tmp_path: Path) -> None:
    text = "{{ tidegate.pipeline }}: {{ tidegate.reason }}"
    notifiers = f'[{{ notifier = "{__name__}:Failing" }}, {{ notifier = "{__name__}:Kept", text = "{text}" }}]'
    config = str(write_project(tmp_path, notifiers=notifiers))
    SENT.clear()
    with pytest.raises(TidegateError, match="Failing: ConnectionError: no answer"):
        Alarm(config, OWNERS)({"ti": instance("stream", "stream"), "exception": RuntimeError("disk full")})
    assert SENT == ["sessions: disk full"]
    assert len(raised(tmp_path)) == 1


@pytest.mark.parametrize(
    ("task", "code", "told"),
    [
        ("windows", 1, "Read the log"),
        ("windows", 2, "Correct the Param"),
        ("windows", 3, "do what the reason says"),
        ("windows", 4, "Stop that driver: `tidegate driver stop hours --config t.toml`"),
        ("quality", 5, "held back until a check passes"),
        ("windows", 130, "SIGINT ended the command"),
        ("windows", 137, "SIGKILL ended the command"),
        ("windows", 255, "Read the log"),
        ("windows", None, "Read the log"),
        ("watermark", None, "`tidegate why hours --config t.toml`"),
    ],
)
def test_what_to_do_follows_from_the_task_and_the_exit_code(task: str, code: int | None, told: str) -> None:
    assert told in what_to_do(task, code, "hours").words("t.toml")


@pytest.mark.parametrize(
    ("entry", "owner"), [({}, "platform"), ({"default_args": '{ owner = "hours-team" }'}, "hours-team")]
)
def test_an_alarm_alone_says_whose_it_is_where_two_projects_have_a_pipeline_of_the_same_name(
    entry: dict[str, str], owner: str, tmp_path: Path
) -> None:
    config = write_project(tmp_path, **entry)
    dags = project_dags(config, prefix="team_b_", default_args={"owner": "platform"})
    (fails,) = dags["team_b_sessions__quality"].get_task("quality").on_failure_callback
    fails({"ti": instance(), "exception": refused()})
    told = [(alarm["owner"], alarm["pipeline"], alarm["project"], alarm["name"]) for alarm in raised(tmp_path)]
    assert told == [(owner, "team_b_sessions", str(config), "sessions")]


def test_a_task_that_airflow_lost_has_a_message_without_an_exit_code(tmp_path: Path) -> None:
    """Airflow's DAG processor then calls the callback with a context that has no exception."""
    Alarm(str(write_project(tmp_path)), OWNERS)({"ti": instance("stream", "stream")})
    (alarm,) = raised(tmp_path)
    assert alarm["exit_code"] is None
    assert alarm["reason"] == "Airflow lost the task: its process or its worker was killed"


@pytest.mark.parametrize(("state", "alarms"), [("failed", 0), ("success", 0), ("running", 1), (None, 1)])
def test_a_task_that_somebody_marked_while_it_ran_raises_no_alarm(
    state: str | None, alarms: int, tmp_path: Path
) -> None:
    fails = Alarm(str(write_project(tmp_path)), OWNERS, state_of=lambda dag, run, task: state)
    fails({"ti": instance("stream", "stream"), "exception": CommandFailed("ended", 143, "Terminated")})
    assert len(raised(tmp_path)) == alarms
    fails({"ti": instance("stream", "stream"), "exception": refused(3)})
    assert len(raised(tmp_path)) == alarms + 1, "a command that failed by itself always does"

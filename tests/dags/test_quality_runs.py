"""Through a real scheduler: checked windows reach the asset with what is known of them, planted errors do not."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.airflow.embedded import EmbeddedAirflow

pytestmark = pytest.mark.airflow

PATIENCE_SECONDS = 180.0


def wait_until(found: Callable[[], Any], what: str) -> Any:
    """What comes in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (value := found()):
        assert time.monotonic() < deadline, f"{what} did not come in time"
        time.sleep(0.5)
    return value


def run_of(airflow: EmbeddedAirflow, dag: str, **conf: Any) -> dict[str, Any]:
    """A run of a DAG with these Params, when it has ended."""
    airflow.call("PATCH", f"dags/{dag}", json={"is_paused": False})
    made = airflow.call("POST", f"dags/{dag}/dagRuns", json={"logical_date": None, "conf": conf})

    def ended() -> dict[str, Any] | None:
        run: dict[str, Any] = airflow.call("GET", f"dags/{dag}/dagRuns/{made['dag_run_id']}")
        return run if run["state"] in ("success", "failed") else None

    return wait_until(ended, f"the end of a run of {dag}")


def states(airflow: EmbeddedAirflow, run: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """State and number of tries of each task."""
    tasks = airflow.tasks_of(run["dag_id"], run["dag_run_id"])
    return {task["task_id"]: (task["state"], task["try_number"]) for task in tasks}


def events_of(airflow: EmbeddedAirflow, asset: str) -> list[dict[str, Any]]:
    events = airflow.call("GET", "assets/events", params={"limit": 100})["asset_events"]
    return [event for event in events if event["name"] == asset]


def test_windows_that_hold_reach_the_asset_with_what_is_known_of_them(airflow: EmbeddedAirflow) -> None:
    run = run_of(airflow, "sessions__quality", epoch=2)
    assert states(airflow, run) == {"quality": ("success", 1)}
    (event,) = [
        event for event in events_of(airflow, "sessions__final_windows") if event["source_run_id"] == run["dag_run_id"]
    ]
    extra = event["extra"]
    assert (extra["epoch"], extra["timeline"], extra["snapshot_version"]) == (2, 1, 2)
    assert extra["quality"] == "passed"
    assert extra["counters"]["events_in"] == 4
    assert extra["watermark"] == 1_709_298_600_000
    assert Path(extra["report"]).is_file()


def test_a_planted_error_fails_the_task_once_and_holds_the_asset_back(airflow: EmbeddedAirflow) -> None:
    run = run_of(airflow, "hours__quality")
    assert run["state"] == "failed"
    assert states(airflow, run) == {"quality": ("failed", 1)}, "a retry would change nothing"
    assert events_of(airflow, "hours__final_windows") == []
    alarms = (airflow.runs.parent / "alarms.jsonl").read_text().splitlines()
    told = [alarm for alarm in map(json.loads, alarms) if alarm["pipeline"] == "hours" and alarm["task"] == "quality"]
    assert told[-1]["exit_code"] == 5
    log = next((airflow.runs / "hours__quality").rglob("log.txt")).read_text()
    assert "expect_compound_columns_to_be_unique (panes)" in log


def test_an_unknown_epoch_is_a_clear_error_and_changes_nothing(airflow: EmbeddedAirflow) -> None:
    before = len(events_of(airflow, "sessions__final_windows"))
    run = run_of(airflow, "sessions__quality", epoch=77)
    assert states(airflow, run) == {"quality": ("failed", 1)}
    logs = [path.read_text() for path in (airflow.runs / "sessions__quality").rglob("log.txt")]
    assert any("--epoch 77: sessions has snapshots of epochs [2]" in log for log in logs)
    assert len(events_of(airflow, "sessions__final_windows")) == before


def test_a_param_that_can_not_be_makes_no_run(airflow: EmbeddedAirflow) -> None:
    with pytest.raises(Exception, match="400"):
        airflow.call("POST", "dags/sessions__stream/dagRuns", json={"logical_date": None, "conf": {"restore": "../x"}})


def test_a_watch_tells_that_the_watermark_lies_behind(airflow: EmbeddedAirflow) -> None:
    assert run_of(airflow, "sessions__watch")["state"] == "failed"
    assert run_of(airflow, "sessions__watch", max_lag_minutes=10_000_000)["state"] == "success"

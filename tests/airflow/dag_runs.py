"""Helpers for DAG runs through Airflow's API: start them with Params, wait for them with a deadline, inspect them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

from tests.waiting import PATIENCE_SECONDS, wait_until
from tidegate.pipelines.airflow.embedded import EmbeddedAirflow
from tidegate.pipelines.errors import TidegateError


def airflow_command(airflow: EmbeddedAirflow, *arguments: str, before_again: Callable[[], None] = lambda: None) -> str:
    """Run `airflow` as a user would, retrying when its writes collide with others, and return its output."""
    done: list[subprocess.CompletedProcess[str]] = []

    def run() -> bool:
        command = [sys.executable, "-m", "airflow", *arguments]
        done.append(subprocess.run(command, env=airflow.environment(), capture_output=True, text=True, check=False))
        # The command writes to the database itself, and SQLite allows one writer at a time.
        if collided := "database is locked" in done[-1].stderr and done[-1].returncode != 0:
            before_again()
        return not collided

    wait_until(run, f"the end of airflow {' '.join(arguments)}")
    assert done[-1].returncode == 0, done[-1].stderr
    return done[-1].stdout


def create_backfill(
    airflow: EmbeddedAirflow, dag: str, first: datetime, last: datetime, reprocess: str, **conf: Any
) -> None:
    """Run `airflow backfill create` for every day from the first to the last, with these Params."""
    unpause(airflow, dag)
    days = ("--from-date", first.isoformat(), "--to-date", last.isoformat())
    create = ("backfill", "create", "--dag-id", dag, *days, "--reprocess-behavior", reprocess)
    create += ("--dag-run-conf", json.dumps(conf)) if conf else ()
    # SQLite allows one writer at a time, and a backfill whose writes collide with others stays half-created.
    airflow.kill_component("scheduler")
    try:
        airflow_command(airflow, *create, before_again=lambda: airflow.cancel_backfills(dag))
    finally:
        airflow.start_component("scheduler")


def unpause(airflow: EmbeddedAirflow, dag: str) -> None:
    airflow.call("PATCH", f"dags/{dag}", json={"is_paused": False})


def begin(airflow: EmbeddedAirflow, dag: str, **conf: Any) -> str:
    """Unpause a DAG, trigger a run with these Params, and return its id."""
    unpause(airflow, dag)
    return trigger(airflow, dag, **conf)


def trigger(airflow: EmbeddedAirflow, dag: str, **conf: Any) -> str:
    """Create a run with these Params, which starts once the DAG is unpaused, and return its id."""
    made = airflow.call("POST", f"dags/{dag}/dagRuns", json={"logical_date": None, "conf": conf})
    return str(made["dag_run_id"])


def end_of(airflow: EmbeddedAirflow, dag: str, run: str, patience: float = PATIENCE_SECONDS) -> dict[str, Any]:
    """Wait until a run has ended, and return it."""

    def ended() -> dict[str, Any] | None:
        found: dict[str, Any] = airflow.call("GET", f"dags/{dag}/dagRuns/{run}")
        return found if found["state"] in ("success", "failed") else None

    found: dict[str, Any] = wait_until(ended, f"the end of run {run} of {dag}", patience)
    return found


def run_of(airflow: EmbeddedAirflow, dag: str, **conf: Any) -> dict[str, Any]:
    """Trigger a run of a DAG with these Params, wait until it has ended, and return it."""
    return end_of(airflow, dag, begin(airflow, dag, **conf))


def states(airflow: EmbeddedAirflow, run: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """Return the state and number of tries of each task."""
    tasks = airflow.tasks_of(run["dag_id"], run["dag_run_id"])
    return {task["task_id"]: (task["state"], task["try_number"]) for task in tasks}


def events_of(airflow: EmbeddedAirflow, asset: str) -> list[dict[str, Any]]:
    """Return the events of an asset, oldest first."""
    # A page has at most 100 events.
    events = _asset_events(airflow, "assets/events", limit=100, order_by="-timestamp")
    return [event for event in reversed(events) if event["name"] == asset]


def heard_by(airflow: EmbeddedAirflow, dag: str) -> set[int]:
    """Return the ids of the asset events that created runs of a DAG."""
    paths = [f"dags/{dag}/dagRuns/{run['dag_run_id']}/upstreamAssetEvents" for run in airflow.runs_of(dag)]
    return {event["id"] for path in paths for event in _asset_events(airflow, path)}


def _asset_events(airflow: EmbeddedAirflow, path: str, **params: Any) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []

    def answered() -> bool:
        # Airflow 3.3 answers 500 while a run created by an event is queued, because the run has no start_date yet.
        with suppress(TidegateError):
            answers.append(airflow.call("GET", path, params=params))
        return bool(answers)

    wait_until(answered, f"an answer to {path}")
    events: list[dict[str, Any]] = answers[0]["asset_events"]
    return events


def task_log(airflow: EmbeddedAirflow, run: dict[str, Any], task: str) -> str:
    """Return the text that Airflow shows as the log of a task's last try."""
    number = states(airflow, run)[task][1]
    path = f"dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}/taskInstances/{task}/logs/{number}"
    content = airflow.call("GET", path, headers={"Accept": "application/json"})["content"]
    return json.dumps(content, ensure_ascii=False)

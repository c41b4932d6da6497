"""Runs of DAGs through Airflow's API: started with Params, waited for with a deadline, and looked at."""

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
    """Run `airflow` as a person would, and again where its writes collide with others; what it prints."""
    done: list[subprocess.CompletedProcess[str]] = []

    def run() -> bool:
        command = [sys.executable, "-m", "airflow", *arguments]
        done.append(subprocess.run(command, env=airflow.environment(), capture_output=True, text=True, check=False))
        # It writes into the database itself, and SQLite has one writer at a time.
        if collided := "database is locked" in done[-1].stderr and done[-1].returncode != 0:
            before_again()
        return not collided

    wait_until(run, f"the end of airflow {' '.join(arguments)}")
    assert done[-1].returncode == 0, done[-1].stderr
    return done[-1].stdout


def create_backfill(airflow: EmbeddedAirflow, dag: str, first: datetime, last: datetime, reprocess: str) -> None:
    """`airflow backfill create` for every day from the first to the last."""
    unpause(airflow, dag)
    days = ("--from-date", first.isoformat(), "--to-date", last.isoformat())
    create = ("backfill", "create", "--dag-id", dag, *days, "--reprocess-behavior", reprocess)
    # SQLite has one writer at a time, and half a backfill stays where its writes meet those of others.
    airflow.kill_component("scheduler")
    try:
        airflow_command(airflow, *create, before_again=lambda: airflow.cancel_backfills(dag))
    finally:
        airflow.start_component("scheduler")


def unpause(airflow: EmbeddedAirflow, dag: str) -> None:
    airflow.call("PATCH", f"dags/{dag}", json={"is_paused": False})


def begin(airflow: EmbeddedAirflow, dag: str, **conf: Any) -> str:
    """Unpause a DAG, and trigger a run with these Params; its id."""
    unpause(airflow, dag)
    return trigger(airflow, dag, **conf)


def trigger(airflow: EmbeddedAirflow, dag: str, **conf: Any) -> str:
    """Make a run with these Params, which starts once the DAG is not paused; its id."""
    made = airflow.call("POST", f"dags/{dag}/dagRuns", json={"logical_date": None, "conf": conf})
    return str(made["dag_run_id"])


def end_of(airflow: EmbeddedAirflow, dag: str, run: str, patience: float = PATIENCE_SECONDS) -> dict[str, Any]:
    """A run when it has ended."""

    def ended() -> dict[str, Any] | None:
        found: dict[str, Any] = airflow.call("GET", f"dags/{dag}/dagRuns/{run}")
        return found if found["state"] in ("success", "failed") else None

    found: dict[str, Any] = wait_until(ended, f"the end of run {run} of {dag}", patience)
    return found


def run_of(airflow: EmbeddedAirflow, dag: str, **conf: Any) -> dict[str, Any]:
    """A run of a DAG with these Params, when it has ended."""
    return end_of(airflow, dag, begin(airflow, dag, **conf))


def states(airflow: EmbeddedAirflow, run: dict[str, Any]) -> dict[str, tuple[str, int]]:
    """State and number of tries of each task."""
    tasks = airflow.tasks_of(run["dag_id"], run["dag_run_id"])
    return {task["task_id"]: (task["state"], task["try_number"]) for task in tasks}


def events_of(airflow: EmbeddedAirflow, asset: str) -> list[dict[str, Any]]:
    """Events of an asset, the oldest first."""
    # A page has at most 100 events.
    events = _asset_events(airflow, "assets/events", limit=100, order_by="-timestamp")
    return [event for event in reversed(events) if event["name"] == asset]


def heard_by(airflow: EmbeddedAirflow, dag: str) -> set[int]:
    """Ids of the asset events that made runs of a DAG."""
    paths = [f"dags/{dag}/dagRuns/{run['dag_run_id']}/upstreamAssetEvents" for run in airflow.runs_of(dag)]
    return {event["id"] for path in paths for event in _asset_events(airflow, path)}


def _asset_events(airflow: EmbeddedAirflow, path: str, **params: Any) -> list[dict[str, Any]]:
    answers: list[dict[str, Any]] = []

    def answered() -> bool:
        # Airflow 3.3 answers 500 while a run that an event made is queued: it has no start_date yet.
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

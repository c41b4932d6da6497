"""Airflow runs that several test modules share; each is made only once."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.airflow.dag_runs import create_backfill
from tests.airflow.visits import daily
from tests.lake import DAY0, Lake, Row
from tests.waiting import wait_until
from tidegate.pipelines.airflow.embedded import EmbeddedAirflow
from tidegate.pipelines.ledger.lease import Holder, read_lease

DAYS, MANY_DAYS = 2, 10
"""Days of the backfill in `make test` and in `make test-long`."""
KILL_SCHEDULER_ON, KILL_WORKER_ON = 1, 2
PATIENCE_SECONDS = 1200.0
ENDS_WITHIN = 40.0
"""Seconds in which a command ends with its task: its grace period, and as much again on a busy machine."""


@dataclass(frozen=True)
class Backfilled:
    """A backfill of some days through a real scheduler, during which Airflow processes were killed.

    Args:
        lake: its project.
        rows: the events.
        runs: runs of the DAG, by day.
    """

    lake: Lake
    rows: list[Row]
    runs: list[dict[str, Any]]

    @property
    def days(self) -> int:
        """Number of days."""
        return len(self.runs)


def day(number: int) -> datetime:
    """Midnight at which a day begins."""
    return DAY0 + timedelta(days=number)


def visits(days: int, seed: int) -> list[Row]:
    """Events of a few users. Half of them are near midnight, so that visits cross it."""
    draw = random.Random(seed)
    rows: list[Row] = []
    for number in range(days):
        for user in ("ann", "bob", "cid", "dan"):
            for _ in range(8):
                minute = draw.choice((draw.randrange(0, 40), draw.randrange(1400, 1440), draw.randrange(1440)))
                rows.append((user, day(number) + timedelta(minutes=minute), draw.randrange(100)))
    return rows


@pytest.fixture(scope="session")
def lake(airflow: EmbeddedAirflow) -> Lake:
    """The project that Airflow runs."""
    return Lake(airflow.dags.parent)


@pytest.fixture(scope="session")
def backfilled(airflow: EmbeddedAirflow, lake: Lake, request: pytest.FixtureRequest) -> Backfilled:
    days = DAYS if "not long" in request.config.getoption("markexpr") else MANY_DAYS
    rows = visits(days, seed=3)
    lake.append(*rows, table="daily_events")
    dag = "daily__backfill"
    create_backfill(airflow, dag, day(0), day(days - 1), "failed")

    def driver() -> Holder | None:
        row = read_lease(lake.tables(daily))
        return row if row is not None and row.is_alive(lake.clock()) else None

    def task_of(number: int) -> dict[str, Any] | None:
        """Return the running task of a day."""
        runs = airflow.runs_of(dag)[number - 1 : number]
        tasks = [task for run in runs for task in airflow.tasks_of(dag, run["dag_run_id"])]
        return next((task for task in tasks if (task["task_id"], task["state"]) == ("windows", "running")), None)

    def ends(row: Holder) -> bool:
        now = driver()
        return now is None or now.run != row.run

    first = wait_until(driver, f"the driver of day {KILL_SCHEDULER_ON}", PATIENCE_SECONDS, between_looks=0.05)
    airflow.kill_component("scheduler")
    wait_until(lambda: ends(first), "the end of the command without its task", ENDS_WITHIN)
    airflow.start_component("scheduler")
    task = wait_until(lambda: task_of(KILL_WORKER_ON), f"the task of day {KILL_WORKER_ON}", PATIENCE_SECONDS)
    second = wait_until(driver, f"the driver of day {KILL_WORKER_ON}", PATIENCE_SECONDS, between_looks=0.05)
    airflow.kill_worker(task["id"])
    wait_until(lambda: ends(second), "the end of the command without its worker", ENDS_WITHIN)

    def ended() -> list[dict[str, Any]] | None:
        runs = airflow.runs_of(dag)
        return runs if len(runs) == days and {run["state"] for run in runs} <= {"success", "failed"} else None

    return Backfilled(lake, rows, wait_until(ended, "the end of the backfill", PATIENCE_SECONDS))

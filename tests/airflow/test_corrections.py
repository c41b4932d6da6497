"""Rerun one interval through Airflow: the later intervals are marked stale or rerun, as the Param says."""

from __future__ import annotations

import re
import shlex
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.airflow.conftest import Backfilled, day
from tests.airflow.dag_runs import (
    airflow_command,
    create_backfill,
    end_of,
    events_of,
    run_of,
    states,
    task_log,
)
from tests.airflow.visits import GAP, daily
from tests.flights_oracle import assert_equal
from tests.session_oracle import sessions
from tests.waiting import wait_until
from tidegate.pipelines.airflow.embedded import EmbeddedAirflow

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(1800)]

DAG = "daily__backfill"


def corrected(backfilled: Backfilled) -> int:
    """Number of the second-to-last day, which is corrected."""
    return backfilled.days - 2


def correct(backfilled: Backfilled, minute: int) -> None:
    """Add an event to a day that has already run."""
    row = ("eve", day(corrected(backfilled)) + timedelta(hours=12, minutes=minute), 1000)
    backfilled.rows.append(row)
    backfilled.lake.append(row, table="daily_events")


def run_again(airflow: EmbeddedAirflow, start: datetime, **conf: Any) -> dict[str, Any]:
    end = start + timedelta(days=1)
    return run_of(airflow, DAG, interval_start=start.isoformat(), interval_end=end.isoformat(), **conf)


def stale_epochs(backfilled: Backfilled) -> set[int]:
    rows = backfilled.lake.rows(daily, "results").to_pylist()
    return {row["epoch"] for row in rows if row["stale"]}


def assert_as_if_run_at_first(backfilled: Backfilled) -> None:
    expected = sessions(backfilled.rows, GAP)
    expected = expected[expected["window_end"] < day(backfilled.days)]
    assert_equal(backfilled.lake.final(daily).to_pandas(), expected, ["user", "window_start"])


def test_what_follows_is_marked_stale_and_the_command_in_the_log_runs_it_again(
    backfilled: Backfilled, airflow: EmbeddedAirflow
) -> None:
    last = backfilled.runs[-1]
    replaced = backfilled.lake.snapshot(daily).manifest.epoch
    correct(backfilled, minute=0)
    run = run_again(airflow, day(corrected(backfilled)))
    assert run["state"] == "success"
    assert stale_epochs(backfilled) == {replaced}, "readable still, and marked"

    (command,) = re.findall(r"airflow (tasks clear .*? --yes)", task_log(airflow, run, "windows"))
    airflow_command(airflow, *shlex.split(command))
    wait_until(
        lambda: airflow.call("GET", f"dags/{DAG}/dagRuns/{last['dag_run_id']}")["state"] != "success",
        "the run that was cleared",
    )
    assert end_of(airflow, DAG, last["dag_run_id"])["state"] == "success"
    assert stale_epochs(backfilled) == set()
    assert_as_if_run_at_first(backfilled)
    others = [states(airflow, run)["windows"][0] for run in backfilled.runs[:-1]]
    assert others == ["success"] * (backfilled.days - 1)


def test_what_follows_is_run_again_in_the_same_run_where_it_is_asked_for(
    backfilled: Backfilled, airflow: EmbeddedAirflow
) -> None:
    correct(backfilled, minute=5)
    run = run_again(airflow, day(corrected(backfilled)), and_following=True)
    assert run["state"] == "success"
    events = events_of(airflow, "daily__final_windows")
    keys = {event["partition_key"] for event in events if event["source_run_id"] == run["dag_run_id"]}
    assert keys == {None, f"{day(corrected(backfilled)):%Y-%m-%dT00:00:00}"}
    assert stale_epochs(backfilled) == set()
    assert "airflow tasks clear" not in task_log(airflow, run, "windows")
    assert_as_if_run_at_first(backfilled)


def test_days_that_were_completed_and_are_run_again_unchanged_publish_nothing(
    backfilled: Backfilled, airflow: EmbeddedAirflow
) -> None:
    before = backfilled.lake.versions(daily)
    again = backfilled.runs[corrected(backfilled) :]
    tries = [states(airflow, run)["windows"][1] for run in again]
    create_backfill(airflow, DAG, day(corrected(backfilled)), day(backfilled.days - 1), "completed")
    for run, number in zip(again, tries, strict=True):
        wait_until(lambda: states(airflow, run)["windows"] == ("success", number + 1), "the run again")  # noqa: B023
    assert backfilled.lake.versions(daily) == before

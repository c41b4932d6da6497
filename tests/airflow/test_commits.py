"""A commit starts the stream's DAG once, through a real triggerer and scheduler, even if the triggerer was down. The
short tests are in tests/dags/test_commits.py: they run the trigger on real tables and fake Airflow's answers.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.airflow.dag_runs import end_of, events_of, states, unpause
from tests.airflow.visits import watched
from tests.lake import DAY0, Lake
from tests.waiting import wait_until
from tidegate.pipelines.airflow.embedded import EmbeddedAirflow

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.long]

DAG = "watched__stream"


def arrive(lake: Lake, hour: int) -> None:
    lake.append(("ann", DAY0 + timedelta(hours=hour), 1), table="watched_events")


def ended(airflow: EmbeddedAirflow, number: int) -> dict[str, Any]:
    """Wait until this many runs have ended, and return the newest."""
    wait_until(lambda: len(airflow.runs_of(DAG)) >= number, f"run {number}")
    runs = [end_of(airflow, DAG, run["dag_run_id"]) for run in airflow.runs_of(DAG)]
    assert len(runs) == number
    assert {(run["state"], run["run_type"]) for run in runs} == {("success", "asset_triggered")}
    return max(runs, key=lambda run: str(run["start_date"]))


def read(lake: Lake) -> int:
    """Return the number of rows that the stream has read."""
    return sum(lake.rows(watched, "epochs")["events_in"].to_pylist())


def parse_again(airflow: EmbeddedAirflow) -> None:
    """Airflow creates and removes watchers when it parses a DAG file, which happens rarely here."""
    airflow.call("PUT", f"parseDagFile/{airflow.call('GET', f'dags/{DAG}')['file_token']}")


def test_commits_start_the_stream_and_nothing_else_does(airflow: EmbeddedAirflow, lake: Lake) -> None:
    arrive(lake, 1)
    unpause(airflow, DAG)
    parse_again(airflow)
    assert states(airflow, ended(airflow, 1))["stream"] == ("success", 1)
    assert read(lake) == 1

    arrive(lake, 2)
    wait_until(lambda: len(airflow.runs_of(DAG)) == 2, "the run of the second commit")
    table = DeltaTable(lake.path("watched_events"))
    # Commits that arrive while a run is queued or running are read by that run or by one more.
    for hour in range(3, 8):
        arrive(lake, hour)
    # An epoch's snapshot is committed before its row in table `epochs` is published.
    wait_until(lambda: read(lake) == 7, "all rows")
    assert lake.snapshot(watched).manifest.positions["watched_events"].version == 6
    runs = len(airflow.runs_of(DAG))
    assert runs <= 3
    ended(airflow, runs)

    # Rows that are merely rewritten start no run; the next new rows do.
    table.update_incremental()
    table.optimize.compact()
    airflow.kill_component("triggerer")
    arrive(lake, 9)
    airflow.start_component("triggerer")
    ended(airflow, runs + 1)
    assert read(lake) == 8

    reasons = [event["extra"]["payload"]["reason"] for event in events_of(airflow, "watched__commits")]
    assert len(reasons) == runs + 1
    assert reasons[0] == "a first run of the stream, which records its sources"
    assert reasons[1] == "version 1 of watched_events"
    assert reasons[-1] == "version 8 of watched_events", "after the one that wrote rows anew"

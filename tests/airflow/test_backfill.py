"""Run days with `airflow backfill create` through a real scheduler, whose processes are killed meanwhile."""

from __future__ import annotations

import re

import pytest

from tests.airflow.conftest import Backfilled, day
from tests.airflow.dag_runs import events_of, heard_by, states, task_log
from tests.airflow.visits import GAP, daily
from tests.flights_oracle import assert_equal
from tests.lake import conserved
from tests.session_oracle import sessions
from tests.waiting import wait_until
from tidegate.pipelines.airflow.embedded import EmbeddedAirflow

pytestmark = [pytest.mark.long, pytest.mark.airflow, pytest.mark.spark, pytest.mark.timeout(1800)]


def test_every_day_is_a_run_that_ended_well_and_an_epoch_of_its_own(
    backfilled: Backfilled, airflow: EmbeddedAirflow
) -> None:
    assert [run["state"] for run in backfilled.runs] == ["success"] * backfilled.days
    epochs = backfilled.lake.rows(daily, "epochs").sort_by("epoch").to_pylist()
    assert [row["epoch"] for row in epochs] == list(range(1, backfilled.days + 1))
    assert conserved(epochs)
    assert sum(row["events_in"] for row in epochs) == len(backfilled.rows)


def test_the_windows_are_those_of_plain_python(backfilled: Backfilled) -> None:
    expected = sessions(backfilled.rows, GAP)
    expected = expected[expected["window_end"] < day(backfilled.days)]
    crossing = expected["window_start"].dt.date < expected["window_end"].dt.date
    assert crossing.sum() > backfilled.days, "the data must have visits over midnight"
    assert_equal(backfilled.lake.final(daily).to_pandas(), expected, ["user", "window_start"])


def test_after_kill_9_of_scheduler_and_worker_their_tasks_were_tried_again(
    backfilled: Backfilled, airflow: EmbeddedAirflow
) -> None:
    tries = [states(airflow, run)["windows"][1] for run in backfilled.runs]
    assert sum(number > 1 for number in tries) == 2, "those of the two tasks that were killed"


def test_the_log_of_a_task_tells_what_its_day_counted(backfilled: Backfilled, airflow: EmbeddedAirflow) -> None:
    told = [
        re.search(r"epoch (\d+): (\d+) in, 0 late, (\d+) fired", task_log(airflow, run, "windows"))
        for run in backfilled.runs
    ]
    counted = [tuple(map(int, found.groups())) for found in told if found is not None]
    epochs = backfilled.lake.rows(daily, "epochs").sort_by("epoch").slice(0, backfilled.days).to_pylist()
    assert counted == [(row["epoch"], row["events_in"], row["fired_on_time"]) for row in epochs]
    assert "Run report: " in task_log(airflow, backfilled.runs[0], "quality")


def test_a_day_whose_windows_are_final_and_valid_reaches_who_waits_for_it(
    backfilled: Backfilled, airflow: EmbeddedAirflow
) -> None:
    days = {event["extra"]["epoch"]: event for event in reversed(events_of(airflow, "daily__final_windows"))}
    assert set(days) >= set(range(1, backfilled.days + 1))
    assert all(event["extra"]["quality"] == "passed" for event in days.values())
    assert days[1]["extra"]["interval"] == {"start": day(0).timestamp() * 1000, "end": day(1).timestamp() * 1000}
    wanted = {days[number]["id"] for number in range(1, backfilled.days + 1)}
    wait_until(lambda: heard_by(airflow, "billing") >= wanted, "the runs of whoever waits for the windows")

"""The command line of a task follows from the Params of its run."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import jinja2
import pytest

from tidegate.pipelines.airflow.params import (
    PATIENCE_SECONDS,
    backfill_arguments,
    check_arguments,
    quality_arguments,
    reopen_arguments,
    restart_arguments,
    savepoint_arguments,
)
from tidegate.pipelines.project.cli import run

PARAMS = {"mode": "available-now", "interval": "10s", "restore": "latest", "parallelism": None, "take_over": False}
DAY = {
    "data_interval_start": datetime(2024, 3, 1, tzinfo=UTC),
    "data_interval_end": datetime(2024, 3, 2, tzinfo=UTC),
}


def rendered(arguments: list[str], **context: Any) -> list[str]:
    """Arguments as the operator runs them: rendered, without those that are empty."""
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
    # What somebody asked for waits for a run of the schedule that is at work; that one leaves its data to others.
    waits = ["stream", "duty", *options, f"--patience={PATIENCE_SECONDS}"]
    assert rendered(arguments, params=params, ti=ti, dag_run=manual) == waits


def test_a_backfill_runs_its_data_interval() -> None:
    params = SimpleNamespace(interval_start=None, interval_end=None, and_following=False, fill_gaps=False, again=False)
    assert rendered(backfill_arguments("duty"), params=params, **DAY) == [
        "backfill",
        "duty",
        "--start=2024-03-01T00:00:00+00:00",
        "--end=2024-03-02T00:00:00+00:00",
        "--no-and-following",
        f"--patience={PATIENCE_SECONDS}",
    ]


def test_a_backfill_runs_the_interval_that_is_asked_for_even_without_one_of_its_own() -> None:
    params = SimpleNamespace(
        interval_start="2024-03-05T00:00:00Z",
        interval_end="2024-03-06T00:00:00Z",
        and_following=True,
        fill_gaps=True,
        again=True,
    )
    nothing = {"data_interval_start": None, "data_interval_end": None}
    assert rendered(backfill_arguments("duty"), params=params, **nothing)[2:] == [
        "--start=2024-03-05T00:00:00Z",
        "--end=2024-03-06T00:00:00Z",
        "--and-following",
        "--fill-gaps",
        "--again",
        f"--patience={PATIENCE_SECONDS}",
    ]


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
    assert arguments == ["backfill", "aircraft_duty", *options, "--no-and-following", f"--patience={PATIENCE_SECONDS}"]
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
    assert rendered(check_arguments("duty"), params=params) == ["snapshot", "check", "duty", "17"]
    savepoint = ["savepoint", "create", "duty", "before_upgrade", "--if-missing"]
    assert rendered(savepoint_arguments("duty"), params=params) == savepoint
    assert rendered(check_arguments("duty"), params=SimpleNamespace(**PARAMS))[-1] == "latest"


@pytest.mark.parametrize(("epoch", "options"), [(None, ["--report"]), (7, ["--epoch=7", "--report"])])
def test_quality_checks_the_newest_epoch_or_the_one_asked_for(epoch: int | None, options: list[str]) -> None:
    params = SimpleNamespace(epoch=epoch)
    assert rendered(quality_arguments("duty", "params.epoch"), params=params) == ["quality", "duty", *options]

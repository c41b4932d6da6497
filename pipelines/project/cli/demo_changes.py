"""The second half of the demo: after the backfill, a day is overwritten and records arrive late; the readers run again.

A stream corrects the windows of the day and finds the late records, the DAG for late rows reopens them, and the DAGs
that read the final windows by partition run for the days and the month that changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tidegate.pipelines.airflow.embedded import EmbeddedAirflow
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.counters import fired
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.examples.flights.source import CORRECTED, HELD_BACK, append_held_back, overwrite_first_day
from tidegate.pipelines.project.project import Project

PIPELINE = "carrier_shifts"
BY_DAY, BY_MONTH = "shifts_by_day", "shifts_by_month"

_POLL_SECONDS = 1.0
_PATIENCE_SECONDS = 600.0

READERS = '''"""DAGs of somebody who reads the final windows, by day and by month: they run for what changed."""

from pathlib import Path

from airflow.sdk import DAG, PartitionedAssetTimetable, StartOfDayMapper, StartOfMonthMapper, task

from tidegate.pipelines.airflow.assets import final_windows_asset

WINDOWS = final_windows_asset("carrier_shifts")
CONFIG = Path(__file__).parent.parent / "tidegate.toml"


@task
def add_up(dag_run=None):
    """Return the shifts of a partition, and their flights."""
    from tidegate import read_view

    windows = read_view("carrier_shifts", columns=["window_start", "flights"], config=CONFIG).to_pylist()
    partition = dag_run.partition_key
    chosen = [row for row in windows if str(row["window_start"]).startswith(partition)]
    return {"partition": partition, "shifts": len(chosen), "flights": sum(row["flights"] for row in chosen)}


for dag_id, mapper in (("shifts_by_day", StartOfDayMapper()), ("shifts_by_month", StartOfMonthMapper())):
    with DAG(dag_id, schedule=PartitionedAssetTimetable(assets=WINDOWS, default_partition_mapper=mapper)):
        add_up()
'''


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of the source, and their effects.

    Args:
        overwritten: records of the overwritten day.
        corrected: those of them that have a new air time.
        came: records that were held back until after the backfill.
        late: those of them whose windows had already closed.
        reopened: late records that were added to their windows.
        withdrawn, put_out: panes that the corrections retracted and emitted.
        days, months: the partitions that the readers ran for, with what each run read.
    """

    overwritten: int
    corrected: int
    came: int
    late: int
    reopened: int
    withdrawn: int
    put_out: int
    days: dict[str, dict[str, Any]]
    months: dict[str, dict[str, Any]]


def change_source(console: Console, airflow: EmbeddedAirflow, config: Config) -> Changes:
    """Overwrite a day of the source, add late records, let Airflow correct the windows, and return what happened.

    Raises:
        TidegateError: a run failed, or did not end in time.
    """
    warehouse = warehouse_of(config)
    path = warehouse.path("flights")
    options = warehouse.options_of(path)
    overwritten, corrected = overwrite_first_day(path, options)
    came = append_held_back(path, options)
    console.print(
        f"{CORRECTED} corrects the air times of {corrected} flights: the first day is overwritten, {overwritten} "
        f"records. {HELD_BACK} sends {came} records of that day only now"
    )
    for dag in (BY_DAY, BY_MONTH, f"{PIPELINE}__stream"):
        _unpause(airflow, dag)
    _ended_run(airflow, f"{PIPELINE}__stream")
    epochs = [row for row in Project(config.file).runs(PIPELINE, limit=None).epochs if row["kind"] != "backfill"]
    change = next(row for row in epochs if row["kind"] == "change")
    late = sum(row["late"] for row in epochs)
    console.print(
        f"{PIPELINE:14} stream    : {change['withdrawn']} panes retracted, {fired(change)} emitted for the overwritten "
        f"day; {late} records are late"
    )
    _unpause(airflow, f"{PIPELINE}__late")
    reopened = returned(airflow, _ended_run(airflow, f"{PIPELINE}__late"), "reopen")
    console.print(
        f"{PIPELINE:14} late      : {reopened['rows']} late records reopened, {reopened['withdrawn']} panes retracted, "
        f"{reopened['panes']} emitted"
    )
    days = _wait_for("the events of the final windows", lambda: _announced_days(airflow))
    months = {day[:7] for day in days}
    read = [_read(airflow, dag, wanted) for dag, wanted in ((BY_DAY, days), (BY_MONTH, months))]
    console.print(f"{BY_DAY:14} ran for {', '.join(sorted(read[0]))}; {BY_MONTH} for {', '.join(sorted(read[1]))}")
    return Changes(
        overwritten=overwritten,
        corrected=corrected,
        came=came,
        late=late,
        reopened=reopened["rows"],
        withdrawn=change["withdrawn"] + reopened["withdrawn"],
        put_out=fired(change) + reopened["panes"],
        days=read[0],
        months=read[1],
    )


def write_readers(dags: Path) -> None:
    """Write the DAG file of the readers."""
    (dags / "readers.py").write_text(READERS)


def _unpause(airflow: EmbeddedAirflow, dag: str) -> None:
    airflow.call("PATCH", f"dags/{dag}", json={"is_paused": False})


def _announced_days(airflow: EmbeddedAirflow) -> set[str] | None:
    """Return the days whose final windows the check after reopening announced; None if Airflow does not know yet."""
    # Airflow 3.3 answers 500 while a run that an event created is queued: the run has no start_date yet.
    with suppress(TidegateError):
        found = airflow.call("GET", "assets/events", params={"source_dag_id": f"{PIPELINE}__late", "limit": 100})
        return {event["partition_key"][:10] for event in found["asset_events"] if event["partition_key"]}
    return None


def _ended_run(airflow: EmbeddedAirflow, dag: str) -> dict[str, Any]:
    """Wait for the run that starts when a DAG is unpaused, and return it."""

    def ended() -> dict[str, Any] | None:
        runs = airflow.runs_of(dag)
        if any(run["state"] == "failed" for run in runs):
            raise TidegateError(f"run {runs[-1]['dag_run_id']} of {dag} failed; Airflow's page shows its log")
        # A run may be skipped while another one is active, and then counts as a success.
        if any(run["state"] != "success" for run in runs):
            return None
        return next(iter(runs), None)

    run: dict[str, Any] = _wait_for(f"a run of {dag}", ended)
    return run


def _read(airflow: EmbeddedAirflow, dag: str, wanted: set[str]) -> dict[str, dict[str, Any]]:
    """Wait for a run of a reader for each partition, and return what each run read, by partition."""

    def ended() -> list[dict[str, Any]] | None:
        runs = airflow.runs_of(dag)
        done = {run["partition_key"] for run in runs if run["state"] == "success"}
        return runs if done >= wanted and all(run["state"] in ("success", "failed") for run in runs) else None

    runs = _wait_for(f"the runs of {dag} for {', '.join(sorted(wanted))}", ended)
    return {run["partition_key"]: returned(airflow, run, "add_up") for run in runs}


def returned(airflow: EmbeddedAirflow, run: dict[str, Any], task: str) -> Any:
    """Return what a task returned in a run; Airflow stores lists wrapped."""
    path = f"dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}/taskInstances/{task}/xcomEntries/return_value"
    return airflow.call("GET", path, params={"deserialize": True})["value"]


def _wait_for(what: str, ready: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (value := ready()) is None:
        if time.monotonic() > deadline:
            raise TidegateError(f"{what} did not end within {_PATIENCE_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)
    return value

"""Run `tidegate demo` as a new user would: two days of flights through a real Airflow, then Ctrl-C. `make test` uses
the local engine, `make test-long` uses Spark, as `make run` does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import psutil
import pytest

from tests import flights_oracle
from tests.running_airflow import engine_of
from tests.test_named_commands import missing
from tests.waiting import wait_until
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.config import load_config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.examples.flights.hours import airport_hours
from tidegate.pipelines.examples.flights.shifts import carrier_shifts
from tidegate.pipelines.examples.flights.source import HELD_BACK
from tidegate.pipelines.ledger.snapshots.head import list_snapshots
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import read_table

pytestmark = pytest.mark.airflow

FIRST_DAY = pd.Timestamp("2013-01-01", tz="UTC")
DAYS = 2
"""After one day no shift has ended yet, so there would be nothing to correct."""
DEADLINE_SECONDS = 600


@dataclass
class Demo:
    """A finished demo that keeps Airflow's page open."""

    days: int
    process: subprocess.Popen[str]
    folder: Path
    summary: dict[str, Any]

    @property
    def end(self) -> pd.Timestamp:
        """Midnight after the last day."""
        return FIRST_DAY + timedelta(days=self.days)

    @property
    def screen(self) -> str:
        """Return what the demo has printed."""
        return (self.folder.parent / "screen.txt").read_text()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Demo]:
    folder = tmp_path_factory.mktemp("demo") / "project"
    output = folder.parent / "summary.json"
    command = [
        sys.executable,
        "-m",
        "tidegate",
        "demo",
        "--days",
        str(DAYS),
        "--folder",
        str(folder),
        "--engine",
        engine_of(request.config),
    ]
    with (folder.parent / "screen.txt").open("w") as screen:
        process = subprocess.Popen(
            [*command, "--output", str(output), "--serve"], stdout=screen, stderr=screen, text=True
        )
    try:

        def has_summary() -> bool:
            assert process.poll() is None, (folder.parent / "screen.txt").read_text()
            return output.exists()

        wait_until(has_summary, "the demo's summary", DEADLINE_SECONDS)
        yield Demo(DAYS, process, folder, json.loads(output.read_text()))
    finally:
        _end(process, folder)


def _end(process: subprocess.Popen[str], folder: Path) -> None:
    """End a demo, by force if necessary: the following tests need the machine."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for left in _processes_of(folder):
        with suppress(psutil.NoSuchProcess):
            left.kill()


def test_every_record_is_accounted_for(demo: Demo) -> None:
    for summary in demo.summary["pipelines"]:
        filtered = summary["no_window"] + summary["rejected"] + summary["dropped"]
        assert summary["events_in"] == summary["on_time"] + summary["late"] + filtered
        assert summary["events_in"] > 600 * demo.days
        assert summary["rejected"] > 0, "cancelled flights have no departure"


def test_the_windows_are_those_of_plain_pandas(demo: Demo) -> None:
    warehouse = warehouse_of(load_config(demo.folder / "tidegate.toml"))
    flights = read_table(warehouse, warehouse.open(warehouse.path("flights"))).to_pandas()
    found = {}
    for pipeline in (carrier_shifts, airport_hours):
        tables = PipelineTables(warehouse, pipeline.name)
        found[pipeline.name] = results.latest(read_table(warehouse, tables.open("results")), pipeline.key).to_pandas()
    shifts = flights_oracle.carrier_shifts(flights, demo.end)
    crossing = shifts["window_start"].dt.date < shifts["window_end"].dt.date
    # None of these has ended after one day. tests/spark/test_flights_month.py always covers flights over midnight.
    assert crossing.sum() >= (len(shifts) / 2 if demo.days > 1 else 0), "most go on over midnight"
    assert (shifts["flights"] > 1).sum() >= len(shifts) / 2
    assert len(shifts) >= 20 * (demo.days - 1)
    flights_oracle.assert_equal(found["carrier_shifts"], shifts, ["carrier", "origin", "window_start"])
    came_late = (flights["carrier"] == HELD_BACK) & (flights["departed_at"] < FIRST_DAY + timedelta(days=1))
    hours = flights_oracle.airport_hours(flights[~came_late])
    flights_oracle.assert_equal(found["airport_hours"], hours, ["origin", "window_start"])


def test_each_day_was_a_run_of_a_real_scheduler_and_left_a_snapshot(demo: Demo) -> None:
    warehouse = warehouse_of(load_config(demo.folder / "tidegate.toml"))
    for name in ("carrier_shifts", "airport_hours"):
        snapshots = list_snapshots(PipelineTables(warehouse, name))
        intervals = [entry.manifest["epoch"] for entry in snapshots if entry.manifest["interval"]]
        assert intervals == list(range(demo.days, 0, -1))
        assert f"{name:14} {demo.end - timedelta(days=1):%Y-%m-%d}" in demo.screen
    with closing(sqlite3.connect(f"file:{demo.folder / 'airflow' / 'airflow.db'}?mode=ro", uri=True)) as database:
        runs = database.execute("SELECT dag_id, run_type, state FROM dag_run").fetchall()
        jobs = database.execute("SELECT DISTINCT job_type FROM job").fetchall()
    backfills = [run for run in runs if run[1] == "backfill"]
    assert sorted(backfills) == sorted(
        [(f"{name}__backfill", "backfill", "success") for name in ("carrier_shifts", "airport_hours")] * demo.days
    )
    # The demo waits for these runs. While its page is open, the schedule may start more.
    ended = {dag for dag, _, state in runs if state == "success"}
    assert {"carrier_shifts__stream", "carrier_shifts__late", "shifts_by_day", "shifts_by_month"} <= ended
    assert {state for _, _, state in runs} <= {"success", "queued", "running"}
    assert ("SchedulerJob",) in jobs


def test_a_day_that_was_overwritten_and_late_records_run_their_days_and_their_month_again(demo: Demo) -> None:
    changes = demo.summary["changes"]
    assert changes["corrected"] > 50
    assert changes["late"] == changes["reopened"] > 0
    assert changes["emitted"] > 0
    assert "2013-01-01" in changes["days"]
    assert list(changes["months"]) == ["2013-01"]
    by_day = {day["day"]: day for day in demo.summary["days"]}
    for day, read in changes["days"].items():
        assert (read["shifts"], read["flights"]) == (by_day[day]["shifts"], by_day[day]["flights"])
    assert changes["months"]["2013-01"]["flights"] == sum(day["flights"] for day in by_day.values())
    assert "shifts_by_day" in demo.screen
    with closing(sqlite3.connect(f"file:{demo.folder / 'airflow' / 'airflow.db'}?mode=ro", uri=True)) as database:
        ran = database.execute("SELECT partition_key FROM dag_run WHERE dag_id LIKE 'shifts_by_%'").fetchall()
    assert sorted(key for (key,) in ran) == sorted([*changes["days"], *changes["months"]]), "each once"


def test_data_docs_show_every_run(demo: Demo) -> None:
    for name in ("carrier_shifts", "airport_hours"):
        pages = list((demo.folder / ".work" / "quality" / name).glob("check-*.html"))
        assert len(pages) >= demo.days


def test_the_summary_says_what_a_person_wants_to_know(demo: Demo) -> None:
    for text in (
        "The five longest shifts",
        "Key figures",
        "several flights",
        "late",
        "rejected",
        "open",
        "tidegate results",
        "Data Docs",
    ):
        assert text in demo.screen
    commands = re.findall(r"tidegate ((?:[a-z]+ )+)", demo.screen.partition("What to type next")[2])
    assert len(commands) >= 5
    assert [command for command in commands if missing(command)] == [], "what the demo says to type exists"


@pytest.mark.long
def test_ctrl_c_leaves_no_process_behind(demo: Demo) -> None:
    """This test is last in the file because it ends the demo."""
    process = psutil.Process(demo.process.pid)
    started = [process, *process.children(recursive=True)]
    airflow = _processes_of(demo.folder)
    assert len(airflow) >= 3
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(90) == 130
    _, left = psutil.wait_procs(started, timeout=10)
    assert not left
    assert not _processes_of(demo.folder)


def _processes_of(folder: Path) -> list[psutil.Process]:
    """Return the processes that work in the demo's Airflow home, or on files of the project."""
    found = []
    for process in psutil.process_iter():
        try:
            home = process.environ().get("AIRFLOW_HOME", "")
            named = any(str(folder) in part for part in process.cmdline())
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if process.pid != os.getpid() and (home.startswith(str(folder)) or named):
            found.append(process)
    return found

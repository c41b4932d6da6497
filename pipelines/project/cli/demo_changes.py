"""The second half of the demo: after the backfill, a day is overwritten and records arrive late; then the summary.

A stream corrects the windows of the day and finds the late records, the DAG for late rows reopens them, and the DAGs
that read the final windows by partition run for the days and the month that changed. The summary is read from the
tables.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from tidegate.pipelines.airflow.embedded import EmbeddedAirflow
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import artifacts_of, warehouse_of
from tidegate.pipelines.definition.counters import FATES, FIRED, ROWS_DELETED, fired
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.examples.flights.days import CORRECTED, HELD_BACK
from tidegate.pipelines.observe.report.values import moment
from tidegate.pipelines.project.cli.screen import Screen, table
from tidegate.pipelines.project.project import Project
from tidegate.pipelines.storage.artifacts import docs_folder

PIPELINE = "carrier_shifts"
BY_DAY, BY_MONTH = "shifts_by_day", "shifts_by_month"

_POLL_SECONDS = 1.0
_PATIENCE_SECONDS = 600.0
_COUNTED = ("events_in", *FATES, ROWS_DELETED)
_WIDTH = 40
"""Length of the longest bar of the chart, in characters."""

READERS = '''"""DAGs of somebody who reads the final windows, by day and by month: they run for what changed."""

from pathlib import Path

from airflow.sdk import DAG, PartitionedAssetTimetable, StartOfDayMapper, StartOfMonthMapper, task

from tidegate.pipelines.airflow.assets import final_windows_asset

WINDOWS = final_windows_asset("carrier_shifts")
CONFIG = Path(__file__).parent.parent / "tidegate.toml"


@task
def add_up(dag_run=None):
    """Return the shifts of a partition, and their flights."""
    from tidegate import Project

    windows = Project(CONFIG).results("carrier_shifts").to_arrow().to_pylist()
    partition = dag_run.partition_key
    chosen = [row for row in windows if str(row["window_start"]).startswith(partition)]
    return {"partition": partition, "shifts": len(chosen), "flights": sum(row["flights"] for row in chosen)}


for dag_id, mapper in (("shifts_by_day", StartOfDayMapper()), ("shifts_by_month", StartOfMonthMapper())):
    with DAG(dag_id, schedule=PartitionedAssetTimetable(assets=WINDOWS, default_partition_mapper=mapper)):
        add_up()
'''


@dataclass(frozen=True, slots=True)
class DemoChanges:
    """The changes of the source, and their effects.

    Args:
        overwritten: records of the overwritten day.
        corrected: the records among them that have a new air time.
        held_back: records that were held back until after the backfill.
        late: the records among these whose windows had already closed.
        reopened: late records that were added to their windows.
        retracted, emitted: panes that the corrections retracted and emitted.
        days, months: the partitions that the readers ran for, with what each run read.
    """

    overwritten: int
    corrected: int
    held_back: int
    late: int
    reopened: int
    retracted: int
    emitted: int
    days: dict[str, dict[str, Any]]
    months: dict[str, dict[str, Any]]


def change_source(console: Console, airflow: EmbeddedAirflow, config: Config) -> DemoChanges:
    """Overwrite a day of the source, add late records, let Airflow correct the windows, and return what happened.

    Raises:
        TidegateError: a run failed, or did not end in time.
    """
    from tidegate.pipelines.examples.flights.source import append_held_back, overwrite_first_day

    warehouse = warehouse_of(config)
    path = warehouse.path("flights")
    options = warehouse.options_of(path)
    overwritten, corrected = overwrite_first_day(path, options)
    held_back = append_held_back(path, options)
    console.print(
        f"{CORRECTED} corrects the air times of {corrected} flights: the first day is overwritten, {overwritten} "
        f"records. {HELD_BACK} now sends {held_back} records of that day, which had been held back"
    )
    for dag in (BY_DAY, BY_MONTH, f"{PIPELINE}__stream"):
        _unpause(airflow, dag)
    _ended_run(airflow, f"{PIPELINE}__stream")
    epochs = [row for row in Project(config.file).runs(PIPELINE, limit=None).epochs if row["kind"] != "backfill"]
    change = next(row for row in epochs if row["kind"] == "change")
    late = sum(row["late"] for row in epochs)
    console.print(
        f"{PIPELINE:14} stream    : {change['retracted']} panes retracted, {fired(change)} emitted for the overwritten "
        f"day; {late} records are late"
    )
    _unpause(airflow, f"{PIPELINE}__late")
    reopened = returned(airflow, _ended_run(airflow, f"{PIPELINE}__late"), "reopen")
    console.print(
        f"{PIPELINE:14} late      : {reopened['rows']} late records reopened, {reopened['retracted']} panes retracted, "
        f"{reopened['panes']} emitted"
    )
    days = _wait_for("the events of the final windows", lambda: _announced_days(airflow))
    months = {day[:7] for day in days}
    read = [_read(airflow, dag, wanted) for dag, wanted in ((BY_DAY, days), (BY_MONTH, months))]
    console.print(f"{BY_DAY:14} ran for {', '.join(sorted(read[0]))}; {BY_MONTH} for {', '.join(sorted(read[1]))}")
    return DemoChanges(
        overwritten=overwritten,
        corrected=corrected,
        held_back=held_back,
        late=late,
        reopened=reopened["rows"],
        retracted=change["retracted"] + reopened["retracted"],
        emitted=fired(change) + reopened["panes"],
        days=read[0],
        months=read[1],
    )


def _unpause(airflow: EmbeddedAirflow, dag: str) -> None:
    airflow.call("PATCH", f"dags/{dag}", json={"is_paused": False})


def _announced_days(airflow: EmbeddedAirflow) -> set[str] | None:
    """Return the days whose final windows the check after reopening announced, or None if Airflow does not know yet."""
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
    """Return what a task returned in a run. Airflow stores lists in a wrapper."""
    path = f"dags/{run['dag_id']}/dagRuns/{run['dag_run_id']}/taskInstances/{task}/xcomEntries/return_value"
    return airflow.call("GET", path, params={"deserialize": True})["value"]


def _wait_for(what: str, ready: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (value := ready()) is None:
        if time.monotonic() > deadline:
            raise TidegateError(f"{what} did not end within {_PATIENCE_SECONDS:.0f} s")
        time.sleep(_POLL_SECONDS)
    return value


def show_summary(
    screen: Screen, config: Config, pipelines: Sequence[str], records: int, changes: DemoChanges | None, seconds: float
) -> None:
    """Show the input and the output of each pipeline, what changed afterwards, and a chart of the days.

    The source had some records for the backfill; one pipeline follows its later changes, None if there were none.

    Raises:
        TidegateError: a row is missing: the input is not the sum of on time, late and filtered.
    """
    project = Project(config.file)
    summaries = [_summary(project, name) for name in pipelines]
    for summary in summaries:
        counted = sum(summary[name] for name in FATES)
        expected = records + (changes.held_back if changes and summary["pipeline"] == PIPELINE else 0)
        if summary["events_in"] != counted or summary["events_in"] - summary[ROWS_DELETED] != expected:
            raise TidegateError(
                f"{summary['pipeline']}: the source has {expected} records, the epochs read {summary['events_in']}, "
                f"counted {counted}, and later removed {summary[ROWS_DELETED]}. Please report this, with the folder of "
                f"the "
                "demo"
            )
    longest, days = _longest_shifts(project), _shifts_by_day(project, changes.days if changes else ())
    screen.show(
        {
            "pipelines": summaries,
            "changes": None if changes is None else asdict(changes),
            "longest_shifts": longest,
            "days": days,
            "seconds": round(seconds, 1),
        },
        "",
        _summary_table(summaries),
        "",
        *(() if changes is None else (_changes_table(changes), "")),
        _longest_table(longest),
        "",
        _picture_of(days),
        "",
        _key_figures(summaries, changes, days),
        "",
        _where(config, pipelines),
        "",
        _next(config),
        f"\nDone in {seconds:.0f} s.",
    )


def _summary(project: Project, name: str) -> dict[str, Any]:
    rows, newest = project.runs(name, limit=None, stale=True).epochs, project.snapshots.list(name).snapshots[0]
    counted = {column: sum(row[column] or 0 for row in rows) for column in (*_COUNTED, *FIRED)}
    return {
        "pipeline": name,
        **{column: counted[column] for column in _COUNTED},
        "fired": fired(counted),
        "open": rows[0]["open_windows"],
        "epoch": newest["epoch"],
        "snapshot_version": newest["version"],
    }


def _summary_table(summaries: Sequence[dict[str, Any]]) -> Any:
    rows = [
        ("events in", "events_in"),
        ("  on time", "on_time"),
        ("  late", "late"),
        ("  rejected (no departure or no tail number)", "rejected"),
        ("windows fired", "fired"),
        ("windows open in the snapshot", "open"),
        ("snapshot version", "snapshot_version"),
    ]
    names = [summary["pipeline"] for summary in summaries]
    return table(
        "Input and output",
        ("", *names),
        [(label, *(summary[column] for summary in summaries)) for label, column in rows],
        right=names,
    )


def _changes_table(changes: DemoChanges) -> Any:
    rows = [
        ("records of the overwritten day", changes.overwritten),
        ("  of them with a new air time", changes.corrected),
        ("records that arrived after the backfill", changes.held_back),
        ("  of them late: their windows had closed", changes.late),
        ("  of them reopened", changes.reopened),
        ("panes retracted", changes.retracted),
        ("panes emitted in their place", changes.emitted),
        ("days that were read again", ", ".join(sorted(changes.days))),
        ("months that were read again", ", ".join(sorted(changes.months))),
    ]
    return table(f"What changed afterwards, and the effect on {PIPELINE}", ("", ""), rows)


def _longest_table(shifts: Sequence[dict[str, Any]]) -> Any:
    rows = [
        (
            *(shift["carrier"], shift["origin"], moment(shift["first"]), moment(shift["last"])),
            *(shift["flights"], shift["air_minutes"], f"{shift['longest_leg']} mi"),
        )
        for shift in shifts
    ]
    columns = ("airline", "airport", "first departure", "last departure", "flights", "air minutes", "leg")
    return table("The five longest shifts", columns, rows, right=columns[4:])


def _shifts_by_day(project: Project, again: Collection[str]) -> list[dict[str, Any]]:
    """Count the final shifts by the day (UTC) on which they begin. `again` marks days for which readers ran again."""
    by_day = defaultdict(list)
    for row in project.results(PIPELINE).to_dict():
        by_day[f"{row['window_start']:%Y-%m-%d}"].append(row)
    return [
        {
            "day": day,
            "shifts": len(rows),
            "flights": sum(row["flights"] for row in rows),
            "several": sum(row["flights"] > 1 for row in rows),
            "crossing": sum(row["window_end"].date() > row["window_start"].date() for row in rows),
            "again": day in again,
        }
        for day, rows in sorted(by_day.items())
    ]


def _picture_of(days: Sequence[dict[str, Any]]) -> Any:
    """Return a bar for each day: sessions of several flights, then sessions of one flight."""
    most = max((day["shifts"] for day in days), default=1)
    rows = []
    for day in days:
        several, single = (round(_WIDTH * count / most) for count in (day["several"], day["shifts"] - day["several"]))
        bar = "█" * several + "▒" * single
        rows.append((day["day"], bar, day["shifts"], "read again" if day["again"] else ""))
    return table(
        "Final shifts by the day on which they begin: █ of several flights, ▒ of one",
        ("day (UTC)", "", "shifts", ""),
        rows,
        right=("shifts",),
    )


def _key_figures(
    summaries: Sequence[dict[str, Any]], changes: DemoChanges | None, days: Sequence[dict[str, Any]]
) -> Any:
    counted = next(summary for summary in summaries if summary["pipeline"] == PIPELINE)
    shifts, several, crossing = (sum(day[name] for day in days) for name in ("shifts", "several", "crossing"))
    on_time = counted["events_in"] - counted["late"] - counted["rejected"]
    rows: list[tuple[object, str]] = [
        (f"{several} of {shifts}", "final shifts have several flights"),
        (crossing, "cross midnight, from the interval of one run into that of the next"),
        (
            f"{counted['events_in']} = {on_time} + {counted['late']} + {counted['rejected']}",
            "every record is on time, late or rejected: no row is missing",
        ),
    ]
    if changes is None:
        rows.append(("--days 2", "to see more: a day is overwritten, records arrive late, and readers run again"))
    else:
        rows.append((f"{changes.reopened} of {changes.late}", "late records are now in their windows"))
        rows.append((f"{len(changes.days)} of {len(days)}", "days were read again, each once, and their month once"))
    return table("Key figures", ("", ""), rows)


def _longest_shifts(project: Project) -> list[dict[str, Any]]:
    from tidegate.pipelines.examples.flights.shifts import carrier_shifts
    from tidegate.windowing.compute import Windows

    windows = carrier_shifts.compute
    assert isinstance(windows, Windows)
    gap = timedelta(milliseconds=windows.assigner.gap_of_every_element or 0)
    names = ("carrier", "origin", "flights", "air_minutes", "longest_leg")
    shifts = [
        {**{name: row[name] for name in names}, "first": row["window_start"], "last": row["window_end"] - gap}
        for row in project.results(PIPELINE, view="latest").to_dict()
    ]
    shifts.sort(key=lambda each: (each["first"] - each["last"], -each["flights"], each["carrier"], each["origin"]))
    return shifts[:5]


def _where(config: Config, pipelines: Sequence[str]) -> Any:
    rows = [("tables", config.warehouse_uri)]
    for name in pipelines:
        docs = artifacts_of(config).address(f"{docs_folder(name)}/index.html")
        rows.append((f"Data Docs of {name}", docs))
    rows.append(("logs of the tasks", str(config.root / "airflow" / "logs")))
    return table("Where things are", ("", ""), rows)


def _next(config: Config) -> Any:
    command, option = _command(), f"--config {config.file}"
    return table(
        "What to type next",
        ("", ""),
        [
            (f"{command} results {PIPELINE} --sort air_minutes {option}", "the windows"),
            (f"{command} runs {PIPELINE} {option}", "its epochs: one per day, then the later changes"),
            (f"{command} report {PIPELINE} {option}", "a page with pictures of the run"),
            (f"{command} snapshots list {PIPELINE} {option}", "the snapshots, one per run"),
            (f"{command} snapshots show {PIPELINE} {option}", "what is open: windows and their timers"),
            (f"{command} demo --serve", "the same, with Airflow's web page kept open"),
        ],
    )


def _command() -> str:
    """Return the command to type: `tidegate`, or its path if it is not on the PATH."""
    beside = Path(sys.executable).parent / "tidegate"
    if shutil.which("tidegate") or not beside.exists():
        return "tidegate"
    return str(beside.relative_to(Path.cwd())) if beside.is_relative_to(Path.cwd()) else str(beside)

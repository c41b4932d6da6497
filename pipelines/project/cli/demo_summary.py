"""The summary at the end of the demo, read from the tables that it created."""

from __future__ import annotations

import shutil
import sys
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import artifacts_of
from tidegate.pipelines.definition.counters import FATES, FIRED, ROWS_GONE, fired
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.examples.flights.shifts import carrier_shifts
from tidegate.pipelines.observe.report.answer import moment
from tidegate.pipelines.project.cli.demo_changes import PIPELINE, Changes
from tidegate.pipelines.project.cli.screen import Screen, table
from tidegate.pipelines.project.project import Project
from tidegate.pipelines.storage.artifacts import docs_folder
from tidegate.windowing.compute import Windows

_COUNTED = ("events_in", *FATES, ROWS_GONE)
_WIDTH = 40
"""Length of the longest bar of the chart, in characters."""


def show_summary(
    screen: Screen, config: Config, pipelines: Sequence[str], records: int, changes: Changes | None, seconds: float
) -> None:
    """Show the input and the output of each pipeline, what changed afterwards, and a chart of the days.

    Args:
        screen: where to show it.
        config: the demo's project.
        pipelines: names of the pipelines.
        records: number of records that the source had for the backfill.
        changes: the later changes of the source, which one pipeline follows; None if there were none.
        seconds: duration of the demo.

    Raises:
        TidegateError: a row is missing: the input is not the sum of on time, late and filtered.
    """
    project = Project(config.file)
    summaries = [_summary(project, name) for name in pipelines]
    for summary in summaries:
        counted = sum(summary[name] for name in FATES)
        expected = records + (changes.came if changes and summary["pipeline"] == PIPELINE else 0)
        if summary["events_in"] != counted or summary["events_in"] - summary[ROWS_GONE] != expected:
            raise TidegateError(
                f"{summary['pipeline']}: the source has {expected} records, the epochs read {summary['events_in']}, "
                f"counted {counted}, and later removed {summary[ROWS_GONE]}. Please report this, with the folder of "
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
        _numbers_to_look_at(summaries, changes, days),
        "",
        _where(config, pipelines),
        "",
        _next(config),
        f"\nDone in {seconds:.0f} s.",
    )


def _summary(project: Project, name: str) -> dict[str, Any]:
    rows, newest = project.runs(name, limit=None, stale=True).epochs, project.snapshot_list(name).snapshots[0]
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


def _changes_table(changes: Changes) -> Any:
    rows = [
        ("records of the overwritten day", changes.overwritten),
        ("  of them with a new air time", changes.corrected),
        ("records that arrived after the backfill", changes.came),
        ("  of them late: their windows had closed", changes.late),
        ("  of them reopened", changes.reopened),
        ("panes retracted", changes.withdrawn),
        ("panes emitted in their place", changes.put_out),
        ("days that were read again", ", ".join(sorted(changes.days))),
        ("months that were read again", ", ".join(sorted(changes.months))),
    ]
    return table(f"What changed afterwards, and the effect on {PIPELINE}", ("", ""), rows)


def _longest_table(shifts: Sequence[dict[str, Any]]) -> Any:
    rows = [
        (
            *(shift["carrier"], shift["origin"], moment(shift["first"]), moment(shift["last"], shift["first"])),
            *(shift["flights"], shift["air_minutes"], f"{shift['longest_leg']} mi"),
        )
        for shift in shifts
    ]
    columns = ("airline", "airport", "first departure (UTC)", "last departure (UTC)", "flights", "air minutes", "leg")
    return table("The five longest shifts", columns, rows, right=columns[4:])


def _shifts_by_day(project: Project, again: Collection[str]) -> list[dict[str, Any]]:
    """Count the final shifts by the day in UTC on which they begin; `again` marks days for which readers ran again."""
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


def _numbers_to_look_at(
    summaries: Sequence[dict[str, Any]], changes: Changes | None, days: Sequence[dict[str, Any]]
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
        rows.append(("--days 2", "and more: a day is overwritten, records arrive late, and readers run again"))
    else:
        rows.append((f"{changes.reopened} of {changes.late}", "late records are in their windows after all"))
        rows.append((f"{len(changes.days)} of {len(days)}", "days were read again, each once, and their month once"))
    return table("Key figures", ("", ""), rows)


def _longest_shifts(project: Project) -> list[dict[str, Any]]:
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
    rows.append(("logs of the runs", str(config.work_folder / "runs")))
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
            (f"{command} snapshot list {PIPELINE} {option}", "the snapshots, one per run"),
            (f"{command} snapshot show {PIPELINE} {option}", "what is open: windows and their timers"),
            (f"{command} demo --serve", "the same, with Airflow's web page kept open"),
        ],
    )


def _command() -> str:
    """Return the command to type: `tidegate`, or its path if it is not on the PATH."""
    beside = Path(sys.executable).parent / "tidegate"
    if shutil.which("tidegate") or not beside.exists():
        return "tidegate"
    return str(beside.relative_to(Path.cwd())) if beside.is_relative_to(Path.cwd()) else str(beside)

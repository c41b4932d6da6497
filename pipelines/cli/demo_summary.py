"""The summary at the end of the demo, read from the tables it made."""

from __future__ import annotations

import shutil
import sys
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from tidegate.pipelines.cli.demo_changes import PIPELINE, Changes
from tidegate.pipelines.cli.screen import Screen, table
from tidegate.pipelines.config import Config
from tidegate.pipelines.definition import epochs, results
from tidegate.pipelines.definition.counters import FATES, FIRED, ROWS_GONE, fired
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.report.answer import moment
from tidegate.pipelines.snapshots.head import read_snapshot
from tidegate.pipelines.snapshots.published import pin_tables
from tidegate.pipelines.storage import read_table, warehouse_of
from tidegate.pipelines.stores.artifacts import artifacts_of, docs_folder
from tidegate.pipelines.tables.pipeline_tables import PipelineTables

_COUNTED = ("events_in", *FATES, ROWS_GONE)
_WIDTH = 40
"""Characters of the longest bar of the picture."""


def show_summary(
    screen: Screen, config: Config, pipelines: Sequence[str], records: int, changes: Changes | None, seconds: float
) -> None:
    """Show the input and the output of each pipeline, what changed afterwards, and a picture of the days.

    Args:
        screen: where to show it.
        config: the demo's project.
        pipelines: names of the pipelines.
        records: number of records that the source had for the backfill.
        changes: the changes of the source after it, which one pipeline follows; None if there were none.
        seconds: time that the demo took.

    Raises:
        TidegateError: a row is missing: events in are not on time + late + filtered.
    """
    summaries = [_summary(config, name) for name in pipelines]
    for summary in summaries:
        counted = sum(summary[name] for name in FATES)
        expected = records + (changes.came if changes and summary["pipeline"] == PIPELINE else 0)
        if summary["events_in"] != counted or summary["events_in"] - summary[ROWS_GONE] != expected:
            raise TidegateError(
                f"{summary['pipeline']}: the source has {expected} records, the epochs read {summary['events_in']}, "
                f"counted {counted} and gave {summary[ROWS_GONE]} back. Please report this with the folder of the demo"
            )
    longest, days = _longest_shifts(config), shifts_by_day(config, changes.days if changes else ())
    screen.show(
        {
            "pipelines": summaries,
            "changes": None if changes is None else asdict(changes),
            "longest_shifts": longest,
            "days": [asdict(day) for day in days],
            "seconds": round(seconds, 1),
        },
        "",
        _summary_table(summaries),
        "",
        *(() if changes is None else (_changes_table(changes), "")),
        table(
            "The five longest shifts",
            ("airline", "airport", "first departure (UTC)", "last departure (UTC)", "flights", "air minutes", "leg"),
            [
                (
                    shift["carrier"],
                    shift["origin"],
                    moment(shift["first"]),
                    moment(shift["last"], shift["first"]),
                    shift["flights"],
                    shift["air_minutes"],
                    f"{shift['longest_leg']} mi",
                )
                for shift in longest
            ],
            right=("flights", "air minutes", "leg"),
        ),
        "",
        picture_of(days),
        "",
        _numbers_to_look_at(summaries, changes, days),
        "",
        _where(config, pipelines),
        "",
        _next(config),
        f"\nDone in {seconds:.0f} s.",
    )


def _summary(config: Config, name: str) -> dict[str, Any]:
    tables = PipelineTables(warehouse_of(config), name)
    rows = read_table(tables.warehouse, tables.open(epochs.NAME))
    snapshot = read_snapshot(tables)
    if snapshot is None:
        raise TidegateError(f"{name} has no snapshot")
    counted = {column: pc.sum(rows[column]).as_py() or 0 for column in (*_COUNTED, *FIRED)}
    return {
        "pipeline": name,
        **{column: counted[column] for column in _COUNTED},
        "fired": fired(counted),
        "open": snapshot.manifest.counters["open_windows"],
        "epoch": snapshot.manifest.epoch,
        "snapshot_version": snapshot.version,
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
        "What came in and what came out",
        ("", *names),
        [(label, *(summary[column] for summary in summaries)) for label, column in rows],
        right=names,
    )


def _changes_table(changes: Changes) -> Any:
    rows = [
        ("records of the day that was written again", changes.overwritten),
        ("  of them with another air time", changes.corrected),
        ("records that came after the backfill", changes.came),
        ("  of them late: their windows had closed", changes.late),
        ("  of them reopened", changes.reopened),
        ("panes retracted", changes.withdrawn),
        ("panes put out in their place", changes.put_out),
        ("days that were read again", ", ".join(sorted(changes.days))),
        ("months that were read again", ", ".join(sorted(changes.months))),
    ]
    return table(f"What changed afterwards, and what became of it in {PIPELINE}", ("", ""), rows)


@dataclass(frozen=True, slots=True)
class DayOfShifts:
    """The final shifts that begin on a day.

    Args:
        day: the day in UTC, as text.
        shifts, flights: their number, and that of their flights.
        several: number of those with more than one flight.
        crossing: number of those that end on another day.
        again: True if readers ran again for the day.
    """

    day: str
    shifts: int
    flights: int
    several: int
    crossing: int
    again: bool


def shifts_by_day(config: Config, again: Collection[str]) -> list[DayOfShifts]:
    """Return the final shifts of each day; `again` lists the days that were read again."""
    windows = pin_tables(PipelineTables(warehouse_of(config), PIPELINE)).final_windows()
    by_day = defaultdict(list)
    for row in windows.select(["window_start", "window_end", "flights"]).to_pylist():
        by_day[f"{row['window_start']:%Y-%m-%d}"].append(row)
    return [
        DayOfShifts(
            day,
            len(rows),
            sum(row["flights"] for row in rows),
            sum(row["flights"] > 1 for row in rows),
            sum(row["window_end"].date() > row["window_start"].date() for row in rows),
            day in again,
        )
        for day, rows in sorted(by_day.items())
    ]


def picture_of(days: Sequence[DayOfShifts]) -> Any:
    """Return a bar for each day: sessions of several flights, then those of one."""
    most = max((day.shifts for day in days), default=1)
    rows = []
    for day in days:
        several, single = (round(_WIDTH * count / most) for count in (day.several, day.shifts - day.several))
        rows.append((day.day, "█" * several + "▒" * single, day.shifts, "read again" if day.again else ""))
    return table(
        "Final shifts by the day on which they begin: █ of several flights, ▒ of one",
        ("day (UTC)", "", "shifts", ""),
        rows,
        right=("shifts",),
    )


def _numbers_to_look_at(
    summaries: Sequence[dict[str, Any]], changes: Changes | None, days: Sequence[DayOfShifts]
) -> Any:
    counted = next(summary for summary in summaries if summary["pipeline"] == PIPELINE)
    shifts, several, crossing = (sum(getattr(day, name) for day in days) for name in ("shifts", "several", "crossing"))
    on_time = counted["events_in"] - counted["late"] - counted["rejected"]
    rows: list[tuple[object, str]] = [
        (f"{several} of {shifts}", "final shifts hold several flights"),
        (crossing, "go on over midnight, from the interval of one run into that of the next"),
        (
            f"{counted['events_in']} = {on_time} + {counted['late']} + {counted['rejected']}",
            "records in are on time, late or rejected: no row is missing",
        ),
    ]
    if changes is None:
        rows.append(("--days 2", "and more: a day is overwritten, records come late, and readers run again"))
    else:
        rows.append((f"{changes.reopened} of {changes.late}", "late records are in their windows after all"))
        rows.append((f"{len(changes.days)} of {len(days)}", "days were read again, each once, and their month once"))
    return table("Numbers to look at", ("", ""), rows)


def _longest_shifts(config: Config) -> list[dict[str, Any]]:
    tables = PipelineTables(warehouse_of(config), PIPELINE)
    rows = results.latest(read_table(tables.warehouse, tables.open(results.NAME)), ("carrier", "origin"))
    gap = _session_gap(config)
    length = pc.subtract(rows["window_end"].cast("int64"), rows["window_start"].cast("int64"))
    ordered = rows.append_column("length", length).sort_by(
        [("length", "descending"), ("flights", "descending"), ("carrier", "ascending"), ("origin", "ascending")]
    )
    return [
        {
            **{name: row[name] for name in ("carrier", "origin", "flights", "air_minutes", "longest_leg")},
            "first": row["window_start"],
            "last": row["window_end"] - gap,
        }
        for row in ordered.slice(0, 5).to_pylist()
    ]


def _session_gap(config: Config) -> Any:
    from tidegate.pipelines.definition.load import load_pipeline

    assigner = getattr(load_pipeline(config, PIPELINE).compute, "assigner", None)
    gap = None if assigner is None else assigner.gap_of_every_element
    if gap is None:
        raise TidegateError(f"{PIPELINE} no longer has session windows")
    return timedelta(milliseconds=gap)


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
            (f"{command} runs {PIPELINE} {option}", "its epochs: a day each, then what changed afterwards"),
            (f"{command} report {PIPELINE} {option}", "a page with pictures of the run"),
            (f"{command} snapshot list {PIPELINE} {option}", "the snapshots, one a run"),
            (f"{command} snapshot show {PIPELINE} {option}", "what is open: windows and their timers"),
            (f"{command} demo --serve", "the same, with Airflow's page kept open"),
        ],
    )


def _command() -> str:
    """Return the command to type: `tidegate`, or its path if it is not on the PATH."""
    beside = Path(sys.executable).parent / "tidegate"
    if shutil.which("tidegate") or not beside.exists():
        return "tidegate"
    return str(beside.relative_to(Path.cwd())) if beside.is_relative_to(Path.cwd()) else str(beside)

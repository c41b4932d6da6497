"""The summary at the end of the demo, read from the tables it made."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from tidegate.pipelines.cli.screen import Screen, moment, table
from tidegate.pipelines.config import Config
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.snapshots.head import read_snapshot
from tidegate.pipelines.storage import read_table, warehouse_of
from tidegate.pipelines.tables import epochs, results
from tidegate.pipelines.tables.counters import FATES, FIRED, fired
from tidegate.pipelines.tables.pipeline_tables import PipelineTables

_COUNTED = ("events_in", *FATES)


def show_summary(screen: Screen, config: Config, pipelines: Sequence[str], records: int, seconds: float) -> None:
    """Show the input and the output of each pipeline.

    Raises:
        TidegateError: a row is missing: events in are not on time + late + filtered.
    """
    summaries = [_summary(config, name) for name in pipelines]
    for summary in summaries:
        counted = sum(summary[name] for name in FATES)
        if summary["events_in"] != counted or summary["events_in"] != records:
            raise TidegateError(
                f"{summary['pipeline']}: the source has {records} records, the epochs read {summary['events_in']} and "
                f"counted {counted}. Please report this with the folder of the demo"
            )
    longest = _longest_sessions(config)
    screen.show(
        {"pipelines": summaries, "longest_sessions": longest, "seconds": round(seconds, 1)},
        "",
        _summary_table(summaries),
        "",
        table(
            "The five longest duty sessions",
            (
                "aircraft",
                "first departure (UTC)",
                "last departure (UTC)",
                "flights",
                "air minutes",
                "longest leg",
                "route",
            ),
            [
                (
                    session["tailnum"],
                    moment(session["first"]),
                    moment(session["last"], session["first"]),
                    session["flights"],
                    session["air_minutes"],
                    f"{session['longest_leg']} mi",
                    f"{session['first_airport']} to {session['last_airport']}",
                )
                for session in longest
            ],
            right=("flights", "air minutes", "longest leg"),
        ),
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
    counted = {column: pc.sum(rows[column]).as_py() for column in (*_COUNTED, *FIRED)}
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


def _longest_sessions(config: Config) -> list[dict[str, Any]]:
    tables = PipelineTables(warehouse_of(config), "aircraft_duty")
    rows = results.latest(read_table(tables.warehouse, tables.open(results.NAME)), ("tailnum",))
    gap = _session_gap(config)
    length = pc.subtract(rows["window_end"].cast("int64"), rows["window_start"].cast("int64"))
    ordered = rows.append_column("length", length).sort_by(
        [("length", "descending"), ("air_minutes", "descending"), ("tailnum", "ascending")]
    )
    return [
        {
            **{
                name: row[name]
                for name in ("tailnum", "flights", "air_minutes", "longest_leg", "first_airport", "last_airport")
            },
            "first": row["window_start"],
            "last": row["window_end"] - gap,
        }
        for row in ordered.slice(0, 5).to_pylist()
    ]


def _session_gap(config: Config) -> Any:
    from tidegate.pipelines.definition.load import load_pipeline

    assigner = getattr(load_pipeline(config, "aircraft_duty").compute, "assigner", None)
    gap = None if assigner is None else assigner.gap_of_every_element
    if gap is None:
        raise TidegateError("aircraft_duty no longer has session windows")
    return timedelta(milliseconds=gap)


def _where(config: Config, pipelines: Sequence[str]) -> Any:
    rows = [("tables", config.warehouse_uri)]
    for name in pipelines:
        docs = config.quality_folder(name) / "index.html"
        rows.append((f"Data Docs of {name}", str(docs)))
    rows.append(("logs of the runs", str(config.work_folder / "runs")))
    return table("Where things are", ("", ""), rows)


def _next(config: Config) -> Any:
    command, option = _command(), f"--config {config.file}"
    return table(
        "What to type next",
        ("", ""),
        [
            (f"{command} results aircraft_duty --sort air_minutes {option}", "the windows"),
            (f"{command} snapshot list aircraft_duty {option}", "the snapshots, one a run"),
            (f"{command} snapshot show aircraft_duty {option}", "what is open: windows and their timers"),
            (f"{command} demo --serve", "the same, with Airflow's page kept open"),
        ],
    )


def _command() -> str:
    """Return the command to type: `tidegate`, or its path if it is not on the PATH."""
    beside = Path(sys.executable).parent / "tidegate"
    if shutil.which("tidegate") or not beside.exists():
        return "tidegate"
    return str(beside.relative_to(Path.cwd())) if beside.is_relative_to(Path.cwd()) else str(beside)

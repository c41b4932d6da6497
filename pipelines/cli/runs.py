"""`tidegate runs` shows the epochs of a pipeline from table `epochs`. Starts no JVM."""

from __future__ import annotations

from typing import Any

import click

from tidegate.pipelines.cli.screen import Screen, cell, moment, table, with_screen
from tidegate.pipelines.storage import active_files
from tidegate.pipelines.tables import epochs
from tidegate.pipelines.tables.counters import ROWS_GONE, ROWS_OUT, filtered, fired
from tidegate.windowing.time import show_duration

_COLUMNS = (
    *(
        "epoch",
        "kind",
        "interval (UTC)",
        "in",
        "on time",
        "late",
        "filtered",
        "fired",
        "rows out",
        "open",
        "watermark",
        "lag",
        "seconds",
    ),
    "started (UTC)",
)


_COUNTS = (*_COLUMNS[3:10], "lag", "seconds")
_GONE = "gone"
"""Rows that went from the source: a column only if rows went in an epoch that is shown."""
_AFTER_IN = _COLUMNS.index("in") + 1


@click.command()
@click.argument("pipeline")
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help="How many to show; 0 for all.")
@click.option("--stale", is_flag=True, help="Show also epochs whose results were replaced.")
@with_screen
def runs(screen: Screen, pipeline: str, limit: int, stale: bool) -> None:
    """Show the epochs of PIPELINE, the newest first: their events, their results, how long they took."""
    tables = screen.tables(pipeline)
    rows: list[dict[str, Any]] = []
    total = 0
    screen.tell_if_never_run(tables)
    if tables.exist:
        handle = tables.open(epochs.NAME)
        total = sum(file["num_records"] for file in active_files(handle))
        rows = epochs.newest(tables.warehouse, handle, limit or None, stale).to_pylist()
    for row in rows:
        row["phases"] = dict(row["phases"] or ())
    cells = [_cells(row) for row in rows]
    columns = list(_COLUMNS)
    if any(row.get(ROWS_GONE) for row in rows):
        columns.insert(_AFTER_IN, _GONE)
        for row, line in zip(rows, cells, strict=True):
            line.insert(_AFTER_IN, cell(row[ROWS_GONE]))
    screen.show(rows, table(f"epochs of {pipeline} ({len(rows)} of {total})", columns, cells, (*_COUNTS, _GONE)))


def lag(millis: int | None) -> str:
    """Return a watermark lag as text, in the largest unit that fits into it; `-` for None."""
    return "-" if millis is None else show_duration(millis)


def _cells(row: dict[str, Any]) -> list[object]:
    start, end = row["interval_start"], row["interval_end"]
    return [
        row["epoch"],
        f"{row['kind']}, stale" if row["stale"] else row["kind"],
        "" if start is None else f"{moment(start)} to {moment(end, start)}",
        row["events_in"],
        row["on_time"],
        row["late"],
        filtered(row),
        fired(row),
        cell(row.get(ROWS_OUT)),
        row["open_windows"],
        moment(row["watermark"]),
        # The user chose the interval of a backfill, so its age says nothing about the run.
        "-" if row["kind"] == "backfill" else lag(row.get("watermark_lag_ms")),
        cell(row["phases"].get("job")),
        moment(row["started_at"]),
    ]

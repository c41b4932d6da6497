"""Pipelines that correct their windows, a lake for them, and the effect of a change; no JVM runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.lake import EVENTS, LOCAL, Lake, at, hourly_pipeline, session_pipeline
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.run.stream import Stream

CORRECTING = DeltaSource("events", timestamp="at", changes="correct")
HOURS = hourly_pipeline(source=CORRECTING)
SESSIONS = session_pipeline(source=CORRECTING)

Panes = list[tuple[str, str, int, str, int]]


def two_users(folder: Path) -> Lake:
    """Two users before 11:00, whose hours and sessions have fired, and one whose windows are open."""
    lake = Lake(folder / "lake")
    lake.append(("ann", at("10:00"), 1), ("ann", at("10:20"), 2), ("ann", at("10:40"), 3), ("bob", at("10:30"), 4))
    lake.append(("cem", at("14:00"), 5), ("cem", at("14:10"), 6))
    return lake


def panes(lake: Lake, pipeline: Pipeline, after: int) -> Panes:
    """Return the panes of the epochs after a given one."""
    rows = [row for row in lake.rows(pipeline, "results").to_pylist() if row["epoch"] > after]
    found = [
        (row["user"], f"{row['window_start']:%H:%M}", row["epoch"], row["pane"], row["op"], row["total"])
        for row in rows
    ]
    return [(user, start, pane, op, total) for user, start, _, pane, op, total in sorted(found)]


def newest(lake: Lake, pipeline: Pipeline) -> int:
    return lake.snapshot(pipeline).manifest.epoch


def overwritten(lake: Lake, *rows: tuple[str, Any, int]) -> None:
    table = pa.Table.from_pylist([dict(zip(EVENTS.names, row, strict=True)) for row in rows], schema=EVENTS)
    write_deltalake(lake.path("events"), table, mode="overwrite")


class Crash(Exception):
    """Ends a driver between two steps."""


def crash_after(step: str) -> Callable[[str], None]:
    """Return a listener that ends a driver after a step of its first new epoch. Recovery reports steps of the epoch
    before.
    """
    steps: list[str] = []

    def tell(name: str) -> None:
        if name == "planned" or steps:
            steps.append(name)
        if step in steps:
            raise Crash(name)

    return tell


def crashed_after(lake: Lake, pipeline: Pipeline, step: str) -> None:
    """Run a stream whose driver ends after a step of its first new epoch."""
    with pytest.raises(Crash), lake.driver(LOCAL, pipeline, crash_after(step)) as driver:
        Stream(driver, lambda manifest: None).run_available()

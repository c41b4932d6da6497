"""A query whose process is killed with SIGKILL at any step of a batch has each final window and correction once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.lake import at, session_pipeline
from tests.pipelines.by_hand import ByHand
from tests.pipelines.observe.reading.query import STEPS, Query, values_of
from tests.pipelines.observe.reading.targets import project
from tidegate.pipelines.definition import results
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.windowing import Accumulation, Count, EventTimeSessionWindows, Sum, Windows
from tidegate.windowing.time import to_millis


def visits(folder: Path) -> ByHand:
    windows = Windows(
        EventTimeSessionWindows.with_gap(timedelta(minutes=30)),
        allowed_lateness=timedelta(hours=2),
        accumulation=Accumulation.RETRACTING,
        aggregate={"events": Count(), "total": Sum("value")},
    )
    project(folder, "visits")
    return ByHand(folder, session_pipeline(compute=windows, name="visits"))


def killed_at(query: Query, batch: int, step: str) -> None:
    """Run a query as a process, which ends itself at a step."""
    arguments = [str(query.checkpoint), str(query.target), json.dumps(query.options), str(batch), step]
    code = subprocess.run(
        [sys.executable, "-m", "tests.pipelines.observe.reading.query", *arguments], check=False
    ).returncode
    assert code == -signal.SIGKILL


def live_on(made: ByHand, number: int) -> None:
    """An epoch in which windows become final and others are corrected; after each third one a restore."""
    clock = at("10:00") + timedelta(minutes=70 * number)
    rows = [("ann", clock, 1), ("bob", clock - timedelta(minutes=50), 2), ("zoë", clock - timedelta(minutes=110), 3)]
    made.epoch(*rows, watermark=clock)
    if number % 3 == 2:
        before = made.head()
        made.epoch(("cem", clock, 4), watermark=clock + timedelta(minutes=40))
        restore(made.tables, before, to_millis(clock) + number, keep_stale=number % 2 == 0)


def final_of(made: ByHand) -> Counter[tuple[Any, ...]]:
    rows = results.final(results.latest(made.rows("results"), ("user",)), made.head().manifest.watermark)
    return Counter(tuple(values) for _, *values in values_of(rows))


def followed(folder: Path, kills: list[str]) -> None:
    """A query that is killed at a step of each batch, while its pipeline goes on between kill and restart."""
    made = visits(folder)
    query = Query(folder / "checkpoint", folder / "target", {"path": "visits", "config": str(folder / "tidegate.toml")})
    live_on(made, 0)
    for number, step in enumerate(kills):
        live_on(made, number + 1)
        batch = len(list((query.checkpoint / "commits").glob("[0-9]*")))
        killed_at(query, batch, step)
        before = {file.name: file.read_text() for file in query.target.glob("[0-9]*")}
        live_on(made, number + 2)
        query.run()
        assert {name: (query.target / name).read_text() for name in before} == before, "a batch is the same again"
        assert query.total() == final_of(made)


@pytest.mark.long
def test_a_query_that_was_killed_has_everything_once(tmp_path: Path) -> None:
    followed(tmp_path, ["written"])


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_a_query_that_is_killed_at_every_step_has_everything_once(tmp_path: Path) -> None:
    followed(tmp_path, [*STEPS] * 4)

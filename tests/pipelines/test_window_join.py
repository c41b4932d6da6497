"""The window join over two Delta tables: equal to a join of all rows in each window, whatever the epochs."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.lake import DAY0, LOCAL, Lake, at, hourly_pipeline
from tidegate.pipelines import DeltaSource, Input
from tidegate.pipelines.ask.reason import Cause
from tidegate.pipelines.ask.waiting import open_windows
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.observe.report.columns import Grid
from tidegate.windowing import IntervalJoin, TumblingEventTimeWindows, WatermarkStrategy, WindowJoin
from tidegate.windowing.errors import IllegalArgument

HOUR = timedelta(hours=1)
Row = tuple[str, datetime, int]


def drawn(seed: int) -> list[Row]:
    draw = random.Random(seed)
    return [
        (draw.choice(["ann", "bob", "cem"]), at(f"{draw.randrange(9, 15)}:{draw.randrange(60):02}"), number)
        for number in range(24)
    ]


def full_join(left: list[Row], right: list[Row]) -> list[tuple[Any, ...]]:
    windows: dict[Any, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, rows in enumerate((left, right)):
        for user, time, value in rows:
            windows[user, time.replace(minute=0)][side].append(value)
    return sorted(
        (user, start, str(one), str(other))
        for (user, start), (ones, others) in windows.items()
        for one in ones or [None]
        for other in others or [None]
    )


@pytest.mark.first(1)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_epochs_and_a_backfill_give_the_join_of_all_rows(tmp_path: Path, parallelism: int) -> None:
    lake = Lake(tmp_path)
    pipeline = hourly_pipeline(
        right=Input(source=DeltaSource("payments", timestamp="at")),
        compute=WindowJoin(TumblingEventTimeWindows.of(HOUR), "full"),
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(6 * HOUR),
        parallelism=parallelism,
    )
    left, right = drawn(1), drawn(2)
    for begin in range(0, 24, 8):
        lake.append(*left[begin : begin + 8])
        lake.append(*right[begin : begin + 8], table="payments")
        lake.stream(LOCAL, pipeline, files=1)
    snapshot = lake.snapshot(pipeline)
    waiting, count = open_windows(lake.tables(pipeline).warehouse, snapshot, 0, lake.clock())
    assert count == len(waiting) == len({window[:2] for window in full_join(left, right)}), "not one for each input"
    assert snapshot.manifest.counters["open_windows"] == count
    assert all(each.reason.kind is Cause.WATERMARK for each in waiting)
    for table in ("events", "payments"):
        lake.append(("end", at("23:00"), 0), table=table)
    lake.stream(LOCAL, pipeline)
    assert found(lake, pipeline) == full_join(left, right)

    again = replace(pipeline, name="again")
    lake.backfill(LOCAL, again, DAY0, DAY0 + timedelta(hours=16))
    assert found(lake, again) == full_join(left, right)


def test_a_backfill_that_runs_again_joins_the_rows_as_they_are_now(tmp_path: Path) -> None:
    """The remedy for rows that changed in a source of a join, which has no corrections."""
    lake, end = Lake(tmp_path), DAY0 + timedelta(hours=24)
    payments = DeltaSource("payments", timestamp="at")
    pipeline = hourly_pipeline(
        right=Input(source=payments), compute=WindowJoin(TumblingEventTimeWindows.of(HOUR), "full")
    )
    left, right = drawn(1), drawn(2)
    lake.append(*left)
    lake.append(*right, table="payments")
    lake.backfill(LOCAL, pipeline, DAY0, end, "12h")
    DeltaTable(lake.path("payments")).update(predicate="value < 5", updates={"value": "value + 100"})
    DeltaTable(lake.path("payments")).delete("user = 'cem'")
    with pytest.raises(Refused, match="Run everything again from the first interval"):
        lake.backfill(LOCAL, pipeline, end, end + 12 * HOUR)
    with pytest.raises(IllegalArgument, match="has a join"):
        replace(pipeline, right=Input(source=replace(payments, changes="correct")))
    lake.backfill(LOCAL, pipeline, DAY0, end, "12h", and_following=True, again=True)
    now = [(user, time, value + 100 * (value < 5)) for user, time, value in right if user != "cem"]
    assert found(lake, pipeline) == full_join(left, now)


def test_what_a_join_holds_is_counted_by_element_and_by_window(tmp_path: Path) -> None:
    lake, payments = Lake(tmp_path), Input(source=DeltaSource("payments", timestamp="at"))
    of_windows = hourly_pipeline("windows", right=payments, compute=WindowJoin(TumblingEventTimeWindows.of(HOUR)))
    of_times = hourly_pipeline("times", right=payments, compute=IntervalJoin.between(-HOUR, HOUR))
    lake.append(("ann", at("12:10"), 1), ("ann", at("12:10"), 2))
    lake.append(("ann", at("12:10"), 3), table="payments")
    project = lake.project(of_windows, of_times)
    for name, open_now in (("windows", 1), ("times", 3)):
        project.stream(name)
        assert project.why(name).open_windows == len(project.why(name).windows) == open_now
        grid = next(iter(project.snapshots.show(name).shown()))
        assert isinstance(grid, Grid)
        assert ("rows of the state", 2) in grid.rows
        assert (("windows", 1) in grid.rows) is (name == "windows")


def found(lake: Lake, pipeline: Any) -> list[tuple[Any, ...]]:
    def value(row: dict[str, Any] | None) -> str:
        return str(row and row["value"])

    rows = [row for row in lake.rows(pipeline, "results").to_pylist() if not row["stale"]]
    return sorted((row["user"], row["window_start"], value(row["left"]), value(row["right"])) for row in rows)

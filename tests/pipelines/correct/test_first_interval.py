"""Corrections of a backfill's windows at its edges: before its first interval, and behind an older snapshot."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.expectations.broken import broken_in
from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots.retention import Retention, vacuum
from tidegate.windowing import (
    Accumulation,
    Count,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    Windows,
)
from tidegate.windowing.assigners import WindowAssigner

DAY, HOUR = timedelta(days=1), timedelta(hours=1)

SUMS: dict[str, Any] = {"aggregate": {"events": Count(), "total": Sum("value")}}

SOURCE = DeltaSource("events", timestamp="at", changes="correct")

DAYS = hourly_pipeline(source=SOURCE, compute=Windows(TumblingEventTimeWindows.of(DAY), **SUMS))

OVERLAPPING = hourly_pipeline(source=SOURCE, compute=Windows(SlidingEventTimeWindows.of(4 * HOUR, HOUR), **SUMS))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A row before 10:00, where the first interval begins, and some after it."""
    lake = Lake(tmp_path)
    lake.append(("ann", at("08:30"), 100), ("ann", at("10:00"), 1), ("ann", at("11:00"), 2), ("ann", at("05:00", 1), 7))
    return lake


def totals(lake: Lake, pipeline: Pipeline) -> dict[str, int]:
    """Return the total of each window that begins on the first day or before, by its start."""
    rows = lake.latest(pipeline).to_pylist()
    return {
        f"{row['window_start']:%H:%M}": row["total"] for row in rows if row["window_end"] <= at("00:00", 1) + 3 * HOUR
    }


@pytest.mark.first(1)
@pytest.mark.parametrize("pipeline", [DAYS, OVERLAPPING], ids=["days", "overlapping"])
def test_a_window_across_the_start_of_the_first_interval_is_corrected_without_older_rows(
    lake: Lake, pipeline: Pipeline
) -> None:
    lake.backfill(LOCAL, pipeline, at("10:00"), at("00:00", 1))
    lake.backfill(LOCAL, pipeline, at("00:00", 1), at("04:00", 1))
    before = totals(lake, pipeline)
    DeltaTable(lake.path("events")).update({"value": "value + 1000"}, predicate="value = 1")
    lake.backfill(LOCAL, pipeline, at("04:00", 1), at("08:00", 1))
    holding = {"00:00"} if pipeline is DAYS else {"07:00", "08:00", "09:00", "10:00"}
    assert totals(lake, pipeline) == {start: total + 1000 * (start in holding) for start, total in before.items()}
    assert broken_in(lake.tables(pipeline), pipeline) == set()


@pytest.mark.first(1)
@pytest.mark.parametrize("time", ["10:30", "09:00"], ids=["in the interval", "before it, which was read"])
def test_late_rows_are_reopened_without_older_rows(lake: Lake, time: str) -> None:
    lake.backfill(LOCAL, DAYS, at("10:00"), at("00:00", 1))
    lake.append(("ann", at(time), 50))
    lake.backfill(LOCAL, DAYS, at("00:00", 1), at("08:00", 1))
    lake.reopen(LOCAL, DAYS)
    assert totals(lake, DAYS) == {"00:00": 53}
    assert broken_in(lake.tables(DAYS), DAYS) == set()


def test_windows_older_than_the_kept_epochs_are_corrected(lake: Lake) -> None:
    """Rows of table epochs are removed after a while; a deletion must still reach the oldest window."""
    hours = hourly_pipeline(source=SOURCE)
    for hour in range(10, 13):
        lake.backfill(LOCAL, hours, at(f"{hour}:00"), at(f"{hour + 1}:00"))
    tables = lake.tables(hours)
    vacuum(tables, Retention(1, *[timedelta(0)] * 3), lake.clock() + 1_000_000)
    assert lake.rows(hours, "epochs")["epoch"].to_pylist() == [3], "the others are old"
    DeltaTable(lake.path("events")).delete("value = 1")
    lake.backfill(LOCAL, hours, at("13:00"), at("14:00"))
    assert {f"{row['window_start']:%H:%M}" for row in lake.latest(hours).to_pylist()} == {"11:00"}


@pytest.mark.first(1)
@pytest.mark.parametrize("changes", ["correct", "ignore", "refuse"])
def test_an_interval_behind_a_correction_is_not_run_again_whatever_the_setting_is_then(
    lake: Lake, changes: str
) -> None:
    """The correction would be undone, also for windows of earlier intervals."""
    hours = hourly_pipeline(source=SOURCE)
    for hour in range(10, 13):
        lake.backfill(LOCAL, hours, at(f"{hour}:00"), at(f"{hour + 1}:00"))
    DeltaTable(lake.path("events")).delete("value = 1")
    lake.backfill(LOCAL, hours, at("13:00"), at("14:00"))
    other = replace(hours, source=replace(SOURCE, changes=changes), max_ahead=2 * HOUR)
    with pytest.raises(Refused, match=r"rows of the source have changed since|is not append-only"):
        lake.backfill(LOCAL, other, at("12:00"), at("13:00"))
    lake.backfill(LOCAL, other, at("13:00"), at("14:00"))
    assert {f"{row['window_start']:%H:%M}" for row in lake.latest(hours).to_pylist()} == {"11:00"}


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "assigner",
    [TumblingEventTimeWindows.of(HOUR), EventTimeSessionWindows.with_gap(HOUR / 2)],
    ids=["hours", "sessions"],
)
def test_a_discarding_window_that_is_open_for_late_rows_is_corrected(tmp_path: Path, assigner: WindowAssigner) -> None:
    lake = Lake(tmp_path)
    compute = Windows(assigner, allowed_lateness=9 * HOUR, accumulation=Accumulation.DISCARDING, **SUMS)
    pipeline = hourly_pipeline(source=DeltaSource("events", timestamp="at", changes="correct"), compute=compute)
    lake.append(("ann", at("10:00"), 1), ("ann", at("10:20"), 2), ("bob", at("10:30"), 4))
    lake.append(("cem", at("14:00"), 5))
    lake.stream(LOCAL, pipeline)

    def totals() -> dict[str, int]:
        """Return the total of all valid panes, by user."""
        rows = lake.rows(pipeline, "results").to_pylist()
        sums: dict[str, int] = {}
        for row in rows:
            sums[row["user"]] = sums.get(row["user"], 0) + (1 if row["op"] == "+" else -1) * row["total"]
        return sums

    table = DeltaTable(lake.path("events"))
    table.update({"user": "'dan'"}, predicate="value = 1")
    lake.stream(LOCAL, pipeline)
    assert totals() == {"ann": 2, "bob": 4, "dan": 1}, "dan has a window that is open and has fired"
    lake.append(("dan", at("10:05"), 10), ("ann", at("10:10"), 20))
    lake.stream(LOCAL, pipeline)
    assert totals() == {"ann": 22, "bob": 4, "dan": 11}
    DeltaTable(lake.path("events")).delete("value = 10 or user = 'bob'")
    lake.append(("bob", at("10:31"), 7))
    lake.stream(LOCAL, pipeline)
    assert totals() == {"ann": 22, "bob": 7, "dan": 1}
    lake.append(("cem", at("23:59"), 5))
    lake.stream(LOCAL, pipeline)
    assert totals() == {"ann": 22, "bob": 7, "dan": 1, "cem": 5}
    assert broken_in(lake.tables(pipeline), pipeline) == set()

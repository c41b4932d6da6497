"""A row that was rejected stays in table rejects and in no window, whatever later code would do with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.expectations.broken import broken_by_rules
from tests.lake import LOCAL, Lake, at, hourly_pipeline, session_pipeline
from tidegate.expectations.pinned import pin
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.windowing import Count, EventTimeSessionWindows, GapColumn, Max, Windows

NOON = datetime(2024, 3, 1, 12)
MINUTE = timedelta(minutes=1)


def by_gap(gap: str) -> dict[str, Any]:
    sessions = EventTimeSessionWindows.with_dynamic_gap(GapColumn("gap"))
    return {"columns": {"gap": gap}, "compute": Windows(sessions, aggregate={"events": Count()})}


def by_largest_time(time: str) -> dict[str, Any]:
    windows = hourly_pipeline().compute
    assert isinstance(windows, Windows)
    return {
        "columns": {"seen": time},
        "compute": replace(windows, aggregate={"events": Count(), "newest": Max("seen")}),
    }


CASES = pytest.mark.parametrize(
    ("made", "strict", "lenient", "row"),
    [
        (hourly_pipeline, {}, {"null_keys": "keep"}, (None, "11:00", 4)),
        (session_pipeline, by_gap("nullif(value, 4) * 60000"), by_gap("value * 60000"), ("bob", "11:00", 4)),
        (session_pipeline, {"not_before": NOON}, {}, ("bob", "11:00", 4)),
        (
            hourly_pipeline,
            by_largest_time("timestamp_seconds(CASE WHEN value = 4 THEN 300000000000 ELSE value END)"),
            by_largest_time("timestamp_seconds(value)"),
            ("bob", "11:00", 4),
        ),
    ],
)


def pipelines_of(
    made: Callable[..., Pipeline], strict: dict[str, Any], lenient: dict[str, Any], **source: Any
) -> list[Pipeline]:
    return [
        made(
            source=DeltaSource("events", timestamp="at", not_before=options.get("not_before"), **source),
            **{name: value for name, value in options.items() if name != "not_before"},
        )
        for options in (strict, lenient)
    ]


def holds(lake: Lake, pipeline: Pipeline, rejected: int) -> None:
    """Assert that table rejects has as many rows, and that windows and rejected rows agree with the source."""
    assert lake.rows(pipeline, "rejects")["value"].to_pylist() == [4] * rejected
    assert broken_by_rules(pin(lake.tables(pipeline), pipeline)) == set()
    found = lake.project(pipeline).verify(pipeline.name, sample="all")
    assert found.faults == ()


@pytest.mark.first(1)
@CASES
def test_a_reopened_window_does_not_count_a_row_that_is_in_table_rejects(
    made: Callable[..., Pipeline], strict: dict[str, Any], lenient: dict[str, Any], row: Any, tmp_path: Path
) -> None:
    lake, (before, after) = Lake(tmp_path), pipelines_of(made, strict, lenient)
    user, time, value = row
    lake.append((user, at(time), value), ("end", at("20:00"), 1))
    lake.stream(LOCAL, before)
    lake.append((user, at(time), 5))
    lake.stream(LOCAL, after)
    DeltaTable(lake.path("events")).optimize.compact()
    assert lake.project(after).late.reopen(after.name).left == ()
    assert [each["events"] for each in lake.latest(after).to_pylist() if each["user"] == user] == [1]
    holds(lake, after, rejected=1)


@pytest.mark.first(2)
@CASES
def test_a_correction_leaves_a_rejected_row_rejected_until_it_is_deleted(
    made: Callable[..., Pipeline], strict: dict[str, Any], lenient: dict[str, Any], row: Any, tmp_path: Path
) -> None:
    lake, (before, after) = Lake(tmp_path), pipelines_of(made, strict, lenient, changes="correct")
    user, time, value = row
    lake.append((user, at(time), value), ("end", at("20:00"), 1))
    lake.stream(LOCAL, before)
    lake.append((user, at("21:00"), 5), (user, at("21:30"), 6), ("end", at("23:59"), 1))
    lake.stream(LOCAL, after)
    DeltaTable(lake.path("events")).update({"value": "7"}, predicate="value = 5")
    lake.append((user, at(time), 8))
    lake.stream(LOCAL, after)
    holds(lake, after, rejected=1)
    lake.reopen(LOCAL, after)
    assert sum(each["events"] for each in lake.latest(after).to_pylist() if each["user"] == user) == 3
    holds(lake, after, rejected=1)
    DeltaTable(lake.path("events")).delete("value = 4")
    (manifest, *_) = lake.stream(LOCAL, after)
    assert (manifest.counters["rows_deleted"], manifest.counters["deleted_in_windows"]) == (1, 0)
    assert sum(each["events"] for each in lake.latest(after).to_pylist() if each["user"] == user) == 3
    holds(lake, after, rejected=0)


@pytest.mark.first(1)
@CASES
def test_later_intervals_of_a_backfill_do_not_count_what_the_first_rejected(
    made: Callable[..., Pipeline], strict: dict[str, Any], lenient: dict[str, Any], row: Any, tmp_path: Path
) -> None:
    lake, (before, after) = Lake(tmp_path), pipelines_of(made, strict, lenient)
    user, time, value = row
    lake.append((user, at(time), value), (user, at(time), 5), ("end", at("20:00"), 1))
    lake.backfill(LOCAL, before, at("09:00"), at("10:00"))
    assert lake.rows(before, "rejects")["value"].to_pylist() == (
        [4, 5] if user is None or "not_before" in strict else [4]
    )
    lake.backfill(LOCAL, after, at("10:00"), at("13:00"))
    lake.backfill(LOCAL, after, at("13:00"), at("14:00"))
    counted = sum(each["events"] for each in lake.latest(after).to_pylist() if each["user"] == user)
    assert counted + len(lake.rows(after, "rejects")) == 2
    assert lake.project(after).verify(after.name, sample="all").faults == ()
    # The way to count them: the first interval again, and those after it.
    lake.backfill(LOCAL, after, at("09:00"), at("10:00"), and_following=True, again=True)
    assert sum(each["events"] for each in lake.latest(after).to_pylist() if each["user"] == user) == 2
    holds(lake, after, rejected=0)


@pytest.mark.first(1)
@CASES
def test_a_deleted_row_leaves_its_window_although_the_code_would_reject_it_now(
    made: Callable[..., Pipeline], strict: dict[str, Any], lenient: dict[str, Any], row: Any, tmp_path: Path
) -> None:
    lake, (after, before) = Lake(tmp_path), pipelines_of(made, strict, lenient, changes="correct")
    user, time, value = row
    lake.append((user, at(time), value), ("end", at("20:00"), 1))
    lake.stream(LOCAL, before)
    DeltaTable(lake.path("events")).delete("value = 4")
    (manifest, *_) = lake.stream(LOCAL, after)
    assert (manifest.counters["rows_deleted"], manifest.counters["deleted_in_windows"]) == (1, 1)
    assert [each for each in lake.latest(after).to_pylist() if each["user"] == user] == []
    holds(lake, after, rejected=0)

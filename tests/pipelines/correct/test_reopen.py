"""Reopening changes the tables only by corrections, marks and state."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.commit_times import vacuum_with_no_hours
from tests.lake import DAY0, EVENTS, LOCAL, Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import ByHand
from tests.pipelines.correct.arrivals import NOW, Arrivals
from tests.pipelines.correct.lakes import Crash, crash_after
from tidegate.pipelines import Pipeline
from tidegate.pipelines.correct.correct import reopen
from tidegate.pipelines.correct.request import Selection, check_reopenable
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.head import require_snapshot
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.run.stream import Stream
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.windowing import (
    Count,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Windows,
)
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.time import to_millis

HOUR = timedelta(hours=1)


@pytest.fixture
def hours(tmp_path) -> Arrivals:
    """Hours of ann and bob, with a late row each at 10:20 and one of ann at 12:20; the watermark is 15:00."""
    arrivals = Arrivals(ByHand(tmp_path, hourly_pipeline()))
    arrivals.commit(("ann", at("10:10"), 1), ("bob", at("10:10"), 2), ("ann", at("14:10"), 3), watermark=at("13:30"))
    arrivals.commit(("ann", at("10:20"), 10), ("bob", at("10:20"), 20), ("ann", at("12:20"), 30), watermark=at("15:00"))
    return arrivals


def marks(arrivals: Arrivals) -> dict[tuple[str, int], int | None]:
    """Return the epoch that reopened each late row, by user and value."""
    return {(row["user"], row["value"]): row["reopened"] for row in arrivals.by_hand.rows("late").to_pylist()}


def test_a_correction_takes_the_old_pane_back_and_puts_out_the_new_one(hours: Arrivals) -> None:
    made = hours.reopen(Selection(key=("bob",)))
    assert made is not None
    rows = [row for row in hours.by_hand.rows("results").to_pylist() if row["user"] == "bob"]
    told = [(row["epoch"], row["op"], row["pane"], row["timing"], row["total"]) for row in rows]
    assert sorted(told) == [(1, "+", 0, "on_time", 2), (3, "+", 1, "late", 22), (3, "-", 0, "on_time", 2)]
    assert (made.counters["fired_late"], made.counters["retracted"], made.counters["events_in"]) == (1, 1, 0)


def test_where_somebody_compacted_the_state_what_is_not_corrected_stays(tmp_path: Path) -> None:
    arrivals = Arrivals(ByHand(tmp_path, hourly_pipeline(allowed_lateness=HOUR), parallelism=4))
    users = ("ann", "bob", "cem", "dan")
    for number, watermark in ((1, "10:30"), (2, "12:30")):
        arrivals.commit(*((user, at(f"1{number}:40"), 1) for user in users), watermark=at(watermark))
    arrivals.commit(("ann", at("10:10"), 5), watermark=at("12:30"))
    before = open_windows(arrivals)
    arrivals.by_hand.tables.open("state").optimize.compact()
    made = arrivals.reopen()
    assert made is not None
    assert arrivals.by_hand.head().manifest == made
    assert open_windows(arrivals) == before
    arrivals.commit(*((user, at("12:50"), 1) for user in users), watermark=at("14:30"))
    assert arrivals.final() == arrivals.in_event_order()


def open_windows(arrivals: Arrivals) -> list[tuple[str, datetime]]:
    rows = arrivals.by_hand.rows("state").to_pylist()
    return sorted((row["user"], row["window_start"]) for row in rows if row["user"])


def test_an_hour_of_late_rows_alone_gets_its_first_pane(hours: Arrivals) -> None:
    hours.reopen()
    (row,) = [row for row in hours.by_hand.rows("results").to_pylist() if row["window_start"] == at("12:00")]
    assert (row["op"], row["pane"], row["timing"], row["total"]) == ("+", 0, "late", 30)


def test_only_selected_rows_are_reopened_and_marked(hours: Arrivals) -> None:
    hours.reopen(Selection(key=("ann",), start=to_millis(at("12:00"))))
    assert marks(hours) == {("ann", 10): None, ("bob", 20): None, ("ann", 30): 3}
    hours.reopen(Selection(end=to_millis(at("11:00"))))
    assert marks(hours) == {("ann", 10): 4, ("bob", 20): 4, ("ann", 30): 3}


def test_late_rows_in_the_windows_of_selected_ones_are_reopened_with_them(tmp_path: Path) -> None:
    windows = Windows(SlidingEventTimeWindows.of(HOUR, HOUR / 2), aggregate={"events": Count()})
    arrivals = Arrivals(ByHand(tmp_path, hourly_pipeline(compute=windows)))
    arrivals.commit(("ann", at("20:10"), 1), watermark=at("20:00"))
    arrivals.commit(("ann", at("10:40"), 1), ("ann", at("11:10"), 2), ("ann", at("14:10"), 3), watermark=at("20:00"))
    made = arrivals.reopen(Selection(start=to_millis(at("10:30")), end=to_millis(at("11:00"))))
    assert made is not None
    assert made.counters["reopened"] == 2
    assert marks(arrivals) == {("ann", 1): 3, ("ann", 2): 3, ("ann", 3): None}
    assert [(row[1], row[3]) for row in arrivals.final()] == [(at("10:00"), 1), (at("10:30"), 2), (at("11:00"), 1)]


def test_a_key_that_is_none_of_the_pipelines_is_a_usage_error(hours: Arrivals) -> None:
    with pytest.raises(UsageError, match="the key has the columns user"):
        hours.reopen(Selection(key=("ann", "bob")))
    with pytest.raises(UsageError, match="after --start"):
        Selection(start=2, end=2)


@pytest.mark.first(1)
@pytest.mark.parametrize("step", ["operated", "committed"])
def test_a_crash_before_the_commit_leaves_nothing_and_after_it_is_rolled_forward(hours: Arrivals, step: str) -> None:
    with pytest.raises(Crash), hours.lake.driver(LOCAL, hours.by_hand.pipeline, crash_after(step)) as driver:
        reopen(driver, Selection())
    assert set(marks(hours).values()) == {None}
    compact(hours.by_hand.tables, "late")
    assert (hours.reopen() is None) == (step == "committed")
    assert set(marks(hours).values()) == {3}
    assert hours.final() == hours.in_event_order()
    assert hours.reopen() is None


def test_who_plans_beside_another_driver_can_not_commit(hours: Arrivals) -> None:
    def meanwhile(step: str) -> None:
        if step == "operated":
            hours.commit(("ann", at("16:00"), 1), watermark=at("15:30"))

    with (
        pytest.raises(Refused, match="another driver committed"),
        hours.lake.driver(LOCAL, hours.by_hand.pipeline, meanwhile) as driver,
    ):
        reopen(driver, Selection())


def test_a_restore_to_before_it_opens_the_rows_again_and_one_back_to_it_marks_them(hours: Arrivals) -> None:
    tables = hours.by_hand.tables
    before, unfinished = hours.by_hand.head(), hours.final()
    made = hours.reopen()
    assert made is not None
    after = hours.by_hand.head()
    restore(tables, before, NOW)
    assert set(marks(hours).values()) == {None}
    assert hours.final() == unfinished
    back = require_snapshot(tables, after.version)
    restore(tables, back, NOW)
    assert set(marks(hours).values()) == {made.epoch}
    assert hours.final() == hours.in_event_order()


def test_a_late_row_between_two_sessions_makes_them_one(tmp_path) -> None:
    arrivals = Arrivals(ByHand(tmp_path, session_pipeline()))
    arrivals.commit(("ann", at("10:00"), 1), ("ann", at("10:50"), 2), watermark=at("13:00"))
    arrivals.commit(("ann", at("10:25"), 4), watermark=at("13:00"))
    assert [row[1:3] for row in arrivals.final()] == [(at("10:00"), at("10:30")), (at("10:50"), at("11:20"))]
    first = next(row["window_id"] for row in arrivals.by_hand.rows("results").to_pylist() if row["total"] == 1)
    made = arrivals.reopen()
    assert made.counters["retracted"] == 2
    (row,) = [row for row in arrivals.by_hand.rows("results").to_pylist() if row["epoch"] == 3 and row["op"] == "+"]
    assert (row["window_id"], row["window_start"], row["window_end"], row["total"]) == (
        first,
        at("10:00"),
        at("11:20"),
        7,
    )


def test_a_late_row_that_joins_an_open_session_goes_into_the_state(tmp_path) -> None:
    """The closed session is retracted, because it is part of one that is still open."""
    arrivals = Arrivals(ByHand(tmp_path, session_pipeline(gap=HOUR)))
    arrivals.commit(("ann", at("10:00"), 1), ("bob", at("10:00"), 1), watermark=at("11:30"))
    arrivals.commit(("ann", at("11:40"), 2), ("ann", at("10:20"), 4), watermark=at("11:30"))
    arrivals.commit(("ann", at("10:45"), 8), watermark=at("12:00"))
    made = arrivals.reopen()
    assert (made.counters["fired_late"], made.counters["retracted"], made.counters["open_windows"]) == (0, 1, 1)
    assert [row[0] for row in arrivals.final()] == ["bob"]
    arrivals.commit(("ann", at("15:00"), 16), watermark=at("14:00"))
    assert arrivals.final() == arrivals.in_event_order()


def test_a_session_that_fired_and_is_still_open_keeps_its_id_and_goes_on_counting_panes(tmp_path) -> None:
    """The row of 12:15 met no session when it arrived too late; the row of 12:40 then let a session reach it."""
    arrivals = Arrivals(ByHand(tmp_path, session_pipeline(allowed_lateness=4 * HOUR)))
    arrivals.commit(("ann", at("13:00"), 1), watermark=at("14:40"))
    arrivals.commit(("bob", at("18:00"), 1), watermark=at("17:00"))
    arrivals.commit(("ann", at("12:15"), 2), watermark=at("17:00"))
    arrivals.commit(("ann", at("12:40"), 4), watermark=at("17:00"))
    made = arrivals.reopen()
    assert (made.counters["fired_late"], made.counters["retracted"]) == (1, 1)
    arrivals.commit(("ann", at("13:20"), 8), watermark=at("17:05"))
    panes = [row for row in arrivals.by_hand.rows("results").to_pylist() if row["user"] == "ann"]
    assert len({row["window_id"] for row in panes}) == 1
    told = sorted((row["epoch"], row["op"], row["pane"], row["total"]) for row in panes)
    assert told == [
        (1, "+", 0, 1),
        (4, "+", 1, 5),
        (4, "-", 0, 1),
        (5, "+", 2, 7),
        (5, "-", 1, 5),
        (6, "+", 3, 15),
        (6, "-", 2, 7),
    ]


@pytest.mark.parametrize(
    ("compute", "reason"),
    [
        (Windows(TumblingProcessingTimeWindows.of(HOUR), aggregate={"n": Count()}), "none of its rows is ever late"),
        (
            Windows(GlobalWindows(), PurgingTrigger.of(CountTrigger.of(3)), aggregate={"n": Count()}),
            "none of its rows is ever late",
        ),
        (Windows(TumblingEventTimeWindows.of(HOUR), CountTrigger.of(2), aggregate={"n": Count()}), "CountTrigger"),
        (Windows(EventTimeSessionWindows.with_gap(HOUR), reduce=lambda one, other: one), "your own function"),
    ],
)
def test_what_sees_the_order_of_arrival_is_refused_with_what_sees_it(compute: Windows, reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        check_reopenable(hourly_pipeline(compute=compute))


# --- after OPTIMIZE and VACUUM of the source ---------------------------------------------------------


def streamed(lake: Lake, pipeline: Pipeline) -> None:
    for time in ("10:10", "15:10", "10:20", "16:00"):
        lake.append(("ann", at(time), 1))
    lake.stream(LOCAL, pipeline, files=1)
    assert lake.rows(pipeline, "late").num_rows == 1
    DeltaTable(lake.path("events")).optimize.compact()
    vacuum_with_no_hours(lake.path("events"))


@pytest.mark.first(1)
@pytest.mark.parametrize("make", [hourly_pipeline, session_pipeline])
def test_they_are_taken_in_from_the_version_that_holds_the_same_rows(tmp_path: Path, make: Any) -> None:
    rewritten, pipeline = Lake(tmp_path), make()
    streamed(rewritten, pipeline)
    made = rewritten.reopen(LOCAL, pipeline)
    assert made.counters["reopened"] == 1
    rewritten.backfill(LOCAL, make(name="fresh"), DAY0, at("15:00"))
    closed = [row for row in rewritten.final(pipeline).to_pylist() if row["window_start"] < at("15:00")]
    fresh = rewritten.final(make(name="fresh")).to_pylist()
    names = ("user", "window_start", "window_end", "events", "total")
    assert [[row[name] for name in names] for row in closed] == [[row[name] for name in names] for row in fresh]


def test_a_position_that_stays_before_the_maintenance_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten = Lake(tmp_path)
    streamed(rewritten, hourly_pipeline())
    monkeypatch.setattr(SourceLog, "settled", lambda log, version: version)
    with pytest.raises(Refused, match="compacted and vacuumed since it was read"):
        rewritten.reopen(LOCAL, hourly_pipeline())


@pytest.mark.parametrize(
    "assigner",
    [
        TumblingEventTimeWindows.of(timedelta(hours=1)),
        SlidingEventTimeWindows.of(HOUR, HOUR / 3),
    ],
)
def test_there_is_nothing_to_reopen_in_a_first_commit_that_is_read_in_part(
    tmp_path: Path, assigner: WindowAssigner
) -> None:
    lake = Lake(tmp_path)
    rows = [{"user": user, "at": at("10:00"), "value": 1} for user in ("ann", "bob")]
    write_deltalake(lake.path("events"), pa.Table.from_pylist(rows, EVENTS), partition_by=["user"])
    pipeline = hourly_pipeline(compute=Windows(assigner, aggregate={"n": Count()}))
    epochs: list[Manifest] = []
    with lake.driver(LOCAL, pipeline) as driver:
        Stream(driver, epochs.append, EpochLimits(files=1)).run_available(lambda: bool(epochs))
        position = epochs[0].positions["events"]
        assert (position.version, position.files) == (-1, 1)
        assert reopen(driver, Selection()) == (None, 0)

"""Backfills: conservation, sessions across midnight, what an interval reads, and which rows it includes or refuses."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.flights_oracle import assert_equal
from tests.lake import DAY0, EVENTS, LOCAL, Lake, assert_same_windows, at, conserved, hourly_pipeline, session_pipeline
from tests.session_oracle import sessions
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.plan_interval import plan_interval
from tidegate.pipelines.errors import Refused, Stopped
from tidegate.pipelines.ledger.lease import request_stop
from tidegate.pipelines.ledger.manifest import Interval
from tidegate.pipelines.run.backfill import backfill
from tidegate.pipelines.run.intervals import cut, parse_slice
from tidegate.windowing import Count, TumblingEventTimeWindows, Windows, WindowStagger

GAP = timedelta(minutes=30)
BY = ["user", "window_start"]


def day(number: int) -> datetime:
    return DAY0 + timedelta(days=number)


def minute_grained(days: int, seed: int) -> list[tuple[str, datetime, int]]:
    """Events at full minutes, many of them around midnight, so that sessions often just touch there."""
    draw = random.Random(seed)
    rows = []
    for _ in range(900):
        user = f"user{draw.randrange(12)}"
        midnight = day(draw.randrange(days + 1))
        near = midnight + timedelta(minutes=draw.choice((-60, -31, -30, -29, -1, 0, 1, 29, 30, 31)))
        anywhere = DAY0 + timedelta(minutes=draw.randrange(days * 1440))
        moment = near if draw.random() < 0.4 else anywhere
        if DAY0 <= moment < day(days):
            rows.append((user, moment, draw.randrange(100)))
    return rows


def test_sessions_that_touch_exactly_at_midnight_are_one_session(lake: Lake) -> None:
    lake.append(("a", at("23:30"), 1), ("a", at("00:00", day=1), 2), ("b", at("23:29"), 4), ("b", at("00:00", 1), 8))
    pipeline = session_pipeline(GAP)
    lake.backfill(LOCAL, pipeline, day(0), day(2), "1d")
    found = {(row["user"], row["window_start"]): row["total"] for row in lake.final(pipeline).to_pylist()}
    assert found == {("a", at("23:30")): 3, ("b", at("23:29")): 4, ("b", at("00:00", 1)): 8}


def test_days_on_their_own_give_what_one_epoch_gives_and_both_equal_plain_python(lake: Lake) -> None:
    rows = minute_grained(days=4, seed=7)
    lake.append(*rows)
    by_day, at_once = session_pipeline(GAP), session_pipeline(GAP, name="at_once")
    lake.backfill(LOCAL, by_day, day(0), day(5), "1d")
    lake.backfill(LOCAL, at_once, day(0), day(5))
    expected = sessions(rows, GAP)
    assert_equal(lake.final(by_day).to_pandas(), expected, BY)
    assert_same_windows(lake.final(by_day), lake.final(at_once))
    touching = (expected["window_start"] < expected["window_end"].dt.floor("D")) & (expected["events"] > 1)
    assert touching.sum() > 10, "the data must have sessions over midnight"


def test_load_day_by_day_and_run_day_by_day_and_every_row_is_accounted_for_once(lake: Lake) -> None:
    pipeline = hourly_pipeline(where="value >= 0")
    arriving = [
        [("a", at("10:00"), 1), ("b", at("11:00"), 2), (None, at("12:00"), 3), ("c", None, 4), ("c", at("13:00"), -1)],
        [("a", at("10:00", 1), 10), ("late", at("09:00"), 11), (None, None, 12), ("b", at("23:59", 1), 13)],
        [("a", at("10:00", 2), 20), ("late", at("09:00", 1), 21), ("late", at("09:30"), 22), ("d", at("00:00", 3), 23)],
        [("a", at("10:00", 3), 30)],
    ]
    for number, rows in enumerate(arriving):
        lake.append(*rows)
        lake.backfill(LOCAL, pipeline, day(number), day(number + 1))
    epochs = lake.rows(pipeline, "epochs").to_pylist()
    assert conserved(epochs)
    assert sum(row["events_in"] for row in epochs) == sum(map(len, arriving))
    assert sorted(row["value"] for row in lake.rows(pipeline, "late").to_pylist()) == [11, 21, 22]
    rejects = {row["value"]: row["reason"] for row in lake.rows(pipeline, "rejects").to_pylist()}
    assert rejects == {3: "null_key", 4: "null_timestamp", 12: "null_key"}
    assert sum(row["dropped"] for row in epochs) == 1
    on_time = [row["total"] for row in lake.final(pipeline).to_pylist()]
    assert sorted(on_time) == [1, 2, 10, 13, 20, 23, 30]


def test_an_event_dated_2099_is_rejected_and_moves_no_watermark(lake: Lake) -> None:
    lake.append(("a", at("10:00"), 1), ("wild", datetime.fromisoformat("2099-01-01T00:00:00+00:00"), 2))
    pipeline = hourly_pipeline()
    (run,) = lake.backfill(LOCAL, pipeline, day(0), day(1))
    assert run.manifest.watermark == int(day(1).timestamp() * 1000) - 1
    (reject,) = lake.rows(pipeline, "rejects").to_pylist()
    assert (reject["user"], reject["reason"]) == ("wild", "timestamp_ahead_of_commit")
    (made,) = lake.stream(LOCAL, hourly_pipeline(name="streamed"))
    assert made.watermark == int((at("10:00") - timedelta(hours=1)).timestamp() * 1000) - 1
    assert made.counters["rejected"] == 1


def test_a_file_whose_rows_are_all_before_1970_is_rejected(lake: Lake) -> None:
    pipeline = hourly_pipeline()
    lake.append(("a", at("10:00"), 1))
    lake.append(("a", datetime(1969, 12, 31, tzinfo=UTC), 2))
    lake.backfill(LOCAL, pipeline, day(0), day(1))
    assert lake.rows(pipeline, "rejects")["reason"].to_pylist() == ["timestamp_before_not_before"]


def test_an_interval_that_leaves_a_gap_is_refused_with_both_dates(lake: Lake) -> None:
    lake.append(("a", at("10:00"), 1))
    pipeline = hourly_pipeline()
    lake.backfill(LOCAL, pipeline, day(0), day(1))
    before = lake.versions(pipeline)
    with pytest.raises(Refused, match=r"begins at 2024-03-03.*has only reached 2024-03-02"):
        lake.backfill(LOCAL, pipeline, day(2), day(3))
    with pytest.raises(Refused, match=r"overlaps intervals that were run: 2024-03-01"):
        lake.backfill(LOCAL, pipeline, day(0), day(2))
    assert lake.versions(pipeline) == before


def test_a_stagger_is_drawn_once_and_holds_over_runs_and_shards(lake: Lake) -> None:
    lake.append(*[(f"user{number}", at(f"{number % 24:02}:30", number % 2), number) for number in range(60)])
    hours = TumblingEventTimeWindows.of(timedelta(hours=1), stagger=WindowStagger.RANDOM)
    pipeline = hourly_pipeline(compute=Windows(hours, aggregate={"events": Count()}))
    first, second = lake.backfill(LOCAL, pipeline, day(0), day(2), "1d")
    offset = first.manifest.stagger_offset
    assert offset is not None
    assert second.manifest.stagger_offset == offset
    starts = {row["window_start"].timestamp() * 1000 % 3_600_000 for row in lake.latest(pipeline).to_pylist()}
    assert starts == {offset}


def test_a_day_reads_only_the_files_that_may_hold_it(lake: Lake) -> None:
    for number in range(4):
        lake.append(("a", at("10:00", number), number), ("b", at("23:59", number), number))
    pipeline = hourly_pipeline()
    lake.backfill(LOCAL, pipeline, day(0), day(1))
    with lake.driver(LOCAL, pipeline) as driver:
        head = lake.snapshot(pipeline)
        interval = Interval(start=int(day(1).timestamp() * 1000), end=int(day(2).timestamp() * 1000))
        source = OpenInput.open(driver.engine, driver.tables, pipeline)
        plan = plan_interval(driver.basis(source, head), interval, head)
    assert plan.counts.usable == 2
    assert plan.rows.events is not None
    assert len(plan.rows.events.parts) == 1


def test_a_replay_does_not_go_on_from_a_backfill_in_event_order(lake: Lake) -> None:
    lake.append(("a", at("10:00"), 1))
    lake.backfill(LOCAL, hourly_pipeline(), DAY0, day(3))
    with pytest.raises(Refused, match="--order arrival can't continue that"):
        lake.replay(LOCAL, hourly_pipeline())


def test_rows_that_are_kept_whole_have_a_column_that_is_added_to_the_source(lake: Lake) -> None:
    pipeline = hourly_pipeline()

    def add(column: str, *rows: tuple[str, datetime]) -> None:
        table = pa.table([[user for user, _ in rows], [at for _, at in rows], [1] * len(rows)], schema=EVENTS)
        noted = table.append_column(column, pa.array([user for user, _ in rows]))
        write_deltalake(lake.path("events"), noted, mode="append", schema_mode="merge")

    lake.append(("a", at("10:30"), 1), ("a", at("14:30"), 1))
    lake.stream(LOCAL, pipeline)
    add("note", ("late", at("09:00")), ("b", at("14:40")))
    lake.stream(LOCAL, pipeline)
    assert lake.rows(pipeline, "late")["note"].to_pylist() == ["late"]
    add("more", ("c", at("18:00")), ("later", at("09:00")))
    lake.stream(LOCAL, pipeline, files=1)
    assert sorted(str(row["more"]) for row in lake.rows(pipeline, "late").to_pylist()) == ["None", "later"]


def test_a_backfill_ends_between_two_intervals_when_asked_to(lake: Lake) -> None:
    lake.append(("a", at("10:30"), 1), ("b", at("22:40"), 2))
    pipeline = hourly_pipeline()
    halves = list(cut(DAY0, day(1), parse_slice("12h")))

    def tell(step: str) -> None:
        if step == "committed":
            assert request_stop(lake.tables(pipeline), lake.clock()) is not None

    with lake.driver(LOCAL, pipeline, tell) as driver:
        runs = backfill(driver, halves)
        assert next(runs).interval == halves[0]
        with pytest.raises(Stopped, match="hours was asked to stop"):
            next(runs)
    assert lake.snapshot(pipeline).manifest.interval == halves[0]
    assert [run.state for run in lake.backfill(LOCAL, pipeline, DAY0, day(1), "12h")] == [
        "unchanged",
        "done",
    ]

"""In arrival order only the source's commits and the clock decide: not epochs, stops, crashes or parallelism. For
replays, for streams in epochs of half a commit or of many, and for streams that crash at random points, are restored to
older snapshots and continue at another parallelism, panes, late rows and state are the same, row by row.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.commit_times import date_commit
from tests.lake import DAY0, LOCAL, Lake, Row, hourly_pipeline, session_pipeline
from tests.recovery.arrivals import STEPS, copy_of, crash_after, differences, rows_of, run
from tidegate.pipelines import Pipeline
from tidegate.pipelines.examples.flights.duty import aircraft_duty
from tidegate.pipelines.examples.flights.hours import airport_hours
from tidegate.pipelines.examples.flights.source import load_flights
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.head import list_snapshots
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.run.backfill import replay
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.windowing import (
    AfterCount,
    AfterWatermark,
    Count,
    CountTrigger,
    EventTimeSessionWindows,
    KeyedProcess,
    KeyedProcessFunction,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.functions.process import TimeDomain
from tidegate.windowing.state import ValueStateDescriptor
from tidegate.windowing.time import to_millis

pytestmark = pytest.mark.recovery

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
SUMS: dict[str, Any] = {"aggregate": {"events": Count(), "total": Sum("value")}}

COMMITS = 8

IDLENESS = WatermarkStrategy.for_bounded_out_of_orderness(20 * MINUTE).with_idleness(90 * MINUTE)


class Quiet(KeyedProcessFunction):
    """Number of elements before a user had no input for ten minutes, and until every second hour of the clock."""

    result_type = pa.struct([("what", pa.string()), ("events", pa.int64())])
    seen = ValueStateDescriptor("seen", pa.int64())
    last = ValueStateDescriptor("last", pa.int64())

    def states(self) -> list[Any]:
        return [self.seen, self.last]

    def process_element(self, value: Any, ctx: Any) -> None:
        timers, last = ctx.timer_service(), ctx.get_state(self.last)
        ctx.get_state(self.seen).update((ctx.get_state(self.seen).value() or 0) + 1)
        if last.value() is not None:
            timers.delete_event_time_timer(last.value() + 600_000)
        last.update(max(ctx.timestamp, last.value() or 0))
        timers.register_event_time_timer(last.value() + 600_000)
        timers.register_processing_time_timer(timers.current_processing_time() // 7_200_000 * 7_200_000 + 7_200_000)

    def on_timer(self, timestamp: int, ctx: Any) -> list[dict[str, Any]]:
        what = "hours" if ctx.time_domain is TimeDomain.PROCESSING_TIME else "quiet"
        return [{"what": what, "events": ctx.get_state(self.seen).value()}]


PIPELINES = {
    "hours of each user, silent ones idle": hourly_pipeline(
        watermark=IDLENESS, watermark_by="user", allowed_lateness=30 * MINUTE
    ),
    "sessions with lateness": session_pipeline(
        10 * MINUTE, watermark=WatermarkStrategy.for_bounded_out_of_orderness(20 * MINUTE), allowed_lateness=HOUR
    ),
    "sliding": hourly_pipeline(
        compute=Windows(SlidingEventTimeWindows.of(HOUR, 25 * MINUTE), allowed_lateness=10 * MINUTE, **SUMS)
    ),
    "early and late firings by count": hourly_pipeline(
        compute=Windows(
            EventTimeSessionWindows.with_gap(10 * MINUTE),
            AfterWatermark(early=AfterCount(3), late=AfterCount(2)),
            allowed_lateness=HOUR,
            **SUMS,
        )
    ),
    "every fifth element": hourly_pipeline(
        compute=Windows(TumblingEventTimeWindows.of(2 * HOUR), CountTrigger.of(5), **SUMS)
    ),
    "a process function": hourly_pipeline(compute=KeyedProcess(Quiet())),
    "a process function, elements as they come": hourly_pipeline(compute=KeyedProcess(Quiet(), time_sorted=False)),
    "processing time": hourly_pipeline(compute=Windows(TumblingProcessingTimeWindows.of(50 * MINUTE), **SUMS)),
}


LONG = ("sliding", "every fifth element", "a process function, elements as they come")
"""Pipelines of the long form only: each is similar to one with the same operator that always runs."""


def arrive(lake: Lake) -> None:
    """Commits of two files, an hour apart: skewed, late, duplicated, unusable, and from users whose input stops."""
    draw = random.Random(17)
    for number in range(COMMITS):
        end = DAY0 + (number + 1) * HOUR
        users = ["often"] * 6 + ["ann", "bob"] + ["silent"] * (number < 3)
        rows: list[Row] = [
            (draw.choice(users), end - timedelta(seconds=draw.randrange(5400)), draw.randrange(100)) for _ in range(60)
        ]
        rows += [*rows[:4], *((user, end - 5 * HOUR, 1) for user in ("ann", "late")), (None, end, 1), ("ann", None, 1)]
        draw.shuffle(rows)
        lake.append_in_files(rows[:30], rows[30:])
    commits_come_hourly(lake, "events")


def commits_come_hourly(lake: Lake, table: str, apart: timedelta = HOUR) -> None:
    """Give the commits of the source times of their own, and the driver a clock that stands at the last one."""
    for log in sorted(Path(lake.path(table), "_delta_log").glob("*.json")):
        lake.clock.now = to_millis(DAY0 + int(log.stem) * apart)
        date_commit(log, lake.clock.now)


def stream(lake: Lake, pipeline: Pipeline, files: int) -> None:
    run(LOCAL, lake, pipeline=pipeline, limits=EpochLimits(files=files))  # type: ignore[arg-type]


def replayed(lake: Lake, pipeline: Pipeline, commits_per_epoch: int | None) -> None:
    with lake.driver(LOCAL, pipeline) as driver:  # type: ignore[arg-type]
        list(replay(driver, commits_per_epoch))


def stopped_and_put_back(lake: Lake, pipeline: Pipeline, draw: random.Random) -> None:
    """Random epochs, steps to crash after, snapshots to restore, files per epoch and parallelism; then to the end."""
    for _ in range(3):
        here = replace(pipeline, parallelism=draw.choice((1, 2, 3, 5)))
        limits = EpochLimits(files=draw.choice((1, 2)))
        crash_after(LOCAL, lake, draw.choice(STEPS), draw.choice((1, 2)), pipeline=here, limits=limits)
        put_back(lake, pipeline, draw)
    stream(lake, replace(pipeline, parallelism=draw.choice((1, 2, 3, 5))), draw.choice((1, 2, 3)))


def put_back(lake: Lake, pipeline: Pipeline, draw: random.Random) -> None:
    """Restore one of the existing snapshots, including those of abandoned lineages; the newest one means to
    continue.
    """
    tables = lake.tables(pipeline)
    if epochs := [str(entry.manifest["epoch"]) for entry in list_snapshots(tables)]:
        with Lease(tables, "restore", lake.clock):
            restore(tables, find_snapshot(tables, draw.choice(epochs)), lake.clock())


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = Lake(tmp_path_factory.mktemp("source") / "lake")
    arrive(lake)
    return lake


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("pipeline", "seeds"),
    [
        pytest.param(pipeline, seeds, id=f"{name}, {len(seeds)} drawn", marks=marks)
        for name, pipeline in PIPELINES.items()
        for seeds, marks in (
            (range(1), pytest.mark.long if name in LONG else ()),
            (range(1, 20), pytest.mark.long),
        )
    ],
)
def test_neither_epochs_nor_stops_nor_restores_nor_parallelism_change_anything(
    source: Lake, tmp_path: Path, pipeline: Pipeline, seeds: Sequence[int]
) -> None:
    assert_equal_however_run(source, tmp_path, pipeline, seeds)


def assert_equal_however_run(source: Lake, folder: Path, pipeline: Pipeline, seeds: Sequence[int]) -> None:
    at_once = copy_of(source, folder / "at_once")
    replayed(at_once, pipeline, None)
    expected = rows_of(at_once, pipeline)
    assert expected["results"]
    ways = {
        "replayed by 3": lambda lake: replayed(lake, pipeline, 3),
        "a file an epoch": lambda lake: stream(lake, pipeline, 1),
    } | {
        f"stopped, seed {seed}": lambda lake, seed=seed: stopped_and_put_back(lake, pipeline, random.Random(seed))
        for seed in seeds
    }
    for way, go in ways.items():
        lake = copy_of(source, folder / way.replace(" ", "_"))
        go(lake)
        assert differences(rows_of(lake, pipeline), expected) == {}, way


def test_the_data_has_late_and_rejected_rows_and_idle_users(source: Lake, tmp_path: Path) -> None:
    sessions, by_user = PIPELINES["sessions with lateness"], PIPELINES["hours of each user, silent ones idle"]
    lake = copy_of(source, tmp_path / "lake")
    for pipeline in (sessions, by_user):
        replayed(lake, pipeline, None)
    assert all(rows_of(lake, sessions)[table] for table in ("results", "late", "rejects"))
    partitions = lake.snapshot(by_user).manifest.partitions
    assert (partitions["silent"].idle, partitions["often"].idle) == (True, False)


@pytest.mark.long
@pytest.mark.parametrize("pipeline", [aircraft_duty, airport_hours], ids=lambda pipeline: pipeline.name)
def test_a_month_of_flights_is_the_same_however_it_is_run(tmp_path: Path, pipeline: Pipeline) -> None:
    """With a bound of two hours, so that many flights are late."""
    source = Lake(tmp_path / "source")
    load_flights(source.path("flights"), days=31)
    commits_come_hourly(source, "flights", timedelta(days=1))
    hasty = replace(
        pipeline, watermark=WatermarkStrategy.for_bounded_out_of_orderness(2 * HOUR), max_ahead=timedelta(days=9999)
    )
    assert_equal_however_run(source, tmp_path, hasty, seeds=(1, 2, 3))

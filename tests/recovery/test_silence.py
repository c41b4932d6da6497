"""Nothing comes any more: idle partitions are not waited for, `why` names one that is, and clocks go on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.lake import DAY0, LOCAL, Clock, Lake, at, hourly_pipeline
from tests.recovery.test_equality import commits_come_hourly
from tidegate.pipelines import Pipeline
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.observe.inspect.waiting import open_windows, partitions
from tidegate.pipelines.run.backfill import replay
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import (
    Count,
    EventTimeSessionWindows,
    Sum,
    TumblingProcessingTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.time import to_millis

pytestmark = pytest.mark.recovery

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)

PATIENT = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(0))


def stream(
    lake: Lake, pipeline: Pipeline, clock: Any = None, on_epoch: Callable[[Manifest], None] = lambda manifest: None
) -> list[Manifest]:
    """Run the commits that exist, then advance the clock; return the manifests of the epochs."""
    if clock is not None:
        lake.clock.now = to_millis(clock)
    made: list[Manifest] = []

    def keep(manifest: Manifest) -> None:
        made.append(manifest)
        on_epoch(manifest)

    with lake.driver(LOCAL, pipeline) as driver:  # type: ignore[arg-type]
        Stream(driver, keep).run_available()
    return made


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """One hour of two users; then bob is silent, and ann goes on."""
    lake = Lake(tmp_path, Clock(0))
    lake.append(("ann", at("00:10"), 1), ("bob", at("00:20"), 2))
    lake.append(("ann", at("01:10"), 3))
    lake.append(("ann", at("02:10"), 4))
    commits_come_hourly(lake, "events")
    return lake


def test_without_idleness_a_silent_partition_holds_the_windows_and_why_names_it(lake: Lake) -> None:
    pipeline = hourly_pipeline(watermark=PATIENT, watermark_by="user")
    stream(lake, pipeline, clock=at("09:00"))
    assert len(lake.rows(pipeline, "results")) == 0
    head = lake.snapshot(pipeline)
    slowest = partitions(head.manifest, lake.clock())[0]
    assert (slowest.name, slowest.holds, slowest.watermark) == ("bob", True, to_millis(at("00:20")) - 1)
    assert slowest.quiet == to_millis(at("09:00")) - to_millis(DAY0)
    waiting, count = open_windows(lake.tables(pipeline).warehouse, head, 0, lake.clock())
    assert count == len(waiting) == 4
    assert all("source partition 'bob' holds it back" in window.reason for window in waiting)


def test_with_idleness_its_windows_fire_and_it_is_taken_in_again_when_it_has_caught_up(lake: Lake) -> None:
    pipeline = hourly_pipeline(watermark=PATIENT.with_idleness(90 * MINUTE), watermark_by="user")
    stream(lake, pipeline, clock=at("03:00"))
    fired = {(row["user"], row["total"]) for row in lake.rows(pipeline, "results").to_pylist()}
    assert fired == {("ann", 1), ("ann", 3), ("bob", 2)}
    assert lake.snapshot(pipeline).manifest.partitions["bob"].idle
    lake.append(("bob", at("02:30"), 5), ("ann", at("02:50"), 6))
    commits_come_hourly(lake, "events")
    stream(lake, pipeline)
    assert not lake.snapshot(pipeline).manifest.partitions["bob"].idle
    assert lake.snapshot(pipeline).manifest.watermark == to_millis(at("02:30")) - 1


def test_why_does_not_blame_a_partition_that_came_back_and_is_not_waited_for_yet(lake: Lake) -> None:
    pipeline = hourly_pipeline(watermark=PATIENT.with_idleness(90 * MINUTE), watermark_by="user")
    stream(lake, pipeline, clock=at("03:00"))
    lake.append(("bob", at("01:30"), 5), ("ann", at("02:50"), 6))
    commits_come_hourly(lake, "events")
    stream(lake, pipeline)
    head = lake.snapshot(pipeline)
    told = [(one.name, one.aligned, one.holds) for one in partitions(head.manifest, lake.clock())]
    assert told == [("ann", True, True), ("bob", False, False)]
    waiting, _ = open_windows(lake.tables(pipeline).warehouse, head, 0, lake.clock())
    assert all("source partition 'ann' holds it back" in window.reason for window in waiting)
    stream(lake, pipeline, clock=at("09:00"))
    lake.append(("bob", at("01:40"), 5))
    commits_come_hourly(lake, "events")
    stream(lake, pipeline, clock=at("09:10"))
    waiting, _ = open_windows(lake.tables(pipeline).warehouse, lake.snapshot(pipeline), 0, lake.clock())
    assert all("source partition 'bob' was idle and has to catch up first" in window.reason for window in waiting)


def test_a_backlog_makes_nobody_idle(lake: Lake) -> None:
    """However late the driver comes: what the log says about time counts, and only at its head does time go on."""
    pipeline = hourly_pipeline(watermark=PATIENT.with_idleness(190 * MINUTE), watermark_by="user")
    lake.append(("bob", at("02:20"), 5))
    commits_come_hourly(lake, "events")
    made = stream(lake, pipeline, clock=at("03:00"))
    assert lake.rows(pipeline, "late").num_rows == 0
    assert [manifest.counters["late"] for manifest in made] == [0] * len(made)
    assert not any(known.idle for known in lake.snapshot(pipeline).manifest.partitions.values())


@pytest.mark.first(1)
@pytest.mark.parametrize(
    "watermark",
    [
        PATIENT.with_idleness(150 * MINUTE),
        WatermarkStrategy.for_bounded_out_of_orderness_with_idle_advance(timedelta(0), 5 * MINUTE, MINUTE),
    ],
    ids=["idle partitions", "a generator that goes on by itself"],
)
def test_nobody_can_tell_whether_a_stream_looked_between_two_commits(lake: Lake, watermark: WatermarkStrategy) -> None:
    """The clock moves event time before the rows of the next commit are judged."""
    sessions = Windows(EventTimeSessionWindows.with_gap(10 * MINUTE), aggregate={"total": Sum("value")})
    often, once, again = (
        hourly_pipeline(name, compute=sessions, watermark=watermark, watermark_by="user")
        for name in ("often", "once", "again")
    )
    for minute in (1, 31, 59):
        stream(lake, often, clock=at("02:00") + minute * MINUTE)
    assert lake.snapshot(often).manifest.watermark > to_millis(at("00:20")), "time went on without bob"
    lake.append(("bob", at("00:30"), 5), ("ann", at("02:30"), 5), ("ann", at("02:58"), 6))
    lake.append(("bob", at("03:30"), 7))
    commits_come_hourly(lake, "events")
    for pipeline in (often, once):
        stream(lake, pipeline, clock=at("04:00"))
    with lake.driver(LOCAL, again) as driver:  # type: ignore[arg-type]
        list(replay(driver))

    def seen(pipeline: Pipeline) -> list[Any]:
        late = lake.rows(pipeline, "late").select(["user", "at"])
        final = lake.final(pipeline).select(["user", "window_start", "window_end", "total"])
        ordered = [table.sort_by([(name, "ascending") for name in table.column_names[:2]]) for table in (late, final)]
        return [*map(pa.Table.to_pylist, ordered), lake.snapshot(pipeline).manifest.watermark]

    assert seen(often) == seen(once) == seen(again)
    assert seen(often)[0], "rows came late"


def test_the_clock_does_not_go_on_over_a_commit_that_came_while_a_run_was_at_work(lake: Lake) -> None:
    goes_on = WatermarkStrategy.for_bounded_out_of_orderness_with_idle_advance(timedelta(0), 5 * MINUTE, MINUTE)
    pipeline = hourly_pipeline(watermark=goes_on)

    def one_more(manifest: Manifest) -> None:
        if manifest.epoch == 1:
            lake.append(("bob", at("03:05"), 5))
            commits_come_hourly(lake, "events")
            lake.clock.now = to_millis(at("09:00"))

    made = stream(lake, pipeline, at("02:01"), one_more)
    assert [(one.kind, one.processing_time) for one in made] == [
        ("stream", to_millis(at("02:00"))),
        ("clock", to_millis(at("03:00"))),
    ]
    stream(lake, pipeline)
    assert lake.rows(pipeline, "late").num_rows == 0
    assert lake.snapshot(pipeline).manifest.counters["open_windows"] == 0


def test_windows_in_processing_time_fire_within_two_beats_without_data(lake: Lake) -> None:
    windows = Windows(TumblingProcessingTimeWindows.of(HOUR), aggregate={"events": Count()})
    pipeline = hourly_pipeline(compute=windows, watermark=WatermarkStrategy.no_watermarks())
    stream(lake, pipeline, clock=at("02:30"))
    waiting = len(lake.rows(pipeline, "results"))
    beats = [beat for minute in (59, 60, 61) for beat in stream(lake, pipeline, clock=at("02:00") + minute * MINUTE)]
    assert [beat.kind for beat in beats] == ["clock"] * len(beats)
    assert [beat.counters["fired_on_time"] for beat in beats][:2] == [0, 1]
    assert len(lake.rows(pipeline, "results")) == waiting + 1


def test_the_last_window_of_a_finished_stream_fires_where_the_generator_goes_on_by_itself(lake: Lake) -> None:
    goes_on = WatermarkStrategy.for_bounded_out_of_orderness_with_idle_advance(MINUTE, 5 * MINUTE, MINUTE)
    pipeline = hourly_pipeline(watermark=goes_on)
    stream(lake, pipeline, clock=at("02:00"))
    assert lake.snapshot(pipeline).manifest.counters["open_windows"] > 0
    stream(lake, pipeline, clock=at("09:00"))
    assert lake.snapshot(pipeline).manifest.counters["open_windows"] == 0
    assert sum(row["events"] for row in lake.final(pipeline).to_pylist()) == 4

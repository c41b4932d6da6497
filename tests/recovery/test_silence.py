"""Nothing comes any more: idle partitions are not waited for, `why` names one that is, and clocks go on."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pipelines import Pipeline
from pipelines.replay import replay
from pipelines.snapshots.manifest import Manifest
from pipelines.snapshots.waiting import open_windows, partitions
from pipelines.stream import Stream
from tests.lake import DAY0, Clock, Lake, at, hourly_pipeline
from tests.recovery.test_equality import commits_come_hourly
from tests.recovery.without_spark import NoSpark, standing_in
from windowing import Count, TumblingProcessingTimeWindows, WatermarkStrategy, Windows
from windowing.time import to_millis

pytestmark = pytest.mark.recovery

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)

PATIENT = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(0))


def stream(lake: Lake, pipeline: Pipeline, clock: Any = None) -> list[Manifest]:
    """What is there, and then the clock; the manifests of the epochs."""
    if clock is not None:
        lake.clock.now = to_millis(clock)
    made: list[Manifest] = []
    with standing_in(NoSpark()), lake.driver(NoSpark(), pipeline) as driver:  # type: ignore[arg-type]
        Stream(driver, lake.config.work_folder, made.append).run_available()
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
    pipeline = hourly_pipeline(watermark=PATIENT.with_idleness(150 * MINUTE), watermark_by="user")
    lake.append(("bob", at("02:20"), 5))
    commits_come_hourly(lake, "events")
    made = stream(lake, pipeline, clock=at("03:00"))
    assert lake.rows(pipeline, "late").num_rows == 0
    assert [manifest.counters["late"] for manifest in made] == [0] * len(made)
    assert not any(known.idle for known in lake.snapshot(pipeline).manifest.partitions.values())


def test_a_beat_between_two_commits_is_no_part_of_the_log_so_a_replay_may_have_fewer_late_rows(lake: Lake) -> None:
    """Of what goes on by the clock alone a replay knows the times of the commits, and not when the stream looked."""
    idle = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(0)).with_idleness(150 * MINUTE)
    streamed, replayed = (hourly_pipeline(name, watermark=idle, watermark_by="user") for name in ("streamed", "again"))
    stream(lake, streamed, clock=at("02:31"))
    assert lake.snapshot(streamed).manifest.watermark == to_millis(at("02:10")) - 1, "bob is idle"
    lake.append(("bob", at("00:30"), 5), ("ann", at("01:30"), 5))
    commits_come_hourly(lake, "events")
    stream(lake, streamed)
    with standing_in(NoSpark()), lake.driver(NoSpark(), replayed) as driver:  # type: ignore[arg-type]
        list(replay(driver))
    late = {
        name: lake.rows(pipeline, "late").num_rows for name, pipeline in (("stream", streamed), ("replay", replayed))
    }
    assert late == {"stream": 2, "replay": 0}


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

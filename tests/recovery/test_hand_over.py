"""A stream takes over from a backfill: what its watermark waits for then, and a crash meanwhile."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.lake import DAY0, LOCAL, Clock, Lake, at, hourly_pipeline
from tests.recovery.arrivals import STEPS, copy_of, crash_after, differences, outcome, run
from tests.recovery.test_equality import IDLENESS, commits_come_hourly
from tidegate.pipelines import DeltaSource, Input, Pipeline
from tidegate.pipelines.ask.waiting import partitions
from tidegate.windowing import Count, IntervalJoin, Sum, TumblingEventTimeWindows, WatermarkStrategy, Windows
from tidegate.windowing.time import to_millis

pytestmark = pytest.mark.recovery

HOUR = timedelta(hours=1)
TEN_MINUTES = Windows(
    TumblingEventTimeWindows.of(timedelta(minutes=10)), aggregate={"events": Count(), "total": Sum("value")}
)


def ten_minutes(name: str = "hours", watermark: WatermarkStrategy | None = None) -> Pipeline:
    """Windows of each user; users are the source partitions, out of order by an hour unless noted."""
    bounded = WatermarkStrategy.for_bounded_out_of_orderness(HOUR)
    return hourly_pipeline(
        name, compute=TEN_MINUTES, watermark=watermark or bounded, watermark_by="user", max_ahead=timedelta(days=9)
    )


PATIENT = ten_minutes()


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A day of two users, and a row of each on the next day, in one version."""
    lake = Lake(tmp_path / "lake", Clock(0))
    lake.append(("ann", at("08:00"), 1), ("bob", at("09:00"), 2), ("ann", at("24:10"), 3), ("bob", at("24:05"), 4))
    commits_come_hourly(lake, "events")
    return lake


def backfilled(lake: Lake, pipeline: Pipeline) -> Lake:
    """The lake after the first day has run."""
    lake.backfill(LOCAL, pipeline, DAY0, at("24:00"))  # type: ignore[arg-type]
    return lake


def goes_on(lake: Lake, *rows: tuple[str, str]) -> None:
    """Commit an hour after the previous commit."""
    lake.append(*((user, at(time), 1) for user, time in rows))
    commits_come_hourly(lake, "events")


def windows(lake: Lake, pipeline: Pipeline) -> set[tuple[str, str, int]]:
    """Return user, start and number of events of each window that has fired."""
    return {
        (row["user"], row["window_start"].strftime("%d %H:%M"), row["events"])
        for row in lake.latest(pipeline).to_pylist()
    }


def test_partitions_that_are_behind_the_backfill_are_waited_for(lake: Lake) -> None:
    backfilled(lake, PATIENT)
    goes_on(lake, ("ann", "25:30"))
    run(LOCAL, lake, pipeline=PATIENT)
    manifest = lake.snapshot(PATIENT).manifest
    assert manifest.watermark == to_millis(at("24:00")) - 1, "where the backfill left it"
    assert [(one.name, one.holds) for one in partitions(manifest, lake.clock())] == [("bob", True), ("ann", False)]
    goes_on(lake, ("bob", "24:20"))
    goes_on(lake, ("ann", "26:00"), ("bob", "26:10"))
    run(LOCAL, lake, pipeline=PATIENT)
    assert lake.rows(PATIENT, "late").num_rows == 0
    assert lake.snapshot(PATIENT).manifest.watermark == to_millis(at("25:00")) - 1
    streamed = ten_minutes("streamed")
    run(LOCAL, lake, pipeline=streamed)
    assert windows(lake, PATIENT) == windows(lake, streamed)
    assert ("bob", "02 00:20", 1) in windows(lake, PATIENT)


def test_a_partition_that_stays_silent_after_it_is_not_waited_for_longer_than_the_timeout(lake: Lake) -> None:
    pipeline = ten_minutes(watermark=IDLENESS)
    backfilled(lake, pipeline)
    goes_on(lake, ("ann", "25:00"))
    run(LOCAL, lake, pipeline=pipeline)
    assert lake.snapshot(pipeline).manifest.watermark == to_millis(at("24:00")) - 1, "bob may still come"
    goes_on(lake, ("ann", "26:00"))
    run(LOCAL, lake, pipeline=pipeline)
    assert lake.snapshot(pipeline).manifest.watermark == to_millis(at("25:40")) - 1
    assert lake.snapshot(pipeline).manifest.partitions["bob"].idle


@pytest.mark.first(1)
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_while_it_takes_over_changes_nothing(lake: Lake, tmp_path: Path, step: str) -> None:
    backfilled(lake, PATIENT)
    goes_on(lake, ("ann", "25:30"), ("bob", "25:20"))
    undisturbed = copy_of(lake, tmp_path / "undisturbed")
    run(LOCAL, undisturbed, pipeline=PATIENT)
    crash_after(LOCAL, lake, step, pipeline=PATIENT)
    run(LOCAL, lake, pipeline=PATIENT)
    assert [row["kind"] for row in lake.rows(PATIENT, "epochs").to_pylist()].count("backfill") == 1
    assert differences(outcome(lake, PATIENT), outcome(undisturbed, PATIENT)) == {}


def test_a_join_waits_for_a_source_without_rows_and_what_comes_before_the_end_of_the_backfill_is_late(
    lake: Lake,
) -> None:
    lake.append(table="others")
    right, join = Input(source=DeltaSource("others", timestamp="at")), IntervalJoin.between(-HOUR, HOUR)
    parts = {"compute": join, "right": right, "max_ahead": timedelta(days=9)}
    handed, whole = (hourly_pipeline(name, **parts) for name in ("handed", "whole"))
    lake.backfill(LOCAL, handed, DAY0, at("08:30"))
    for of in (handed, whole):
        lake.stream(LOCAL, of)
        assert lake.latest(of).num_rows == 0
    lake.append(("ann", at("08:10"), 1), ("bob", at("08:20"), 1), ("bob", at("09:20"), 1), table="others")
    for of in (handed, whole):
        lake.stream(LOCAL, of)
    times = {of.name: sorted(row["right"]["at"] for row in lake.latest(of).to_pylist()) for of in (handed, whole)}
    assert times == {"handed": [at("09:20")], "whole": [at("08:10"), at("08:20"), at("09:20")]}
    assert lake.rows(handed, "late").num_rows == 2
    assert lake.rows(whole, "late").num_rows == 0

"""The end of input: whatever is open fires and is final, once; whatever comes later is late."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.lake import DAY0, LOCAL, Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.quiet import quiet_pipeline
from tests.recovery.arrivals import copy_of
from tests.remedies import remedy_of
from tidegate.pipelines import Pipeline
from tidegate.pipelines.definition import results
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.remedy import Act
from tidegate.pipelines.run.backfill import backfill as run_backfill
from tidegate.pipelines.run.backfill import end_of_input
from tidegate.pipelines.run.intervals import cut
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import Count, EventTimeTrigger, GlobalWindows, Windows
from tidegate.windowing.time import MAX_TIMESTAMP, to_millis

SESSIONS = session_pipeline(allowed_lateness=timedelta(hours=2))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return day_of_events(tmp_path / "lake")


def day_of_events(folder: Path) -> Lake:
    """A day of events; the last session of ann extends beyond its end."""
    lake = Lake(folder)
    lake.append(("ann", at("10:00"), 1), ("bob", at("12:00"), 2), ("ann", at("23:50"), 4))
    return lake


def ended(lake: Lake, pipeline: Pipeline = SESSIONS) -> Manifest | None:
    """A backfill of the day, then the end."""
    lake.backfill(LOCAL, pipeline, DAY0, at("24:00"))
    with lake.driver(LOCAL, pipeline) as driver:
        return end_of_input(driver)


@pytest.fixture(scope="module")
def once_ended(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    lake = day_of_events(tmp_path_factory.mktemp("ended") / "lake")
    ended(lake)
    return lake


@pytest.fixture
def ended_lake(once_ended: Lake, tmp_path: Path) -> Lake:
    """The day after its backfill has ended."""
    return copy_of(once_ended, tmp_path / "lake")


def stream_to_the_end(lake: Lake, pipeline: Pipeline = SESSIONS) -> list[Manifest]:
    made: list[Manifest] = []
    with lake.driver(LOCAL, pipeline) as driver:
        stream = Stream(driver, made.append)
        stream.run_available()
        stream.end_of_input()
    return made


def totals(lake: Lake, pipeline: Pipeline = SESSIONS) -> list[tuple[str, int]]:
    return sorted((row["user"], row["total"]) for row in lake.final(pipeline).to_pylist())


def test_after_a_backfill_what_crosses_its_end_fires_and_is_final(lake: Lake) -> None:
    lake.backfill(LOCAL, SESSIONS, DAY0, at("24:00"))
    assert totals(lake) == [("ann", 1), ("bob", 2)]
    made = ended(lake)
    assert (made.kind, made.watermark, made.counters["open_windows"]) == ("clock", MAX_TIMESTAMP, 0)
    assert made.counters["fired_on_time"] == 1
    assert totals(lake) == [("ann", 1), ("ann", 4), ("bob", 2)]
    assert ended(lake) is None, "it ends once"


def test_a_stream_ends_too_and_what_comes_afterwards_is_late(lake: Lake) -> None:
    *_, end = stream_to_the_end(lake)
    assert (end.watermark, end.counters["open_windows"]) == (MAX_TIMESTAMP, 0)
    assert totals(lake) == [("ann", 1), ("ann", 4), ("bob", 2)]
    lake.append(("ann", at("24:05"), 8), ("cem", at("30:00"), 16))
    *_, after = stream_to_the_end(lake)
    assert (after.counters["late"], after.watermark) == (2, MAX_TIMESTAMP)
    assert lake.reopen(LOCAL, SESSIONS) is not None
    assert totals(lake) == [("ann", 1), ("ann", 12), ("bob", 2), ("cem", 16)]


def test_the_global_window_and_the_timers_of_functions_fire(lake: Lake) -> None:
    windows = Windows(GlobalWindows(), EventTimeTrigger(), aggregate={"events": Count()})
    everything = hourly_pipeline(name="everything", compute=windows)
    ended(lake, everything)
    rows = results.latest(lake.rows(everything, "results"), ("user",)).to_pylist()
    assert sorted((row["user"], row["events"]) for row in rows) == [("ann", 2), ("bob", 1)]
    quiet = quiet_pipeline()
    ended(lake, quiet)
    assert sorted(row["total"] for row in lake.rows(quiet, "results").to_pylist())[-1] == 5


def test_the_next_interval_is_refused_and_the_way_back_works(ended_lake: Lake) -> None:
    lake = ended_lake
    with pytest.raises(Refused, match="its input has ended, so all of its rows would be late") as refused:
        lake.backfill(LOCAL, SESSIONS, at("24:00"), at("48:00"))
    before = str(remedy_of(refused, Act.RESTORE).at)
    restore(lake.tables(SESSIONS), find_snapshot(lake.tables(SESSIONS), before), lake.clock())
    assert totals(lake) == [("ann", 1), ("bob", 2)]
    lake.append(("ann", at("24:05"), 8))
    lake.backfill(LOCAL, SESSIONS, at("24:00"), at("48:00"))
    assert totals(lake) == [("ann", 1), ("ann", 12), ("bob", 2)]


def test_a_stream_does_not_take_over_an_input_that_has_ended_and_the_way_back_works(ended_lake: Lake) -> None:
    lake = ended_lake
    lake.append(("ann", at("24:05"), 8))
    with pytest.raises(Refused, match="can't continue as a stream: its input ended at epoch 2") as refused:
        stream_to_the_end(lake)
    before = str(remedy_of(refused, Act.RESTORE).at)
    restore(lake.tables(SESSIONS), find_snapshot(lake.tables(SESSIONS), before), lake.clock())
    stream_to_the_end(lake)
    assert totals(lake) == [("ann", 1), ("ann", 12), ("bob", 2)]


def test_an_interval_that_is_run_again_takes_the_end_back(ended_lake: Lake) -> None:
    lake = ended_lake
    lake.append(("bob", at("12:10"), 8))
    assert [run.state for run in lake.backfill(LOCAL, SESSIONS, DAY0, at("24:00"))] == ["done"]
    assert totals(lake) == [("ann", 1), ("bob", 10)]
    assert not lake.rows(SESSIONS, "results")["stale"].to_pylist().count(True)
    ended_again = ended_of(lake)
    assert ended_again is not None
    assert totals(lake) == [("ann", 1), ("ann", 4), ("bob", 10)]


def ended_of(lake: Lake) -> Manifest | None:
    with lake.driver(LOCAL, SESSIONS) as driver:
        return end_of_input(driver)


def test_before_anything_was_run_and_under_a_stream_it_is_refused_with_the_way(lake: Lake) -> None:
    with pytest.raises(Refused, match="has no snapshot yet") as refused:
        ended_of(lake)
    assert remedy_of(refused, Act.FIRST_BACKFILL)
    lake.stream(LOCAL, SESSIONS)
    with pytest.raises(Refused, match="is a stream at epoch 1") as refused:
        ended_of(lake)
    assert remedy_of(refused, Act.END_INPUT)


def test_stale_intervals_are_run_again_before(lake: Lake) -> None:
    for first, last in ((0, 24), (24, 48)):
        lake.backfill(LOCAL, SESSIONS, DAY0 + timedelta(hours=first), DAY0 + timedelta(hours=last))
    lake.append(("bob", at("12:10"), 8))
    lake.backfill(LOCAL, SESSIONS, DAY0, at("24:00"))
    with pytest.raises(Refused, match="left stale, to run again before its input ends") as refused:
        ended_of(lake)
    again = remedy_of(refused, Act.RERUN_STALE)
    assert (again.start, again.end) == (to_millis(at("24:00")), to_millis(at("48:00")))
    with lake.driver(LOCAL, SESSIONS) as driver:
        list(run_backfill(driver, cut(at("24:00"), at("48:00"), None), and_following=True))
    assert ended_of(lake) is not None

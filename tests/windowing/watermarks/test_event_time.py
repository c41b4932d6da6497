"""Event time of a source: aligned over partitions, idle by the source's log, and independent of epochs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing.time import MIN_TIMESTAMP
from tidegate.windowing.watermarks import (
    BoundedOutOfOrdernessWithIdleAdvance,
    EventTime,
    SeenEvent,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkStrategy,
)

BOUNDED = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(milliseconds=10))
HOUR = 3_600_000
NOW = 475_000 * HOUR

IDLE = BOUNDED.with_idleness(timedelta(milliseconds=100))


def commit(event_time: EventTime, clock: int, **largest: int) -> int:
    for partition, timestamp in largest.items():
        event_time.observe(partition, timestamp)
    return event_time.end_commit(clock)


def test_the_watermark_is_the_smallest_of_the_partitions() -> None:
    event_time = EventTime(BOUNDED)
    assert commit(event_time, 1_000, a=500) == 489
    assert commit(event_time, 1_001, b=900) == 489
    assert commit(event_time, 1_002, a=800) == 789


def test_a_part_of_a_commit_moves_nothing_until_the_commit_is_complete() -> None:
    event_time = EventTime(BOUNDED)
    event_time.observe("a", 500)
    assert event_time.watermark == MIN_TIMESTAMP
    restored = EventTime(BOUNDED, event_time.watermark, event_time.clock, event_time.snapshot())
    assert commit(restored, 1_000, a=400) == 489


def test_a_partition_is_idle_once_no_commit_carried_it_for_longer_than_the_timeout() -> None:
    event_time = EventTime(IDLE)
    commit(event_time, 1_000, a=500, b=400)
    assert commit(event_time, 1_100, a=600) == 389
    assert commit(event_time, 1_101, a=700) == 689
    assert event_time.snapshot()["b"]["idle"]


def test_a_backlog_makes_nobody_idle() -> None:
    """Commits that are close together may be read at any time: only their own times count."""
    event_time = EventTime(IDLE)
    commit(event_time, 1_000, a=500, b=400)
    commit(event_time, 1_050, a=600)
    assert commit(event_time, 1_099, a=650, b=450) == 439


def test_a_partition_that_comes_back_counts_once_it_has_caught_up() -> None:
    event_time = EventTime(IDLE)
    commit(event_time, 1_000, a=500, b=400)
    commit(event_time, 1_200, a=700)
    assert event_time.watermark == 689
    assert commit(event_time, 1_210, b=500, a=800) == 789
    assert commit(event_time, 1_220, b=805, a=900) == 794


def test_a_new_partition_that_is_behind_is_waited_for() -> None:
    event_time = EventTime(IDLE)
    commit(event_time, 1_000, a=500)
    assert commit(event_time, 1_010, b=300) == 489, "it never goes back"
    assert commit(event_time, 1_020, a=800) == 489
    restored = EventTime(IDLE, event_time.watermark, event_time.clock, event_time.snapshot())
    assert commit(restored, 1_030, b=600) == 589
    assert commit(restored, 1_131, a=900) == 889, "not for longer than the timeout"


def test_where_all_are_idle_the_largest_counts() -> None:
    event_time = EventTime(IDLE)
    commit(event_time, 1_000, a=500, b=400)
    assert event_time.advance(1_100) == 389
    assert event_time.advance(1_101) == 489


def test_the_order_in_which_partitions_go_idle_does_not_matter() -> None:
    """Flink's valve would not emit `a` if the last input to become idle had come back and was behind."""
    event_time = EventTime(IDLE)
    commit(event_time, 1_000, a=500, b=300, c=100)
    commit(event_time, 1_090, a=500, b=300)
    assert commit(event_time, 1_150, a=500, b=300) == 289, "c is idle"
    commit(event_time, 1_170, c=200)
    assert event_time.advance(1_260) == 289, "c is behind, a and b are idle"
    assert event_time.advance(1_300) == 489


@pytest.mark.parametrize("clock", [1_000, 1_001, 1_003, 1_199])
@pytest.mark.parametrize(
    "looks", [(1_199,), (200, 400, 401, 1_199), range(1, 1_400, 7)], ids=["once", "at calls", "often"]
)
def test_time_that_goes_on_by_itself_is_never_ahead_of_the_clock(clock: int, looks: Iterable[int]) -> None:
    """It follows as soon as more than the wait has passed since the last commit, in whole intervals."""
    event_time = EventTime(WatermarkStrategy.for_bounded_out_of_orderness_with_idle_advance(2, 1_000))
    assert commit(event_time, clock, a=500) == 497
    assert commit(event_time, clock + 3, a=700) == 697
    for passed in looks:
        assert event_time.advance(clock + 3 + passed) == (697 if passed < 1_200 else 697 + passed // 200 * 200)
    assert event_time.advance(clock + 3 + 1_200) >= 697 + 1_200
    assert event_time.advance(clock + 3 + 86_400_100) == 697 + 86_400_000


def test_a_month_of_pause_is_one_step_for_time_that_goes_on_by_itself() -> None:
    """At the default interval these are 13 million periodic calls."""
    calls: list[int] = []

    class Counted(BoundedOutOfOrdernessWithIdleAdvance):
        def on_periodic_emits(self, number: int, output: WatermarkOutput) -> None:
            calls.append(number)
            super().on_periodic_emits(number, output)

    event_time = EventTime(WatermarkStrategy.for_generator(lambda: Counted(2, 10)))
    event_time.read({}, NOW, events=[SeenEvent(0, "a", NOW, {})])
    calls.clear()
    assert event_time.advance(NOW + 31 * 24 * HOUR) == NOW + 31 * 24 * HOUR - 3
    assert calls == [31 * 24 * HOUR // 200 - 1]


def test_time_that_goes_on_by_itself_does_so_before_a_commit_that_is_read_in_parts() -> None:
    ms = timedelta(milliseconds=1)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness_with_idle_advance(2 * ms, 10 * ms, 5 * ms)
    whole, parts = EventTime(strategy), EventTime(strategy)
    for event_time in (whole, parts):
        commit(event_time, 1_000, a=100)
    assert whole.read({"a": 90}, 1_050) == 147
    parts.read({"a": 80}, 1_050, complete=False)
    restored = EventTime(strategy, parts.watermark, parts.clock, parts.snapshot())
    assert restored.read({"a": 90}, 1_050) == 147


class Counting(WatermarkGenerator):
    """A user's generator: the watermark is the last event's time plus a millisecond for every call since."""

    def __init__(self) -> None:
        self.last, self.calls = 0, 0

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        self.last, self.calls = timestamp, 0

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        self.calls += 1
        output.emit_watermark(self.last + self.calls)

    def snapshot(self) -> dict[str, Any]:
        return {"last": self.last, "calls": self.calls}

    def restore(self, snapshot: dict[str, Any]) -> None:
        self.last, self.calls = snapshot["last"], snapshot["calls"]


def test_a_generator_of_ones_own_is_not_asked_about_the_time_before_its_first_commit() -> None:
    event_time = EventTime(WatermarkStrategy.for_generator(Counting).with_interval(HOUR))
    assert event_time.read({}, NOW, events=[SeenEvent(0, "a", 500, {})]) == 501
    assert event_time.read({}, NOW + 2 * HOUR, events=[SeenEvent(1, "b", 900, {})]) == 502
    assert event_time.snapshot()["b"]["generator"] == {"last": 900, "calls": 1}


def test_a_generator_of_ones_own_goes_on_by_the_clock_while_nothing_comes() -> None:
    strategy = WatermarkStrategy.for_generator(Counting).with_interval(timedelta(seconds=1))
    event_time = EventTime(strategy)
    event_time.read({}, NOW, events=[SeenEvent(0, "a", 500, {})])
    assert [event_time.advance(NOW + beat) for beat in (999, 1_000, 4_500)] == [501, 501, 504]
    restored = EventTime(strategy, event_time.watermark, event_time.clock, event_time.snapshot())
    assert restored.advance(NOW + 5_000) == 505


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.none() | st.integers(1, 60), st.data())
def test_periodic_calls_do_not_depend_on_when_the_clock_is_looked_at(
    steps: list[int], timeout: int | None, data: st.DataObject
) -> None:
    ms = timedelta(milliseconds=1)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness_with_idle_advance(2 * ms, 10 * ms, 5 * ms)
    if timeout is not None:
        strategy = strategy.with_idleness(timeout * ms)
    often, once = EventTime(strategy), EventTime(strategy)
    for times in (often, once):
        commit(times, 1_000, a=100, b=103)
    clock = 1_000
    for step in steps:
        clock += step
        often.advance(clock)
        if data.draw(st.booleans()):
            often = EventTime(strategy, often.watermark, often.clock, often.snapshot())
    assert once.advance(clock) == often.watermark


@given(
    st.lists(
        st.tuples(st.integers(0, 150), st.dictionaries(st.sampled_from("abc"), st.integers(0, 1_000), max_size=3)),
        max_size=20,
    )
)
def test_the_watermark_never_goes_back(commits: list[tuple[int, dict[str, int]]]) -> None:
    event_time, clock, before = EventTime(IDLE), 0, MIN_TIMESTAMP
    for pause, largest in commits:
        clock += pause
        now = commit(event_time, clock, **largest)
        assert now >= before
        before = now

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tidegate.windowing.errors import IncompatibleSnapshot
from tidegate.windowing.testing import ManualClock, RecordingOutput
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from tidegate.windowing.watermarks import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    BoundedOutOfOrdernessWithIdleAdvance,
    IdlenessTimer,
    NoWatermarks,
    PunctuatedWatermarks,
    WatermarkGenerator,
    WatermarksWithIdleness,
)


def emitted(generator: WatermarkGenerator, *timestamps: int) -> list[object]:
    output = RecordingOutput()
    for timestamp in timestamps:
        generator.on_event("event", timestamp, output)
    generator.on_periodic_emit(output)
    return output.take()


def test_a_delay_may_be_a_timedelta() -> None:
    assert emitted(BoundedOutOfOrdernessWatermarks(timedelta(seconds=1)), 5000) == [3999]


def test_events_never_emit_by_themselves() -> None:
    output = RecordingOutput()
    BoundedOutOfOrdernessWatermarks(0).on_event("event", 5, output)
    assert output.take() == []


@pytest.mark.parametrize("timestamp", [MIN_TIMESTAMP, MIN_TIMESTAMP + 5])
def test_the_watermark_of_very_early_events_stays_in_int64(timestamp: int) -> None:
    assert emitted(BoundedOutOfOrdernessWatermarks(10), timestamp) == [MIN_TIMESTAMP]


def test_the_last_timestamp_does_not_end_the_input() -> None:
    assert emitted(AscendingTimestampsWatermarks(), MAX_TIMESTAMP) == [MAX_TIMESTAMP - 1]


def test_no_watermarks_emits_nothing() -> None:
    assert emitted(NoWatermarks(), 1, 2) == []


def test_a_snapshot_goes_on_with_another_delay() -> None:
    before, after = BoundedOutOfOrdernessWatermarks(10), BoundedOutOfOrdernessWatermarks(3)
    emitted(before, 100)
    after.restore(before.snapshot())
    assert emitted(after) == [96]


def test_a_snapshot_taken_before_any_event_restores_to_the_minimum() -> None:
    generator = BoundedOutOfOrdernessWatermarks(10)
    generator.restore(BoundedOutOfOrdernessWatermarks(10).snapshot())
    assert emitted(generator) == [MIN_TIMESTAMP]


@pytest.mark.parametrize("snapshot", [{}, {"largest_timestamp": "5"}, {"largest_timestamp": True}])
def test_a_snapshot_of_something_else_is_refused(snapshot: dict[str, object]) -> None:
    with pytest.raises(IncompatibleSnapshot, match="largest_timestamp"):
        BoundedOutOfOrdernessWatermarks(10).restore(snapshot)


def test_only_events_that_say_so_emit() -> None:
    output = RecordingOutput()
    generator = PunctuatedWatermarks(lambda event, timestamp: timestamp - 1 if event == "marker" else None)
    generator.on_event("marker", 10, output)
    generator.on_event("event", 20, output)
    generator.on_periodic_emit(output)
    generator.on_event("marker", 30, output)
    assert output.take() == [9, 29]


def test_there_is_nothing_to_snapshot() -> None:
    generator = PunctuatedWatermarks(lambda event, timestamp: timestamp)
    assert generator.snapshot() == {}
    generator.restore({})


CALL = None


def run(generator: BoundedOutOfOrdernessWithIdleAdvance, *steps: int | None) -> list[object]:
    """Return the output of periodic calls (None) between events (their timestamps)."""
    output = RecordingOutput()
    for step in steps:
        if step is CALL:
            generator.on_periodic_emit(output)
        else:
            generator.on_event("event", step, output)
    return output.take()


def make() -> BoundedOutOfOrdernessWithIdleAdvance:
    return BoundedOutOfOrdernessWithIdleAdvance(delay=2, wait=10, interval=5)


def test_the_step_table_of_the_module_holds() -> None:
    assert run(make(), 100, CALL, CALL, CALL, 112, CALL) == [97, 97, 112, 112]


def test_time_stays_at_the_minimum_before_any_event() -> None:
    assert run(make(), *[CALL] * 5) == [MIN_TIMESTAMP] * 5


def test_a_wait_that_is_just_reached_is_not_over() -> None:
    assert run(make(), 0, CALL, CALL) == [-3, -3]


def test_time_goes_on_with_every_call_once_the_wait_is_over() -> None:
    assert run(make(), 0, *[CALL] * 5) == [-3, -3, 12, 17, 22]


def test_each_event_starts_the_wait_again() -> None:
    assert run(make(), 0, CALL, CALL, 1, CALL, CALL) == [-3, -3, -2, -2]


def test_an_event_behind_the_time_that_went_on_does_not_take_it_back() -> None:
    assert run(make(), 0, *[CALL] * 4, 3, CALL, CALL, CALL) == [-3, -3, 12, 17, 17, 17, 32]


def test_going_on_never_reaches_the_end_of_input() -> None:
    generator = BoundedOutOfOrdernessWithIdleAdvance(0, 0, 1000)
    assert run(generator, MAX_TIMESTAMP - 10, CALL, CALL) == [MAX_TIMESTAMP - 2] * 2


def with_idleness(clock: ManualClock) -> WatermarksWithIdleness:
    return WatermarksWithIdleness(BoundedOutOfOrdernessWatermarks(0), 10, clock)


def test_a_clock_that_starts_at_zero_is_no_special_case() -> None:
    clock = ManualClock(0)
    timer = IdlenessTimer(10, clock)
    assert not timer.check_if_idle()
    clock.now = 11
    assert timer.check_if_idle()


def test_the_generator_is_not_asked_while_the_stream_is_idle() -> None:
    clock, output = ManualClock(), RecordingOutput()
    generator = with_idleness(clock)
    generator.on_event("event", 100, output)
    for clock.now in (0, 1, 20, 40):
        generator.on_periodic_emit(output)
    assert output.take() == [99, 99, "idle", "idle"]


def test_an_event_ends_idleness() -> None:
    clock, output = ManualClock(), RecordingOutput()
    generator = with_idleness(clock)
    for clock.now in (0, 20):
        generator.on_periodic_emit(output)
    generator.on_event("event", 100, output)
    generator.on_periodic_emit(output)
    assert output.take()[-2:] == ["idle", 99]


def test_time_in_which_nothing_ran_is_no_idleness() -> None:
    clock = ManualClock(1000)
    before = IdlenessTimer(10, clock)
    before.check_if_idle()
    clock.now = 1008
    snapshot = json.loads(json.dumps(before.snapshot()))
    clock.now = 99_000
    after = IdlenessTimer(10, clock)
    after.restore(snapshot)
    assert not after.check_if_idle()
    clock.now += 3
    assert after.check_if_idle()


def test_an_event_before_a_snapshot_counts_after_it() -> None:
    clock = ManualClock()
    before, after = IdlenessTimer(10, clock), IdlenessTimer(10, clock)
    before.check_if_idle()
    clock.now = 50
    before.activity()
    after.restore(before.snapshot())
    assert not after.check_if_idle()


def test_a_snapshot_holds_the_generator_too() -> None:
    clock, output = ManualClock(), RecordingOutput()
    before, after = with_idleness(clock), with_idleness(clock)
    before.on_event("event", 100, output)
    after.restore(json.loads(json.dumps(before.snapshot())))
    after.on_periodic_emit(output)
    assert output.take() == [99]


def test_the_snapshot_of_a_bare_generator_is_refused() -> None:
    with pytest.raises(IncompatibleSnapshot, match="generator"):
        with_idleness(ManualClock()).restore(BoundedOutOfOrdernessWatermarks(0).snapshot())

from __future__ import annotations

import json

import pytest

from tidegate.windowing.errors import IllegalArgument, IncompatibleSnapshot
from tidegate.windowing.testing import ManualClock, RecordingOutput
from tidegate.windowing.watermarks import BoundedOutOfOrdernessWatermarks, IdlenessTimer, WatermarksWithIdleness


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


@pytest.mark.parametrize("timeout", [0, -1])
def test_a_timeout_must_be_greater_than_zero(timeout: int) -> None:
    with pytest.raises(IllegalArgument, match="idle_timeout"):
        IdlenessTimer(timeout, ManualClock())


def test_the_snapshot_of_a_bare_generator_is_refused() -> None:
    with pytest.raises(IncompatibleSnapshot, match="generator"):
        with_idleness(ManualClock()).restore(BoundedOutOfOrdernessWatermarks(0).snapshot())

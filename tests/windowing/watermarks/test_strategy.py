from __future__ import annotations

import json

import pytest

from tidegate.windowing.errors import IncompatibleSnapshot, MissingTimestamp
from tidegate.windowing.testing import ManualClock, RecordingOutput
from tidegate.windowing.time import LAST_TIME, MIN_TIMESTAMP
from tidegate.windowing.watermarks import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    BoundedOutOfOrdernessWithIdleAdvance,
    IdlenessTimer,
    NoWatermarks,
    WatermarkGenerator,
    WatermarkStrategy,
    WatermarksWithIdleness,
)

FACTORIES = [
    (WatermarkStrategy.for_bounded_out_of_orderness(5), BoundedOutOfOrdernessWatermarks),
    (WatermarkStrategy.for_bounded_out_of_orderness_with_idle_advance(5, 60), BoundedOutOfOrdernessWithIdleAdvance),
    (WatermarkStrategy.for_monotonous_timestamps(), AscendingTimestampsWatermarks),
    (WatermarkStrategy.no_watermarks(), NoWatermarks),
    (WatermarkStrategy.for_generator(AscendingTimestampsWatermarks), AscendingTimestampsWatermarks),
]


@pytest.mark.parametrize(("strategy", "kind"), FACTORIES)
def test_a_strategy_makes_its_generator_and_a_new_one_each_time(strategy: WatermarkStrategy, kind: type) -> None:
    first, second = (strategy.create_generator(ManualClock()) for _ in range(2))
    assert type(first) is kind
    assert first is not second
    assert isinstance(strategy.with_idleness(10).create_generator(ManualClock()), WatermarksWithIdleness)


def test_a_strategy_shows_as_the_code_that_makes_it() -> None:
    strategy = (
        WatermarkStrategy.for_bounded_out_of_orderness(1000)
        .with_idleness(60_000)
        .with_watermark_alignment("planes", 5000)
        .with_interval(50)
    )
    assert repr(strategy) == (
        "WatermarkStrategy.for_bounded_out_of_orderness(1000).with_idleness(60000)"
        ".with_watermark_alignment('planes', 5000, 1000).with_interval(50)"
    )
    assert eval(repr(strategy)) == strategy


def test_logical_time_goes_on_at_the_interval_of_the_strategy() -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness_with_idle_advance(0, 10, 25)
    output, generator = RecordingOutput(), strategy.create_generator(ManualClock())
    generator.on_event("event", 100, output)
    generator.on_periodic_emit(output)
    assert strategy.interval == 25
    assert output.take() == [124]


def test_an_assigner_sees_the_element_and_its_timestamp() -> None:
    strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda element, ts: element["at"] + (ts or 0))
    assert strategy.create_timestamp_assigner()({"at": 5}, 10) == 15
    assign = WatermarkStrategy.no_watermarks().create_timestamp_assigner()
    assert assign("element", 13) == 13, "without an assigner elements keep their timestamps"
    with pytest.raises(MissingTimestamp, match="with_timestamp_assigner"):
        assign("element", None)


def emitted(generator: WatermarkGenerator, *timestamps: int) -> list[object]:
    output = RecordingOutput()
    for timestamp in timestamps:
        generator.on_event("event", timestamp, output)
    generator.on_periodic_emit(output)
    return output.take()


@pytest.mark.parametrize("timestamp", [MIN_TIMESTAMP, MIN_TIMESTAMP + 5])
def test_the_watermark_of_very_early_events_stays_in_int64(timestamp: int) -> None:
    assert emitted(BoundedOutOfOrdernessWatermarks(10), timestamp) == [MIN_TIMESTAMP]


def test_the_last_timestamp_does_not_end_the_input() -> None:
    assert emitted(AscendingTimestampsWatermarks(), LAST_TIME - 1) == [LAST_TIME - 2]


def test_a_snapshot_goes_on_with_another_delay() -> None:
    before, after = BoundedOutOfOrdernessWatermarks(10), BoundedOutOfOrdernessWatermarks(3)
    emitted(before, 100)
    after.restore(before.snapshot())
    assert emitted(after) == [96]


@pytest.mark.parametrize("snapshot", [{}, {"largest_timestamp": "5"}, {"largest_timestamp": True}])
def test_a_snapshot_of_something_else_is_refused(snapshot: dict[str, object]) -> None:
    with pytest.raises(IncompatibleSnapshot, match="largest_timestamp"):
        BoundedOutOfOrdernessWatermarks(10).restore(snapshot)


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


@pytest.mark.parametrize(
    ("steps", "watermarks"),
    [
        pytest.param([100, CALL, CALL, CALL, 112, CALL], [97, 97, 112, 112], id="the step table of the module"),
        pytest.param([CALL] * 5, [MIN_TIMESTAMP] * 5, id="the minimum before any event"),
        pytest.param([0, *[CALL] * 5], [-3, -3, 12, 17, 22], id="after the wait with every call"),
        pytest.param([0, CALL, CALL, 1, CALL, CALL], [-3, -3, -2, -2], id="an event starts the wait again"),
        pytest.param([0, *[CALL] * 4, 3, *[CALL] * 3], [-3, -3, 12, 17, 17, 17, 32], id="an event behind the time"),
    ],
)
def test_time_goes_on_once_the_wait_is_over(steps: list[int | None], watermarks: list[int]) -> None:
    assert run(BoundedOutOfOrdernessWithIdleAdvance(delay=2, wait=10, interval=5), *steps) == watermarks


def test_going_on_never_reaches_the_end_of_input() -> None:
    generator = BoundedOutOfOrdernessWithIdleAdvance(0, 0, 1000)
    assert run(generator, LAST_TIME - 10, CALL, CALL) == [LAST_TIME - 2] * 2


def with_idleness(clock: ManualClock) -> WatermarksWithIdleness:
    return WatermarksWithIdleness(BoundedOutOfOrdernessWatermarks(0), 10, clock)


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


def test_the_snapshot_of_a_bare_generator_is_refused() -> None:
    with pytest.raises(IncompatibleSnapshot, match="generator"):
        with_idleness(ManualClock()).restore(BoundedOutOfOrdernessWatermarks(0).snapshot())

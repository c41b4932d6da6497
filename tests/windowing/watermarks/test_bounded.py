from __future__ import annotations

from datetime import timedelta

import pytest

from tidegate.windowing.errors import IllegalArgument, IncompatibleSnapshot
from tidegate.windowing.testing import RecordingOutput
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from tidegate.windowing.watermarks import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    NoWatermarks,
    WatermarkGenerator,
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


@pytest.mark.parametrize("delay", [-1, timedelta(microseconds=1), "1s", True])
def test_an_unusable_delay_is_named_with_the_way_out(delay: object) -> None:
    with pytest.raises(IllegalArgument, match=r"delay = .*: give "):
        BoundedOutOfOrdernessWatermarks(delay)  # type: ignore[arg-type]


@pytest.mark.parametrize("snapshot", [{}, {"largest_timestamp": "5"}, {"largest_timestamp": True}])
def test_a_snapshot_of_something_else_is_refused(snapshot: dict[str, object]) -> None:
    with pytest.raises(IncompatibleSnapshot, match="largest_timestamp"):
        BoundedOutOfOrdernessWatermarks(10).restore(snapshot)

from __future__ import annotations

from datetime import timedelta

import pytest

from tidegate.windowing.errors import MissingTimestamp
from tidegate.windowing.testing import ManualClock, RecordingOutput
from tidegate.windowing.watermarks import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    BoundedOutOfOrdernessWithIdleAdvance,
    NoWatermarks,
    WatermarkAlignmentParams,
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


@pytest.mark.parametrize(("strategy", "kind"), FACTORIES)
def test_idleness_goes_around_any_generator(strategy: WatermarkStrategy, kind: type) -> None:
    assert isinstance(strategy.with_idleness(10).create_generator(ManualClock()), WatermarksWithIdleness)


def test_strategies_with_the_same_settings_are_equal() -> None:
    def make() -> WatermarkStrategy:
        return (
            WatermarkStrategy.for_bounded_out_of_orderness(timedelta(seconds=1))
            .with_idleness(timedelta(minutes=1))
            .with_watermark_alignment("planes", 100)
        )

    assert make() == make()
    assert hash(make()) == hash(make())
    assert make() != make().with_idleness(1)
    assert WatermarkStrategy.for_bounded_out_of_orderness(0) != WatermarkStrategy.for_monotonous_timestamps()


def test_durations_as_timedelta_and_as_milliseconds_are_the_same() -> None:
    assert WatermarkStrategy.for_bounded_out_of_orderness(timedelta(hours=1)) == (
        WatermarkStrategy.for_bounded_out_of_orderness(3_600_000)
    )


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


def test_the_interval_is_200_milliseconds_unless_said_otherwise() -> None:
    assert WatermarkStrategy.no_watermarks().interval == 200
    assert WatermarkStrategy.no_watermarks().with_interval(0).interval == 0


def test_logical_time_goes_on_at_the_interval_of_the_strategy() -> None:
    strategy = WatermarkStrategy.for_bounded_out_of_orderness_with_idle_advance(0, 10, 25)
    output, generator = RecordingOutput(), strategy.create_generator(ManualClock())
    generator.on_event("event", 100, output)
    generator.on_periodic_emit(output)
    assert strategy.interval == 25
    assert output.take() == [124]


def test_without_an_assigner_elements_keep_their_timestamps() -> None:
    assign = WatermarkStrategy.no_watermarks().create_timestamp_assigner()
    assert assign("element", 13) == 13
    with pytest.raises(MissingTimestamp, match="with_timestamp_assigner"):
        assign("element", None)


def test_an_assigner_sees_the_element_and_its_timestamp() -> None:
    strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner(lambda element, ts: element["at"] + (ts or 0))
    assert strategy.create_timestamp_assigner()({"at": 5}, 10) == 15


def test_alignment_is_part_of_the_value() -> None:
    strategy = WatermarkStrategy.no_watermarks().with_watermark_alignment("planes", timedelta(seconds=1), 50)
    assert strategy.alignment == WatermarkAlignmentParams("planes", 1000, 50)

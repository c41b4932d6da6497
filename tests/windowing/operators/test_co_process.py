from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing import CoProcess, KeyedCoProcessFunction
from tidegate.windowing.errors import IllegalArgument, UnsupportedOperation
from tidegate.windowing.functions import OnTimerContext, ProcessContext
from tidegate.windowing.operators.records import ElementResult, IdleRecord, Record, WatermarkRecord
from tidegate.windowing.state import ValueStateDescriptor
from tidegate.windowing.state.descriptors import StateDescriptor
from tidegate.windowing.testing import OperatorHarness, co_process_harness

LIMIT = ValueStateDescriptor("limit", pa.int64())


class Limited(KeyedCoProcessFunction):
    """The left input sets a key's limit, the right one is held against it; a timer lifts the limit."""

    def process_element1(self, value: int, ctx: ProcessContext) -> None:
        ctx.get_state(LIMIT).update(value)
        if ctx.timestamp is not None:
            ctx.timer_service().register_event_time_timer(ctx.timestamp)

    def process_element2(self, value: int, ctx: ProcessContext) -> Iterator[Any]:
        limit = ctx.get_state(LIMIT).value()
        yield (value, limit is None or value <= limit)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Any]:
        yield ("lifted", ctx.get_state(LIMIT).value())
        ctx.get_state(LIMIT).clear()

    def states(self) -> Sequence[StateDescriptor]:
        return (LIMIT,)


def harness_with_timer(time: int) -> OperatorHarness:
    harness = co_process_harness(Limited())
    harness.element("k", 3, time, "left")
    harness.records()
    return harness


def test_both_inputs_share_the_state_of_a_key_through_snapshots() -> None:
    harness = co_process_harness(Limited())
    harness.element("a", 3, 100, "left")
    harness.restore(harness.snapshot(), parallelism=3)
    for key in ("a", "b"):
        harness.element(key, 5, 1, "right")
    assert harness.element_results() == [ElementResult((5, False), 1, "a"), ElementResult((5, True), 1, "b")]


def test_a_timer_fires_by_the_slower_input() -> None:
    harness = harness_with_timer(10)
    harness.watermark(20, "left")
    assert harness.records() == []
    harness.watermark(10, "right")
    assert harness.records() == [ElementResult(("lifted", 3), 10, "k"), WatermarkRecord(10)]


def test_a_watermark_without_a_side_is_of_both() -> None:
    harness = harness_with_timer(10)
    harness.watermark(10)
    assert harness.records() == [ElementResult(("lifted", 3), 10, "k"), WatermarkRecord(10)]


def test_a_watermark_that_does_not_advance_is_not_forwarded() -> None:
    harness = co_process_harness(Limited())
    for watermark in (5, 5, 4):
        harness.watermark(watermark)
    assert harness.records() == [WatermarkRecord(5)]


def test_when_both_inputs_are_idle_the_output_is() -> None:
    harness = co_process_harness(Limited())
    harness.watermark(5, "left")
    harness.idle("left")
    harness.idle("right")
    harness.idle("right")
    assert [type(record) for record in harness.records()] == [IdleRecord]


def test_an_input_that_resumes_makes_the_output_active_before_its_watermark() -> None:
    harness = co_process_harness(Limited())
    harness.idle()
    harness.watermark(7, "left")
    records: list[Record] = harness.records()
    assert [type(record) for record in records] == [IdleRecord, IdleRecord, WatermarkRecord]
    assert records[-1] == WatermarkRecord(7)


def test_a_resumed_input_holds_time_back_without_a_watermark() -> None:
    harness = co_process_harness(Limited())
    harness.idle("right")
    harness.watermark(7, "left")
    harness.idle("right", idle=False)
    harness.watermark(9, "left")
    assert [record for record in harness.records() if isinstance(record, WatermarkRecord)] == [WatermarkRecord(7)]


def test_a_restore_without_inputs_starts_both_at_the_watermark() -> None:
    harness = harness_with_timer(10)
    harness.watermark(4)
    operator, restored = harness.subtasks[0], co_process_harness(Limited()).subtasks[0]
    restored.restore_time(operator.timers.current_watermark, operator.timers.current_processing_time)
    restored.restore_state(operator.state_rows())
    restored.process_watermark(12, "left")
    assert restored.take_output() == []
    restored.process_watermark(11, "right")
    assert restored.take_output() == [ElementResult(("lifted", 3), 10, "k"), WatermarkRecord(11)]


@pytest.mark.parametrize("side", [None, "middle"])
def test_an_element_needs_a_side(side: str | None) -> None:
    with pytest.raises(IllegalArgument, match=r"side = .*'left' or 'right'"):
        co_process_harness(Limited()).element("k", 1, 1, side)


def test_an_unknown_side_has_no_watermark_and_no_status() -> None:
    harness = co_process_harness(Limited())
    with pytest.raises(IllegalArgument, match="side = 'middle'"):
        harness.watermark(1, "middle")
    with pytest.raises(IllegalArgument, match="side = 'middle'"):
        harness.idle("middle")


def test_timers_need_a_key() -> None:
    class Timed(Limited):
        def process_element1(self, value: int, ctx: ProcessContext) -> None:
            ctx.timer_service().register_event_time_timer(value)

    with pytest.raises(UnsupportedOperation, match="only supported on keyed streams"):
        co_process_harness(Timed(), keyed=False).element("all", 1, 1, "left")


def test_a_co_process_function_is_an_instance() -> None:
    with pytest.raises(IllegalArgument, match="KeyedCoProcessFunction"):
        CoProcess(Limited)  # type: ignore[arg-type]


STEP = st.one_of(
    st.tuples(st.just("element"), st.sampled_from(["left", "right"]), st.sampled_from("ab"), st.integers(0, 30)),
    st.tuples(st.just("watermark"), st.sampled_from(["left", "right"]), st.integers(0, 30)),
    st.tuples(st.just("idle"), st.sampled_from(["left", "right"]), st.booleans()),
)


def feed(harness: OperatorHarness, step: Any) -> None:
    match step:
        case ("element", side, key, number):
            harness.element(key, number, number, side)
        case ("watermark", side, watermark):
            harness.watermark(watermark, side)
        case (_, side, idle):
            harness.idle(side, idle)


def by_key(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda record: getattr(record, "key", None) or "")


@given(st.lists(STEP, max_size=25), st.data())
def test_a_restore_at_any_point_changes_nothing(steps: list[Any], data: st.DataObject) -> None:
    straight, restored = co_process_harness(Limited()), co_process_harness(Limited())
    for step in steps:
        feed(straight, step)
        feed(restored, step)
        # Timers of several keys that are due together fire in any order.
        assert by_key(restored.records()) == by_key(straight.records())
        if data.draw(st.booleans()):
            restored.restore(restored.snapshot())
    assert restored.event_time_timers == straight.event_time_timers
    assert restored.state_entries == straight.state_entries

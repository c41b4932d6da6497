from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing import KeyedCoProcessFunction, KeyedProcess, KeyedProcessFunction, TimeDomain
from tidegate.windowing.errors import IllegalArgument, IllegalState, UnsupportedOperation
from tidegate.windowing.functions import OnTimerContext, ProcessContext
from tidegate.windowing.operators.records import ElementResult, IdleRecord, Record, SideOutput, WatermarkRecord
from tidegate.windowing.state import (
    ListStateDescriptor,
    ValueStateDescriptor,
)
from tidegate.windowing.state.descriptors import StateDescriptor
from tidegate.windowing.testing import OperatorHarness, co_process_harness, keyed_process_harness

COUNT = ValueStateDescriptor("count", pa.int64())


class SetTimers(KeyedProcessFunction):
    """An element is a list of (domain, time, delete); timers report when and by which clock they fired."""

    def process_element(self, value: list[tuple[str, int, bool]], ctx: ProcessContext) -> None:
        timers = ctx.timer_service()
        for domain, time, delete in value:
            getattr(timers, f"{'delete' if delete else 'register'}_{domain}_time_timer")(time)

    def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Iterator[Any]:
        timers = ctx.timer_service()
        event = ctx.time_domain is TimeDomain.EVENT_TIME
        now = timers.current_watermark() if event else timers.current_processing_time()
        yield (ctx.current_key, ctx.time_domain.value, timestamp, now)


class Hooks(KeyedProcessFunction):
    """Runs what the element says."""

    def process_element(self, value: Any, ctx: ProcessContext) -> Any:
        return value(ctx)

    def states(self) -> Sequence[StateDescriptor]:
        return (COUNT,)


def values(harness: OperatorHarness) -> list[Any]:
    return [record.value for record in harness.element_results()]


def test_results_and_side_outputs_come_out_in_the_order_in_which_they_were_made() -> None:
    def interleaved(ctx: ProcessContext) -> Iterator[Any]:
        yield 1
        ctx.output("side", "between")
        yield 2

    harness = keyed_process_harness(Hooks())
    harness.element("k", interleaved, 5)
    assert harness.records() == [
        ElementResult(1, 5, "k"),
        SideOutput("side", "between", 5, "k"),
        ElementResult(2, 5, "k"),
    ]


@pytest.mark.parametrize("results", [None, [], ()])
def test_a_hook_may_have_no_results(results: Any) -> None:
    harness = keyed_process_harness(Hooks())
    harness.element("k", lambda ctx: results, 5)
    assert harness.records() == []


def test_an_element_without_a_timestamp_is_processed_all_the_same() -> None:
    harness = keyed_process_harness(Hooks())
    harness.element("k", lambda ctx: [ctx.timestamp], None)
    assert harness.records() == [ElementResult(None, None, "k")]


def test_a_side_output_of_a_timer_carries_its_timestamp_in_both_domains() -> None:
    class Telling(SetTimers):
        def on_timer(self, timestamp: int, ctx: OnTimerContext) -> Any:
            ctx.output("fired", ctx.time_domain.value)

    harness = keyed_process_harness(Telling())
    harness.element("k", [("event", 7, False), ("processing", 3, False)], 1)
    harness.processing_time(5)
    harness.watermark(9)
    assert harness.side_outputs() == [SideOutput("fired", "processing", 3, "k"), SideOutput("fired", "event", 7, "k")]


def test_a_watermark_that_does_not_advance_is_forwarded_at_the_present_time() -> None:
    harness = keyed_process_harness(SetTimers())
    for watermark in (5, 5, 3):
        harness.watermark(watermark)
    assert harness.records() == [WatermarkRecord(5)] * 3


@pytest.mark.parametrize("results", ["text", {"a": 1}, 7])
def test_a_single_result_must_be_yielded_or_listed(results: Any) -> None:
    with pytest.raises(IllegalArgument, match="yield results, or return them in a list"):
        keyed_process_harness(Hooks()).element("k", lambda ctx: results, 5)


@pytest.mark.parametrize("tag", [None, "", 3])
def test_a_side_output_needs_a_name(tag: Any) -> None:
    harness = keyed_process_harness(Hooks())
    with pytest.raises(IllegalArgument, match="tag = "):
        harness.element("k", lambda ctx: ctx.output(tag, 1), 5)


def test_undeclared_state_is_refused_with_the_way_out() -> None:
    harness = keyed_process_harness(Hooks())
    with pytest.raises(UnsupportedOperation, match="'limit' of Hooks is not declared: return its descriptor"):
        harness.element("k", lambda ctx: ctx.get_state(LIMIT), 5)


def test_the_time_domain_is_known_in_timers_only() -> None:
    harness = keyed_process_harness(Hooks())
    with pytest.raises(IllegalState, match="on_timer only"):
        harness.element("k", lambda ctx: [ctx.time_domain], 5)


@pytest.mark.parametrize("domain", ["event", "processing"])
@pytest.mark.parametrize("delete", [False, True])
def test_timers_need_a_key(domain: str, delete: bool) -> None:
    harness = keyed_process_harness(SetTimers(), keyed=False)
    with pytest.raises(UnsupportedOperation, match="only supported on keyed streams"):
        harness.element("all", [(domain, 5, delete)], 1)


def test_state_needs_a_key() -> None:
    harness = keyed_process_harness(Hooks(), keyed=False)
    with pytest.raises(UnsupportedOperation, match="only supported on keyed streams"):
        harness.element("all", lambda ctx: ctx.get_state(COUNT), 1)


def test_clocks_can_be_read_without_a_key() -> None:
    harness = keyed_process_harness(Hooks(), keyed=False)
    harness.watermark(4)
    harness.element("all", lambda ctx: [ctx.timer_service().current_watermark()], 1)
    assert values(harness) == [4]


def test_states_of_one_name_are_refused() -> None:
    class Twice(Hooks):
        def states(self) -> Sequence[StateDescriptor]:
            return (COUNT, ListStateDescriptor("count", pa.string()))

    with pytest.raises(IllegalArgument, match=r"states = .*name of its own"):
        KeyedProcess(Twice())


STEP = st.one_of(
    st.tuples(
        st.just("element"),
        st.sampled_from("abc"),
        st.lists(st.tuples(st.sampled_from(["event", "processing"]), st.integers(0, 40), st.booleans()), max_size=3),
    ),
    st.tuples(st.sampled_from(["event", "processing"]), st.integers(0, 40)),
    st.tuples(st.just("restore"), st.integers(1, 4)),
)


@given(st.lists(STEP, max_size=25))
def test_timers_fire_once_none_early_and_none_lost_across_restores(steps: list[Any]) -> None:
    harness = keyed_process_harness(SetTimers())
    pending: set[tuple[str, str, int]] = set()
    clocks = {"event": -(2**63), "processing": 0}
    for step in steps:
        due: list[tuple[str, str, int, int]] = []
        match step:
            case ("element", key, timers):
                harness.element(key, timers, 0)
                for domain, time, delete in timers:
                    (pending.discard if delete else pending.add)((key, domain, time))
            case ("restore", parallelism):
                harness.restore(harness.snapshot(), parallelism)
            case (domain, time):
                clocks[domain] = max(clocks[domain], time)
                (harness.watermark if domain == "event" else harness.processing_time)(time)
                fired = {timer for timer in pending if timer[1] == domain and timer[2] <= clocks[domain]}
                pending -= fired
                due = [(*timer, clocks[domain]) for timer in fired]
        came = values(harness)
        assert sorted(came) == sorted(due)
        for key in "abc":
            times = [time for of_key, _, time, _ in came if of_key == key]
            assert times == sorted(times)
    assert harness.event_time_timers + harness.processing_time_timers == len(pending)


LIMIT = ValueStateDescriptor("limit", pa.int64())


class Limited(KeyedCoProcessFunction):
    """The left input sets a key's limit, the right one is compared with it; a timer removes the limit."""

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


def test_when_both_inputs_are_idle_the_output_is_and_one_that_resumes_makes_it_active_before_its_watermark() -> None:
    harness = co_process_harness(Limited())
    harness.watermark(5, "left")
    harness.idle("left")
    harness.idle("right")
    harness.idle("right")
    assert harness.records() == [WatermarkRecord(5), IdleRecord(True)]
    harness.watermark(7, "left")
    assert [type(record) for record in harness.records()] == [IdleRecord, WatermarkRecord]


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


STEP_OF_INPUTS = st.one_of(
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


@given(st.lists(STEP_OF_INPUTS, max_size=25), st.data())
def test_a_restore_at_any_point_changes_nothing(steps: list[Any], data: st.DataObject) -> None:
    straight, restored = co_process_harness(Limited()), co_process_harness(Limited())
    for step in steps:
        feed(straight, step)
        feed(restored, step)
        # Timers of several keys that are due at the same time fire in any order.
        assert by_key(restored.records()) == by_key(straight.records())
        if data.draw(st.booleans()):
            restored.restore(restored.snapshot())
    assert restored.event_time_timers == straight.event_time_timers
    assert restored.state_entries == straight.state_entries

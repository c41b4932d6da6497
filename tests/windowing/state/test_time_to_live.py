"""A snapshot leaves out state whose time to live has passed, so state does not grow with every key there ever was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import add
from typing import Any

import pyarrow as pa
import pytest

from tests.windowing.contracts.scripted import CONTINUE, Given, Scripted
from tidegate.windowing import KeyedProcessFunction, Sum, Windows
from tidegate.windowing.assigners import EventTimeSessionWindows
from tidegate.windowing.functions import ProcessWindowFunction
from tidegate.windowing.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tidegate.windowing.testing import OperatorHarness, keyed_process_harness, window_harness
from tidegate.windowing.windows import TimeWindow

TTL = StateTtlConfig(100)
STATES: dict[str, tuple[StateDescriptor, Callable[[Any, Any], None]]] = {
    "value": (ValueStateDescriptor("kept", pa.int64(), TTL), lambda state, value: state.update(value)),
    "list": (ListStateDescriptor("kept", pa.int64(), TTL), lambda state, value: state.add(value)),
    "map": (MapStateDescriptor("kept", pa.int64(), pa.int64(), TTL), lambda state, value: state.put(value, value)),
    "reducing": (ReducingStateDescriptor("kept", add, pa.int64(), TTL), lambda state, value: state.add(value)),
    "aggregating": (
        AggregatingStateDescriptor("kept", Sum("n").bind(pa.schema([("n", pa.int64())])), TTL),
        lambda state, value: state.add({"n": value}),
    ),
}


class Keeps(KeyedProcessFunction):
    """Keeps each element in a state with a time to live."""

    def __init__(self, kind: str) -> None:
        self.state, self.keep = STATES[kind]

    def states(self) -> Sequence[StateDescriptor]:
        return (self.state,)

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        self.keep(ctx.get_state(self.state), value)
        return ()


def rows(harness: OperatorHarness) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = harness.snapshot().rows.to_pylist()
    return found


@pytest.mark.parametrize("kind", STATES)
def test_a_key_whose_state_has_expired_has_no_row(kind: str) -> None:
    harness = keyed_process_harness(Keeps(kind))
    harness.processing_time(1000)
    harness.element("old", 1, 0)
    harness.processing_time(1099)
    harness.element("young", 2, 0)
    assert {row["key"] for row in rows(harness)} == {"old", "young"}
    harness.processing_time(1100)
    assert [row["key"] for row in rows(harness)] == ["young"]
    harness.restore(harness.snapshot())
    assert [row["key"] for row in rows(harness)] == ["young"]


@pytest.mark.parametrize("kind", ["list", "map"])
def test_of_a_list_or_map_only_the_entries_that_live_stay(kind: str) -> None:
    harness = keyed_process_harness(Keeps(kind))
    harness.element("a", 1, 0)
    harness.processing_time(50)
    harness.element("a", 2, 0)
    harness.processing_time(100)
    ((row),) = rows(harness)
    entry = {"value": 2, "at": 50}
    assert row["user_state"]["kept"] == ([entry] if kind == "list" else [(2, entry)])


class Timed(Keeps):
    """Sets a timer with each element, too."""

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        ctx.timer_service().register_event_time_timer(500)
        return super().process_element(value, ctx)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterable[Any]:
        yield ctx.get_state(self.state).value()


def test_a_key_with_timers_keeps_its_row_when_its_state_has_expired() -> None:
    harness = keyed_process_harness(Timed("value"))
    harness.element("a", 1, 0)
    harness.processing_time(100)
    ((row),) = rows(harness)
    assert row["user_state"] is None
    assert row["event_time_timers"] == [500]
    harness.restore(harness.snapshot())
    harness.watermark(500)
    assert [result.value for result in harness.element_results()] == [None]


class OverWindows(ProcessWindowFunction):
    """Counts the windows of a key, in a state with a time to live."""

    count = ReducingStateDescriptor("count", add, pa.int64(), TTL)

    def global_states(self) -> Sequence[StateDescriptor]:
        return (self.count,)

    def process(self, key: Any, ctx: Any, elements: Sequence[Any]) -> Iterable[Any]:
        state = ctx.global_state.get_state(self.count)
        state.add(1)
        yield state.get()


def test_what_a_window_function_keeps_of_a_key_expires_in_the_snapshot() -> None:
    harness = window_harness(Windows(EventTimeSessionWindows.with_gap(10), process=OverWindows()))
    harness.element("a", 1, 0)
    harness.watermark(50)
    assert [row["namespace"] for row in rows(harness)] == ["key"]
    harness.processing_time(100)
    assert rows(harness) == []
    harness.element("a", 1, 100)
    harness.watermark(150)
    assert [result.value for result in harness.results()] == [1, 1]


def test_what_a_trigger_keeps_of_a_window_expires_in_the_snapshot() -> None:
    state = ValueStateDescriptor("cell", pa.int64(), TTL)

    def remember(window: Any, ctx: Any) -> Any:
        ctx.get_partitioned_state(state).update(7)
        return CONTINUE

    trigger = Scripted(element=remember, state=state)
    harness = window_harness(
        Windows(Given(event_time=True), trigger=trigger, process=OverWindows()),
        value_type=pa.list_(pa.list_(pa.int64())),
    )
    harness.element("a", [TimeWindow(0, 1000)], 0)
    assert [row["trigger_state"] for row in rows(harness)] == [{"cell": {"value": 7, "at": 0}}]
    harness.processing_time(100)
    assert [row["trigger_state"] for row in rows(harness)] == [None]


def test_reduced_states_of_windows_that_merge_live_as_long_as_the_newer_one() -> None:
    state = ReducingStateDescriptor("n", add, pa.int64(), TTL)
    target = {"n": {"value": 1, "at": 5}}
    state.merge(target, {"n": {"value": 2, "at": 3}})
    assert target == {"n": {"value": 3, "at": 5}}


class Pages(KeyedProcessFunction):
    """Puts each page, and shows the order of those that it finds."""

    seen = MapStateDescriptor("seen", pa.string(), pa.int64(), StateTtlConfig(10))

    def states(self) -> Sequence[StateDescriptor]:
        return (self.seen,)

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        pages = ctx.get_state(self.seen)
        pages.put(value, 1)
        yield pages.keys()


@pytest.mark.parametrize("restarts", [True, False])
def test_an_entry_that_is_put_again_after_it_expired_is_the_last_with_and_without_a_restart(restarts: bool) -> None:
    harness = keyed_process_harness(Pages())
    for clock, page in ((0, "c"), (8, "b"), (15, "c")):
        harness.processing_time(clock)
        if restarts:
            harness.restore(harness.snapshot())
        harness.element("ann", page, clock)
    assert [result.value for result in harness.element_results()][-1] == ["b", "c"]

"""Counters of operators, and the warning for state that nothing cleans."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from tidegate.windowing import (
    Accumulation,
    CountEvictor,
    CountTrigger,
    EndOfStreamTrigger,
    GlobalWindows,
    IntervalJoin,
    KeyedProcess,
    KeyedProcessFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    Windows,
)
from tidegate.windowing.errors import UnboundedStateWarning
from tidegate.windowing.functions import ReduceElements
from tidegate.windowing.operators.joins import IntervalJoinOperator
from tidegate.windowing.operators.process import KeyedProcessOperator
from tidegate.windowing.operators.window import WindowOperator
from tidegate.windowing.panes import Timing
from tidegate.windowing.time import MAX_TIMESTAMP


def plus(a: int, b: int) -> int:
    return a + b


def test_elements_in_are_on_time_late_or_without_a_window() -> None:
    operator = WindowOperator(Windows(SlidingEventTimeWindows.of(10, 30), allowed_lateness=5, reduce=plus))
    for timestamp in (1, 2, 35, 15):
        operator.process_element("a", 1, timestamp)
    operator.process_watermark(12)
    operator.process_element("a", 1, 3)
    operator.process_watermark(40)
    operator.process_element("a", 1, 4)
    operator.process_element("a", 1, 20)
    counters = operator.counters
    assert (counters.elements, counters.on_time, counters.late, counters.no_window) == (7, 4, 2, 1)
    assert counters.elements == counters.on_time + counters.late + counters.no_window


def test_firings_are_counted_by_timing() -> None:
    trigger = CountTrigger.of(2)
    operator = WindowOperator(Windows(TumblingEventTimeWindows.of(10), trigger, allowed_lateness=100, reduce=plus))
    for timestamp in (1, 2):
        operator.process_element("a", 1, timestamp)
    operator.process_watermark(20)
    for timestamp in (3, 4, 5, 6):
        operator.process_element("a", 1, timestamp)
    assert operator.counters.fired == {Timing.EARLY: 1, Timing.ON_TIME: 0, Timing.LATE: 2}


def test_timers_and_open_windows_are_counted() -> None:
    operator = WindowOperator(Windows(TumblingEventTimeWindows.of(10), allowed_lateness=5, reduce=plus))
    for key in "ab":
        operator.process_element(key, 1, 1)
    counters = operator.counters
    assert (counters.timers_registered, counters.timers_fired, counters.open_windows) == (4, 0, 2)
    operator.process_watermark(9)
    assert (operator.counters.timers_fired, operator.counters.open_windows) == (2, 2)
    operator.process_watermark(14)
    assert (operator.counters.timers_fired, operator.counters.open_windows) == (4, 0)
    assert operator.counters.timers_deleted == 0


def test_restored_timers_are_not_registered_again() -> None:
    first = WindowOperator(Windows(TumblingEventTimeWindows.of(10), reduce=plus))
    first.process_element("a", 1, 1)
    second = WindowOperator(first.windows)
    second.restore_state(first.state_rows())
    assert (second.counters.timers_registered, second.counters.open_windows) == (0, 1)


class OneTimer(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(5)
        ctx.timer_service().register_event_time_timer(6)
        ctx.timer_service().delete_event_time_timer(6)


def test_process_functions_and_joins_count_their_timers_too() -> None:
    process = KeyedProcessOperator(KeyedProcess(OneTimer()))
    process.process_element("a", 1, 1)
    process.process_watermark(5)
    counters = process.counters
    assert (counters.elements, counters.timers_registered, counters.timers_fired, counters.timers_deleted) == (
        1,
        2,
        1,
        1,
    )
    join = IntervalJoinOperator(IntervalJoin.between(-5, 5))
    join.process_element("a", 1, 1, "left")
    assert (join.counters.elements, join.counters.timers_registered) == (1, 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Windows(GlobalWindows.create(), reduce=plus),
        lambda: Windows(GlobalWindows.create(), CountTrigger.of(5), reduce=plus),
        lambda: Windows(TumblingEventTimeWindows.of(10), allowed_lateness=MAX_TIMESTAMP, reduce=plus),
    ],
)
def test_windows_that_nothing_ever_cleans_are_warned_of(make: Any) -> None:
    with pytest.warns(UnboundedStateWarning, match=r"nothing ever cleans.*PurgingTrigger"):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Windows(GlobalWindows.create(), PurgingTrigger.of(CountTrigger.of(5)), reduce=plus),
        lambda: Windows(GlobalWindows.create(), EndOfStreamTrigger(), reduce=plus),
        lambda: Windows(GlobalWindows.create(), CountTrigger.of(1), CountEvictor.of(5), process=ReduceElements(plus)),
        lambda: Windows(GlobalWindows.create(), CountTrigger.of(1), accumulation=Accumulation.DISCARDING, reduce=plus),
        lambda: Windows(TumblingEventTimeWindows.of(10), allowed_lateness=86_400_000, reduce=plus),
    ],
)
def test_windows_that_something_empties_are_not(make: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make()

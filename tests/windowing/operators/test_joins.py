"""Joins equal a nested loop over all elements, whatever the order, epochs and restores. Counters of operators, and the
warning about state that nothing cleans up.
"""

from __future__ import annotations

import warnings
from collections import Counter
from datetime import timedelta
from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.windowing import (
    Accumulation,
    CountEvictor,
    CountTrigger,
    CumulateEventTimeWindows,
    EndOfStreamTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    IntervalJoin,
    KeyedProcess,
    KeyedProcessFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowJoin,
    Windows,
    WindowStagger,
)
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.compute import JoinKind
from tidegate.windowing.errors import IllegalArgument, MissingTimestamp, UnboundedStateWarning
from tidegate.windowing.operators.joins import IntervalJoinOperator
from tidegate.windowing.operators.process import KeyedProcessOperator
from tidegate.windowing.operators.records import ElementResult, LateElement, WatermarkRecord
from tidegate.windowing.operators.window import WindowOperator
from tidegate.windowing.panes import Timing
from tidegate.windowing.testing import OperatorHarness, interval_join_harness, window_join_harness
from tidegate.windowing.time import LAST_TIME, LONGEST_DURATION, MAX_TIMESTAMP, MIN_TIMESTAMP, millis

KINDS: tuple[JoinKind, ...] = get_args(JoinKind)

ASSIGNERS: list[WindowAssigner] = [
    TumblingEventTimeWindows.of(10, 3),
    SlidingEventTimeWindows.of(12, 5),
    SlidingEventTimeWindows.of(3, 8),
    CumulateEventTimeWindows.of(12, 4),
]

Element = tuple[str, str, int]

"""Side, key and time."""

ELEMENTS = st.lists(
    st.tuples(st.sampled_from(["left", "right"]), st.sampled_from("ab"), st.integers(-20, 20)), max_size=25
)

INTERVAL_JOINS = st.builds(
    lambda lower, width, lower_in, upper_in: IntervalJoin(lower, lower + width, lower_in, upper_in),
    st.integers(-10, 10),
    st.integers(0, 10),
    st.booleans(),
    st.booleans(),
)

WINDOW_JOINS_OF = {kind: st.builds(WindowJoin, st.sampled_from(ASSIGNERS), st.just(kind)) for kind in KINDS}
WINDOW_JOINS = st.one_of(*WINDOW_JOINS_OF.values())


def pairs(join: IntervalJoin, elements: list[Element]) -> Counter[Any]:
    """Return the expected pairs, from every pair of all elements; elements are numbered, so that duplicates count."""
    lower, upper = millis(join.lower, "lower"), millis(join.upper, "upper")
    numbered = list(enumerate(elements))
    return Counter(
        (key, i, j, max(left, right))
        for i, (side, key, left) in numbered
        for j, (other, other_key, right) in numbered
        if side == "left" and other == "right" and key == other_key
        if (right - left >= lower if join.lower_inclusive else right - left > lower)
        if (right - left <= upper if join.upper_inclusive else right - left < upper)
    )


def rows(join: WindowJoin, elements: list[Element]) -> Counter[Any]:
    """Return the expected rows, from every pair of all elements in each window."""
    clock: Any = None
    numbered = [
        (side, key, number, set(join.assigner.assign_windows({}, time, clock)))
        for number, (side, key, time) in enumerate(elements)
    ]
    found: Counter[Any] = Counter()
    for side, key, number, windows in numbered:
        for window in windows:
            partners = [n for s, k, n, w in numbered if s != side and k == key and window in w]
            if side == "left":
                if join.kind in ("inner", "left", "right", "full"):
                    found.update((key, number, partner, window.max_timestamp) for partner in partners)
                if (join.kind in ("left", "full", "anti") and not partners) or (join.kind == "semi" and partners):
                    found[key, number, None, window.max_timestamp] += 1
            elif join.kind in ("right", "full") and not partners:
                found[key, None, number, window.max_timestamp] += 1
    return found


def came(harness: OperatorHarness) -> Counter[Any]:
    """Return key, left and right number and time of the emitted rows."""
    found: Counter[Any] = Counter()
    for row in harness.records():
        assert not isinstance(row, LateElement)
        if isinstance(row, ElementResult):
            window = getattr(row.value, "window", None)
            left, right = row.value if window is None else (row.value.left, row.value.right)
            assert window is None or row.timestamp == window.max_timestamp
            found[row.key, left, right, row.timestamp] += 1
    return found


@pytest.mark.parametrize("joins", [INTERVAL_JOINS, *WINDOW_JOINS_OF.values()], ids=["interval", *WINDOW_JOINS_OF])
@settings(max_examples=settings().max_examples * 2 // 5)
@given(ELEMENTS, st.data())
def test_a_join_equals_a_nested_loop_whatever_the_order_watermarks_and_restores_and_keeps_nothing_at_the_end(
    joins: st.SearchStrategy[IntervalJoin | WindowJoin], elements: list[Element], data: st.DataObject
) -> None:
    join = data.draw(joins)
    by_time = isinstance(join, IntervalJoin)
    harness: OperatorHarness = (interval_join_harness if by_time else window_join_harness)(
        join, left_type=pa.int64(), right_type=pa.int64()
    )
    total: Counter[Any] = Counter()
    for number, (side, key, time) in enumerate(elements):
        harness.element(key, number, time, side)
        # Return how far the watermark of either side may advance without making a later element late.
        for one in ("left", "right"):
            rest = [later for of_side, _, later in elements[number + 1 :] if of_side == one]
            harness.watermark(min(rest, default=1000) - 1, one)
        total += came(harness)
        if data.draw(st.booleans()):
            harness.restore(harness.snapshot(), data.draw(st.integers(1, 3)))
    harness.watermark(MAX_TIMESTAMP)
    total += came(harness)
    assert total == (pairs(join, elements) if by_time else rows(join, elements))
    assert harness.state_entries == harness.event_time_timers == 0


@given(WINDOW_JOINS, ELEMENTS, st.lists(st.integers(-20, 20), min_size=25, max_size=25))
def test_every_element_is_joined_or_late_or_in_no_window(
    join: WindowJoin, elements: list[Element], watermarks: list[int]
) -> None:
    harness = window_join_harness(join)
    watermark, taken, late = MIN_TIMESTAMP, [], 0
    for number, ((side, key, time), mark) in enumerate(zip(elements, watermarks, strict=False)):
        harness.element(key, number, time, side)
        clock: Any = None
        windows = join.assigner.assign_windows({}, time, clock)
        refused = [r for r in harness.records() if isinstance(r, LateElement)]
        if all(window.max_timestamp <= watermark for window in windows) and time <= watermark:
            assert [(r.value, r.side, r.window) for r in refused] == [(number, side, windows[0] if windows else None)]
            late += 1
        else:
            assert refused == []
            taken.append((side, key, time, watermark))
        harness.watermark(mark)
        watermark = max(watermark, mark)
    operator = harness.subtasks[0]
    assert operator.counters.elements == len(elements)
    assert operator.counters.late == late
    in_windows = sum(bool(join.assigner.assign_windows({}, time, clock)) for _, _, time, _ in taken)
    assert operator.counters.on_time == in_windows


def test_a_function_makes_a_row_of_a_pair_and_its_window() -> None:
    join = WindowJoin(
        TumblingEventTimeWindows.of(10), "left", join=lambda left, right, window: (left, right, window.start)
    )
    harness = window_join_harness(join)
    harness.element("k", 1, 13, "left")
    harness.element("k", 2, 17, "right")
    harness.element("k", 3, 21, "left")
    harness.watermark(100)
    assert [record.value for record in harness.element_results()] == [(1, 2, 10), (3, None, 20)]


@pytest.mark.parametrize("timestamp", [None, MIN_TIMESTAMP])
def test_an_element_needs_a_time_and_a_side(timestamp: int | None) -> None:
    harness = window_join_harness(WindowJoin(ASSIGNERS[0]))
    with pytest.raises(MissingTimestamp):
        harness.element("k", 1, timestamp, "left")
    with pytest.raises(IllegalArgument, match="give the input"):
        harness.element("k", 1, 1)


@pytest.mark.parametrize(
    "assigner",
    [
        EventTimeSessionWindows.with_gap(10),
        GlobalWindows.create(),
        TumblingProcessingTimeWindows.of(10),
        TumblingEventTimeWindows.of(10, 0, WindowStagger.NATURAL),
        None,
    ],
)
def test_windows_that_inputs_can_not_share_are_refused(assigner: Any) -> None:
    with pytest.raises(IllegalArgument, match="both inputs must have the same windows"):
        WindowJoin(assigner)


@given(INTERVAL_JOINS, ELEMENTS, st.lists(st.integers(-20, 20), min_size=25, max_size=25))
def test_every_element_is_joined_in_time_or_late(
    join: IntervalJoin, elements: list[Element], watermarks: list[int]
) -> None:
    harness = interval_join_harness(join)
    watermark = MIN_TIMESTAMP
    for (side, key, time), mark in zip(elements, watermarks, strict=False):
        harness.element(key, time, time, side)
        assert [record.timestamp for record in harness.late()] == ([time] if time < watermark else [])
        harness.watermark(mark)
        watermark = max(watermark, mark)
    operator = harness.subtasks[0]
    assert operator.counters.elements == len(elements)
    assert operator.counters.on_time + operator.counters.late == len(elements)


def test_a_result_is_the_pair_unless_the_join_makes_something_of_it() -> None:
    for join, result in ((IntervalJoin(0, 5), (1, 2)), (IntervalJoin(0, 5, join=lambda left, right: left + right), 3)):
        harness = interval_join_harness(join)
        harness.element("k", 1, 10, "left")
        harness.element("k", 2, 12, "right")
        assert harness.element_results() == [ElementResult(result, 12, "k")]


def test_results_come_by_the_time_of_the_partner_then_by_arrival() -> None:
    harness = interval_join_harness(IntervalJoin(-5, 5))
    for value, time in (("c", 3), ("a", 1), ("d", 3), ("b", 2)):
        harness.element("k", value, time, "right")
    harness.element("k", "left", 2, "left")
    assert [record.value[1] for record in harness.element_results()] == ["a", "b", "c", "d"]


def test_late_elements_without_an_output_are_counted() -> None:
    harness = interval_join_harness(IntervalJoin(-1, 1), late_output=False)
    harness.watermark(5)
    harness.element("k", 1, 4, "left")
    assert harness.late() == []
    assert harness.late_dropped == 1


def test_an_element_that_joins_beyond_the_range_of_times_is_removed_at_the_end_of_input() -> None:
    harness = interval_join_harness(IntervalJoin(0, LONGEST_DURATION))
    harness.element("k", 1, LAST_TIME - 10, "left")
    harness.watermark(LAST_TIME - 1)
    assert harness.state_entries == 1
    harness.watermark(MAX_TIMESTAMP)
    assert harness.state_entries == 0


def test_bounds_may_be_timedeltas_and_must_be_in_order() -> None:
    assert IntervalJoin.between(timedelta(seconds=-1), timedelta(seconds=2)) == IntervalJoin(-1000, 2000)
    assert IntervalJoin(-5, 5, lower_inclusive=False, upper_inclusive=False).bounds == (-4, 4)
    with pytest.raises(IllegalArgument, match=r"lower = 2: give a lower bound of at most the upper one \(1\)"):
        IntervalJoin(2, 1)
    with pytest.raises(IllegalArgument, match="upper = 'soon'"):
        IntervalJoin(0, "soon")  # type: ignore[arg-type]


def test_a_partner_at_the_watermark_finds_the_buckets_that_went_with_it_gone() -> None:
    """As in Flink: it is not late yet, but at watermark 12 no left element can wait for a right one at 12."""
    harness = interval_join_harness(IntervalJoin(0, 2))
    harness.element("k", "left", 10, "left")
    harness.watermark(12)
    harness.element("k", "right", 12, "right")
    assert harness.records() == [WatermarkRecord(12)]


def plus(a: int, b: int) -> int:
    return a + b


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
        lambda: Windows(GlobalWindows.create(), CountTrigger.of(1), CountEvictor.of(5), reduce=plus),
        lambda: Windows(GlobalWindows.create(), CountTrigger.of(1), accumulation=Accumulation.DISCARDING, reduce=plus),
        lambda: Windows(TumblingEventTimeWindows.of(10), allowed_lateness=86_400_000, reduce=plus),
    ],
)
def test_windows_that_something_empties_are_not(make: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make()

"""Sessions under any order of arrival equal an oracle that connects elements whose windows touch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing import (
    CalendarEventTimeWindows,
    Count,
    CountTrigger,
    CumulateEventTimeWindows,
    CumulateProcessingTimeWindows,
    EventTimeSessionWindows,
    EventTimeTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Windows,
)
from tidegate.windowing.assigners import DynamicEventTimeSessionWindows, WindowAssigner
from tidegate.windowing.operators.records import LateElement
from tidegate.windowing.operators.window import WindowOperator
from tidegate.windowing.testing import OperatorHarness, window_harness
from tidegate.windowing.time import MAX_TIMESTAMP


class Element(NamedTuple):
    key: str
    timestamp: int
    value: int
    gap: int


class Session(NamedTuple):
    key: str
    start: int
    end: int
    count: int
    total: int


ELEMENTS = st.lists(
    st.builds(
        Element,
        st.sampled_from("abc"),
        st.integers(-200, 200),
        st.integers(-9, 9),
        st.integers(min_value=1, max_value=30),
    ),
    max_size=40,
)


def joined(elements: Sequence[Element]) -> list[Session]:
    """Union-find over all pairs of a key whose spans `[t, t + gap]` overlap or touch."""
    leaders = list(range(len(elements)))

    def leader(i: int) -> int:
        while leaders[i] != i:
            i = leaders[i]
        return i

    for i, one in enumerate(elements):
        for j, other in enumerate(elements[:i]):
            apart = one.timestamp + one.gap < other.timestamp or other.timestamp + other.gap < one.timestamp
            if one.key == other.key and not apart:
                leaders[leader(i)] = leader(j)
    groups: dict[int, list[Element]] = defaultdict(list)
    for i, element in enumerate(elements):
        groups[leader(i)].append(element)
    return sorted(
        Session(
            group[0].key,
            min(element.timestamp for element in group),
            max(element.timestamp + element.gap for element in group),
            len(group),
            sum(element.value for element in group),
        )
        for group in groups.values()
    )


def sessions(assigner: WindowAssigner, elements: Sequence[Element]) -> list[Session]:
    run = window_harness(Windows(assigner, aggregate={"n": Count(), "sum": Sum("value")}))
    for element in elements:
        run.element(element.key, element._asdict(), element.timestamp)
    run.watermark(MAX_TIMESTAMP)
    assert (run.state_entries, run.event_time_timers) == (0, 0)
    return sorted(
        Session(r.key, r.window.start, r.window.end, r.value["n"], r.value["sum"])  # type: ignore[union-attr]
        for r in run.results()
    )


@given(ELEMENTS, st.integers(1, 30), st.randoms(use_true_random=False))
def test_sessions_of_one_gap_are_those_of_the_oracle_in_any_order(
    elements: list[Element], gap: int, shuffler: object
) -> None:
    same_gap = [element._replace(gap=gap) for element in elements]
    expected = joined(same_gap)
    shuffler.shuffle(same_gap)  # type: ignore[attr-defined]
    assert sessions(EventTimeSessionWindows.with_gap(gap), same_gap) == expected


@given(ELEMENTS, st.randoms(use_true_random=False))
def test_sessions_of_gaps_that_elements_bring_are_those_of_the_oracle_in_any_order(
    elements: list[Element], shuffler: object
) -> None:
    expected = joined(elements)
    shuffler.shuffle(elements)  # type: ignore[attr-defined]
    assert sessions(DynamicEventTimeSessionWindows(lambda row: row["gap"]), elements) == expected


ASSIGNERS: list[WindowAssigner] = [
    TumblingEventTimeWindows.of(10, 4),
    SlidingEventTimeWindows.of(12, 5),
    SlidingEventTimeWindows.of(3, 8),
    CumulateEventTimeWindows.of(12, 4, 3),
    EventTimeSessionWindows.with_gap(6),
    CalendarEventTimeWindows.days("Europe/Berlin"),
]


def plus(a: int, b: int) -> int:
    return a + b


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 100), st.integers(-5, 20)), max_size=40),
    st.sampled_from([*ASSIGNERS, TumblingProcessingTimeWindows.of(10)]),
    st.sampled_from([EventTimeTrigger(), CountTrigger.of(3)]),
    st.sampled_from([0, 15]),
)
def test_every_element_is_on_time_late_or_in_no_window(
    steps: list[tuple[str, int, int]], assigner: WindowAssigner, trigger: Any, lateness: int
) -> None:
    operator = WindowOperator(Windows(assigner, trigger, allowed_lateness=lateness, reduce=plus), account_for_all=True)
    late = 0
    for key, timestamp, watermark_step in steps:
        operator.process_element(key, 1, timestamp)
        operator.process_watermark(operator.current_watermark if watermark_step < 0 else timestamp - watermark_step)
        late += sum(isinstance(record, LateElement) for record in operator.take_output())
    counters = operator.counters
    assert counters.elements == len(steps) == counters.on_time + counters.late + counters.no_window
    assert counters.late == late
    assert counters.timers_registered == counters.timers_fired + counters.timers_deleted + (
        len(operator.timers.event_time) + len(operator.timers.processing_time)
    )


TIMED = st.lists(st.tuples(st.sampled_from("ab"), st.integers(-100, 100), st.integers(-9, 9)), max_size=30)

Sums = dict[tuple[str, int, int], int]


def direct(elements: list[tuple[str, int, int]], size: int, slide: int, offset: int) -> Sums:
    """Ask of every possible window whether it contains the element."""
    sums: Sums = defaultdict(int)
    for start in range(-100 - size - slide, 101 + slide):
        if (start - offset) % slide == 0:
            for key, time, value in elements:
                if start <= time < start + size:
                    sums[key, start, start + size] += value
    return dict(sums)


def by_watermark(assigner: WindowAssigner, elements: list[tuple[str, int, int]]) -> Sums:
    run = window_harness(Windows(assigner, reduce=lambda a, b: a + b))
    for key, time, value in elements:
        run.element(key, value, time)
    run.watermark(MAX_TIMESTAMP)
    return sums(run, lambda time: time)


def by_clock(assigner: WindowAssigner, elements: list[tuple[str, int, int]]) -> Sums:
    """The assigner counts half milliseconds, so that no tick is the last one of a window, which would fire it."""
    run = window_harness(Windows(assigner, reduce=lambda a, b: a + b))
    for time, group in groupby(sorted(elements, key=itemgetter(1)), key=itemgetter(1)):
        run.processing_time(2 * (time + SHIFT))
        for key, _, value in group:
            run.element(key, value, None)
    run.processing_time(MAX_TIMESTAMP)
    return sums(run, lambda time: time // 2 - SHIFT)


def sums(run: OperatorHarness, time: Callable[[int], int]) -> Sums:
    results = run.results()
    assert (run.state_entries, run.event_time_timers, run.processing_time_timers) == (0, 0, 0)
    panes = {(r.key, time(r.window.start), time(r.window.end)): r.value for r in results}  # type: ignore[union-attr]
    assert len(panes) == len(results)
    return panes


SHIFT = 2**5 * 3**3 * 5 * 7 * 11 * 13

"""A multiple of every size up to 60 that a step uses: the clock begins at 0 and never goes back."""


@given(TIMED, st.integers(1, 15), st.data())
def test_tumbling_windows_hold_what_falls_into_them(
    elements: list[tuple[str, int, int]], size: int, data: st.DataObject
) -> None:
    offset = data.draw(st.integers(-size + 1, size - 1))
    expected = direct(elements, size, size, offset)
    assert by_watermark(TumblingEventTimeWindows.of(size, offset), elements) == expected
    assert by_clock(TumblingProcessingTimeWindows.of(2 * size, 2 * offset), elements) == expected


@given(TIMED, st.integers(1, 15), st.integers(1, 15), st.data())
def test_sliding_windows_hold_what_falls_into_them(
    elements: list[tuple[str, int, int]], size: int, slide: int, data: st.DataObject
) -> None:
    offset = data.draw(st.integers(-slide + 1, slide - 1))
    expected = direct(elements, size, slide, offset)
    assert by_watermark(SlidingEventTimeWindows.of(size, slide, offset), elements) == expected
    assert by_clock(SlidingProcessingTimeWindows.of(2 * size, 2 * slide, 2 * offset), elements) == expected


@given(TIMED, st.integers(1, 15), st.integers(1, 4), st.data())
def test_cumulative_windows_hold_what_falls_into_them(
    elements: list[tuple[str, int, int]], step: int, steps: int, data: st.DataObject
) -> None:
    size = step * steps
    offset = data.draw(st.integers(-size + 1, size - 1))
    expected: Sums = {}
    for each in range(step, size + 1, step):
        # Windows of one size are sliding windows of that size with the maximum size as slide.
        expected |= direct(elements, each, size, offset)
    assert by_watermark(CumulateEventTimeWindows.of(size, step, offset), elements) == expected
    assert by_clock(CumulateProcessingTimeWindows.of(2 * size, 2 * step, 2 * offset), elements) == expected

"""Arrival: nothing disappears, and any order within the bound gives the same final panes."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing import (
    CalendarEventTimeWindows,
    CountTrigger,
    CumulateEventTimeWindows,
    EventTimeSessionWindows,
    EventTimeTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Windows,
)
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.operators.records import LateElement
from tidegate.windowing.operators.window import WindowOperator
from tidegate.windowing.testing import window_harness
from tidegate.windowing.time import MAX_TIMESTAMP

ASSIGNERS: list[WindowAssigner] = [
    TumblingEventTimeWindows.of(10, 4),
    SlidingEventTimeWindows.of(12, 5),
    SlidingEventTimeWindows.of(3, 8),
    CumulateEventTimeWindows.of(12, 4, 3),
    EventTimeSessionWindows.with_gap(6),
    CalendarEventTimeWindows.days("Europe/Berlin"),
]
BOUND = 20


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


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 200), st.integers(0, BOUND)), max_size=40),
    st.lists(st.integers(0, BOUND), min_size=40, max_size=40),
    st.sampled_from(ASSIGNERS),
)
def test_any_order_within_the_bound_gives_the_same_final_panes(
    elements: list[tuple[str, int, int]], other_delays: list[int], assigner: WindowAssigner
) -> None:
    def final(delays: list[int]) -> list[Any]:
        """Elements arrive at their time plus a delay within the bound; the watermark is behind by the bound."""
        arrivals = sorted(zip(elements, delays, strict=True), key=lambda pair: pair[0][1] + pair[1])
        run = window_harness(Windows(assigner, reduce=plus))
        largest = -1
        for (key, timestamp, value), _ in arrivals:
            run.element(key, value, timestamp)
            largest = max(largest, timestamp)
            # Sessions that touch merge, so an element must be 2 ms above the watermark to find them open.
            run.watermark(largest - BOUND - 2)
        run.watermark(MAX_TIMESTAMP)
        results = run.results()
        assert all(result.pane == 0 for result in results)
        return sorted((r.key, r.window, r.value) for r in results)

    in_time_order = final([0] * len(elements))
    assert final([delay for _, _, delay in elements]) == in_time_order
    assert final(other_delays[: len(elements)]) == in_time_order

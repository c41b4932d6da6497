"""Tumbling, sliding and cumulative windows equal a direct computation over all elements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import groupby
from operator import itemgetter

from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing import (
    CumulateEventTimeWindows,
    CumulateProcessingTimeWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    Windows,
)
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.testing import OperatorHarness, window_harness
from tidegate.windowing.time import MAX_TIMESTAMP

ELEMENTS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(-100, 100), st.integers(-9, 9)), max_size=30)
Sums = dict[tuple[str, int, int], int]


def direct(elements: list[tuple[str, int, int]], size: int, slide: int, offset: int) -> Sums:
    """By asking of every window that could be whether it holds the element."""
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
    """The assigner counts half milliseconds, so that no tick is a window's last one, which would fire it."""
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
"""A multiple of every size up to 60 that a step makes: the clock begins at 0 and never goes back."""


@given(ELEMENTS, st.integers(1, 15), st.data())
def test_tumbling_windows_hold_what_falls_into_them(
    elements: list[tuple[str, int, int]], size: int, data: st.DataObject
) -> None:
    offset = data.draw(st.integers(-size + 1, size - 1))
    expected = direct(elements, size, size, offset)
    assert by_watermark(TumblingEventTimeWindows.of(size, offset), elements) == expected
    assert by_clock(TumblingProcessingTimeWindows.of(2 * size, 2 * offset), elements) == expected


@given(ELEMENTS, st.integers(1, 15), st.integers(1, 15), st.data())
def test_sliding_windows_hold_what_falls_into_them(
    elements: list[tuple[str, int, int]], size: int, slide: int, data: st.DataObject
) -> None:
    offset = data.draw(st.integers(-slide + 1, slide - 1))
    expected = direct(elements, size, slide, offset)
    assert by_watermark(SlidingEventTimeWindows.of(size, slide, offset), elements) == expected
    assert by_clock(SlidingProcessingTimeWindows.of(2 * size, 2 * slide, 2 * offset), elements) == expected


@given(ELEMENTS, st.integers(1, 15), st.integers(1, 4), st.data())
def test_cumulative_windows_hold_what_falls_into_them(
    elements: list[tuple[str, int, int]], step: int, steps: int, data: st.DataObject
) -> None:
    size = step * steps
    offset = data.draw(st.integers(-size + 1, size - 1))
    expected: Sums = {}
    for each in range(step, size + 1, step):
        # Windows of one size are sliding windows of it, a maximum size apart.
        expected |= direct(elements, each, size, offset)
    assert by_watermark(CumulateEventTimeWindows.of(size, step, offset), elements) == expected
    assert by_clock(CumulateProcessingTimeWindows.of(2 * size, 2 * step, 2 * offset), elements) == expected

"""Count windows, tumbling and sliding, as Flink's countWindow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tidegate.windowing import Count, GlobalWindows, Sum, Windows, count_windows
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.functions import ReduceElements
from tidegate.windowing.testing import window_harness


def results(windows: Windows, elements: Sequence[tuple[str, int]], restoring: bool = False) -> list[tuple[str, Any]]:
    run = window_harness(windows)
    seen = []
    for key, value in elements:
        run.element(key, value, None)
        if restoring:
            run.restore(run.snapshot(), parallelism=3)
        seen += [(result.key, result.value) for result in run.results()]
    return seen


def plus(a: int, b: int) -> int:
    return a + b


@pytest.mark.parametrize("restoring", [False, True])
def test_tumbling_windows_hold_each_element_once(restoring: bool) -> None:
    elements = [("a", 1), ("b", 10), ("a", 2), ("a", 3), ("b", 20), ("a", 4), ("a", 5)]
    assert results(count_windows(2, reduce=plus), elements, restoring) == [("a", 3), ("b", 30), ("a", 7)]


@pytest.mark.parametrize("restoring", [False, True])
def test_sliding_windows_hold_the_last_elements_and_begin_incomplete(restoring: bool) -> None:
    elements = [("a", value) for value in range(1, 8)]
    assert results(count_windows(3, 2, reduce=plus), elements, restoring) == [("a", 3), ("a", 9), ("a", 15)]


def test_a_slide_above_the_size_leaves_elements_out() -> None:
    elements = [("a", value) for value in range(1, 9)]
    assert results(count_windows(2, 4, reduce=plus), elements) == [("a", 7), ("a", 15)]


def test_aggregates_work_in_both_forms() -> None:
    run = window_harness(count_windows(2, 1, aggregate={"n": Count(), "sum": Sum("x")}))
    for value in (1, 2, 3):
        run.element("a", {"x": value}, None)
    assert [result.value for result in run.results()] == [{"n": 1, "sum": 1}, {"n": 2, "sum": 3}, {"n": 2, "sum": 5}]


def test_a_count_window_is_windows_of_the_global_assigner() -> None:
    assert count_windows(5, reduce=plus) == count_windows(5, reduce=plus)
    assert count_windows(5, 2, reduce=plus).process == ReduceElements(plus)
    assert count_windows(5, reduce=plus).assigner == GlobalWindows()


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: count_windows(0, reduce=plus), "size"),
        (lambda: count_windows(2, 0, reduce=plus), "slide"),
        (lambda: count_windows(True, reduce=plus), "size"),
        (lambda: count_windows(2, 1, reduce=plus, aggregate={"n": Count()}), "process"),
        (lambda: count_windows(2), "aggregate"),
    ],
)
def test_bad_settings_are_refused_with_their_field(make: Any, field: str) -> None:
    with pytest.raises(IllegalArgument) as raised:
        make()
    assert raised.value.field == field

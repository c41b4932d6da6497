"""The window join equals a nested loop over the elements of each window, whatever the order, cuts and restores."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any, get_args

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing import (
    CalendarEventTimeWindows,
    CumulateEventTimeWindows,
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowJoin,
    WindowStagger,
)
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.errors import IllegalArgument, MissingTimestamp
from tidegate.windowing.operators.records import ElementResult, LateElement
from tidegate.windowing.testing import OperatorHarness, window_join_harness
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from tidegate.windowing.window_join import JoinKind

KINDS: tuple[JoinKind, ...] = get_args(JoinKind)
ASSIGNERS: list[WindowAssigner] = [
    TumblingEventTimeWindows.of(10, 3),
    SlidingEventTimeWindows.of(12, 5),
    SlidingEventTimeWindows.of(3, 8),
    CumulateEventTimeWindows.of(12, 4),
]
JOINS = st.builds(WindowJoin, st.sampled_from(ASSIGNERS), st.sampled_from(KINDS))
Element = tuple[str, str, int]
ELEMENTS = st.lists(
    st.tuples(st.sampled_from(["left", "right"]), st.sampled_from("ab"), st.integers(-20, 20)), max_size=25
)


def nested_loop(join: WindowJoin, elements: list[Element]) -> Counter[Any]:
    """Return the expected rows, from every pair of all elements; elements are numbered, so that duplicates count."""
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
                    found.update((key, window, number, partner) for partner in partners)
                if (join.kind in ("left", "full", "anti") and not partners) or (join.kind == "semi" and partners):
                    found[key, window, number, None] += 1
            elif join.kind in ("right", "full") and not partners:
                found[key, window, None, number] += 1
    return found


def came(harness: OperatorHarness) -> Counter[Any]:
    rows = [record for record in harness.records() if isinstance(record, ElementResult)]
    assert all(row.timestamp == row.value.window.max_timestamp for row in rows)
    return Counter((row.key, row.value.window, row.value.left, row.value.right) for row in rows)


@given(JOINS, ELEMENTS, st.data())
def test_the_join_equals_a_nested_loop_with_watermarks_and_restores_and_keeps_nothing_at_the_end(
    join: WindowJoin, elements: list[Element], data: st.DataObject
) -> None:
    harness = window_join_harness(join, left_type=pa.int64(), right_type=pa.int64())
    total: Counter[Any] = Counter()
    for number, (side, key, time) in enumerate(elements):
        harness.element(key, number, time, side)
        total += came(harness)
        # As far as the watermark of either side may go without making a later element of it late.
        for one in ("left", "right"):
            rest = [later for of_side, _, later in elements[number + 1 :] if of_side == one]
            harness.watermark(min(rest, default=1000) - 1, one)
        total += came(harness)
        if data.draw(st.booleans()):
            harness.restore(harness.snapshot(), data.draw(st.integers(1, 3)))
    harness.watermark(MAX_TIMESTAMP)
    total += came(harness)
    assert total == nested_loop(join, elements)
    assert harness.state_entries == harness.event_time_timers == 0


@given(JOINS, ELEMENTS, st.lists(st.integers(-20, 20), min_size=25, max_size=25))
def test_every_element_is_joined_or_late_or_in_no_window(
    join: WindowJoin, elements: list[Element], watermarks: list[int]
) -> None:
    harness = window_join_harness(join)
    watermark, taken, late = MIN_TIMESTAMP, [], 0
    total: Counter[Any] = Counter()
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
        total += came(harness)
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


def test_other_fields_are_checked_too() -> None:
    assigner = CalendarEventTimeWindows.days("UTC")
    with pytest.raises(IllegalArgument, match="give one of inner, left, right, full, semi, anti"):
        WindowJoin(assigner, "outer")  # type: ignore[arg-type]
    with pytest.raises(IllegalArgument, match="a function of two elements and a window"):
        WindowJoin(assigner, join="pair")  # type: ignore[arg-type]
    assert WindowJoin(TumblingEventTimeWindows.of(timedelta(hours=1))).kind == "inner"

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing import IntervalJoin
from tidegate.windowing.errors import IllegalArgument, MissingTimestamp
from tidegate.windowing.operators.records import ElementResult, LateElement, WatermarkRecord
from tidegate.windowing.testing import OperatorHarness, interval_join_harness
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, millis

JOINS = st.builds(
    lambda lower, width, lower_in, upper_in: IntervalJoin(lower, lower + width, lower_in, upper_in),
    st.integers(-10, 10),
    st.integers(0, 10),
    st.booleans(),
    st.booleans(),
)
ELEMENTS = st.lists(
    st.tuples(st.sampled_from(["left", "right"]), st.sampled_from("ab"), st.integers(-20, 20)), max_size=25
)


def joins(join: IntervalJoin, left: int, right: int) -> bool:
    lower, upper, distance = millis(join.lower, "lower"), millis(join.upper, "upper"), right - left
    above = distance >= lower if join.lower_inclusive else distance > lower
    below = distance <= upper if join.upper_inclusive else distance < upper
    return above and below


def nested_loop(join: IntervalJoin, elements: list[tuple[str, str, int]]) -> Counter[Any]:
    """Return the expected pairs; elements are numbered, so that duplicates count."""
    numbered = list(enumerate(elements))
    return Counter(
        (key, ((i, left), (j, right)), max(left, right))
        for i, (side, key, left) in numbered
        for j, (other, other_key, right) in numbered
        if side == "left" and other == "right" and key == other_key and joins(join, left, right)
    )


def came(harness: OperatorHarness) -> Counter[Any]:
    return Counter(
        (record.key, record.value, record.timestamp)
        for record in harness.records()
        if isinstance(record, ElementResult)
    )


def joined(join: IntervalJoin, **options: Any) -> OperatorHarness:
    return interval_join_harness(join, left_type=pa.list_(pa.int64()), right_type=pa.list_(pa.int64()), **options)


@given(JOINS, ELEMENTS)
def test_the_join_equals_a_nested_loop_whatever_the_order(
    join: IntervalJoin, elements: list[tuple[str, str, int]]
) -> None:
    harness = interval_join_harness(join)
    for number, (side, key, time) in enumerate(elements):
        harness.element(key, (number, time), time, side)
    assert came(harness) == nested_loop(join, elements)


@given(JOINS, ELEMENTS, st.data())
def test_the_join_equals_a_nested_loop_with_watermarks_and_restores_and_keeps_nothing_at_the_end(
    join: IntervalJoin, elements: list[tuple[str, str, int]], data: st.DataObject
) -> None:
    harness = joined(join)
    total: Counter[Any] = Counter()
    for number, (side, key, time) in enumerate(elements):
        harness.element(key, [number, time], time, side)
        total += Counter(
            (record.key, tuple(map(tuple, record.value)), record.timestamp)
            for record in harness.records()
            if isinstance(record, ElementResult)
        )
        # As far as the watermark of either side may go without making a later element of it late.
        for one in ("left", "right"):
            rest = [later for of_side, _, later in elements[number + 1 :] if of_side == one]
            harness.watermark(min(rest, default=1000) - 1, one)
        if data.draw(st.booleans()):
            harness.restore(harness.snapshot(), data.draw(st.integers(1, 3)))
    assert total == nested_loop(join, elements)
    harness.watermark(MAX_TIMESTAMP)
    assert harness.state_entries == harness.event_time_timers == 0
    assert not [record for record in harness.records() if isinstance(record, LateElement)]


@given(JOINS, ELEMENTS, st.lists(st.integers(-20, 20), min_size=25, max_size=25))
def test_every_element_is_joined_in_time_or_late(
    join: IntervalJoin, elements: list[tuple[str, str, int]], watermarks: list[int]
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


def test_an_element_at_the_watermark_is_not_late() -> None:
    harness = interval_join_harness(IntervalJoin(-1, 1))
    harness.watermark(5)
    harness.element("k", 1, 5, "left")
    harness.element("k", 2, 4, "right")
    assert harness.late() == [LateElement("k", 2, 4, "late", None, 5, "right")]
    assert harness.state_entries == 1


def test_late_elements_without_an_output_are_counted() -> None:
    harness = interval_join_harness(IntervalJoin(-1, 1), late_output=False)
    harness.watermark(5)
    harness.element("k", 1, 4, "left")
    assert harness.late() == []
    assert harness.late_dropped == 1


def test_buckets_go_when_no_partner_can_come_any_more() -> None:
    harness = interval_join_harness(IntervalJoin(-1, 2))
    harness.element("k", 1, 10, "left")
    harness.element("k", 1, 10, "right")
    harness.watermark(10)
    assert harness.state_entries == 2
    harness.watermark(11)
    assert [row["side"] for row in harness.snapshot().rows.to_pylist()] == ["left"]
    harness.watermark(12)
    assert harness.state_entries == 0


def test_a_bound_near_the_end_of_time_still_cleans_up() -> None:
    harness = interval_join_harness(IntervalJoin(0, MAX_TIMESTAMP))
    harness.element("k", 1, 10, "left")
    harness.watermark(MAX_TIMESTAMP - 1)
    assert harness.state_entries == 1
    harness.watermark(MAX_TIMESTAMP)
    assert harness.state_entries == 0


def test_a_snapshot_is_a_row_for_each_key_side_and_millisecond() -> None:
    harness = interval_join_harness(IntervalJoin(-1, 2), left_type=pa.string(), right_type=pa.int64())
    harness.element("k", "x", 10, "left")
    harness.element("k", "y", 10, "left")
    harness.element("k", 7, 30, "right")
    left, right = (
        harness.snapshot()
        .rows.select(["namespace", "side", "window_start", "event_time_timers", "left", "right"])
        .to_pylist()
    )
    assert (left["namespace"], left["side"], left["left"], left["right"]) == ("bucket", "left", ["x", "y"], None)
    assert left["event_time_timers"] == [12]
    assert (right["side"], right["left"], right["right"], right["event_time_timers"]) == ("right", None, [7], [31])
    assert right["window_start"].timestamp() == 0.03


def test_the_watermark_follows_what_it_caused() -> None:
    harness = interval_join_harness(IntervalJoin(0, 0))
    harness.watermark(5, "left")
    harness.watermark(3, "right")
    assert harness.records() == [WatermarkRecord(3)]


@pytest.mark.parametrize("timestamp", [None, MIN_TIMESTAMP])
@pytest.mark.parametrize("side", ["left", "right"])
def test_an_element_needs_a_timestamp(timestamp: int | None, side: str) -> None:
    with pytest.raises(MissingTimestamp):
        interval_join_harness(IntervalJoin(0, 0)).element("k", 1, timestamp, side)


def test_an_element_needs_a_side() -> None:
    with pytest.raises(IllegalArgument, match="side = None"):
        interval_join_harness(IntervalJoin(0, 0)).element("k", 1, 1)


def test_bounds_may_be_timedeltas_and_must_be_in_order() -> None:
    assert IntervalJoin.between(timedelta(seconds=-1), timedelta(seconds=2)) == IntervalJoin(-1000, 2000)
    assert IntervalJoin(-5, 5, lower_inclusive=False, upper_inclusive=False).bounds == (-4, 4)
    with pytest.raises(IllegalArgument, match=r"lower = 2: give a lower bound of at most the upper one \(1\)"):
        IntervalJoin(2, 1)
    with pytest.raises(IllegalArgument, match="upper = 'soon'"):
        IntervalJoin(0, "soon")  # type: ignore[arg-type]


def test_equal_bounds_that_are_exclusive_join_nothing() -> None:
    harness = interval_join_harness(IntervalJoin(0, 0, upper_inclusive=False))
    harness.element("k", 1, 1, "left")
    harness.element("k", 1, 1, "right")
    assert harness.element_results() == []


def test_a_partner_at_the_watermark_finds_the_buckets_that_went_with_it_gone() -> None:
    """As in Flink: it is not late yet, but at watermark 12 no left element can wait for a right one at 12."""
    harness = interval_join_harness(IntervalJoin(0, 2))
    harness.element("k", "left", 10, "left")
    harness.watermark(12)
    harness.element("k", "right", 12, "right")
    assert harness.records() == [WatermarkRecord(12)]

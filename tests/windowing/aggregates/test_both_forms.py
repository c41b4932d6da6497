"""Each aggregate in both its forms: one value at a time, and groups of values as arrays."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.windowing.aggregates import (
    Aggregate,
    AllTrue,
    AnyTrue,
    ApproxCountDistinct,
    ApproxQuantile,
    CollectList,
    CollectSet,
    Count,
    CountIf,
    First,
    Groups,
    Last,
    Max,
    MaxBy,
    Mean,
    Min,
    MinBy,
    StandardDeviation,
    Sum,
    TopN,
    Variance,
    VectorisedAggregate,
)
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.functions.aggregate import TimedAggregateFunction

INPUT = pa.schema(
    [
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.decimal128(38, 2)),
        ("i", pa.int8()),
        ("raw", pa.binary()),
    ]
)


def results(aggregate: Aggregate, *elements: dict[str, Any]) -> list[Any]:
    """The result over elements at times 0, 1, 2 and so on, one by one, as one group, and merged of two."""
    function = aggregate.bind(INPUT)
    assert isinstance(function, VectorisedAggregate)
    rows = [dict.fromkeys(INPUT.names) | element for element in elements]

    def folded(begin: int, end: int) -> Any:
        accumulator = function.create_accumulator()
        for time in range(begin, end):
            if isinstance(function, TimedAggregateFunction):
                accumulator = function.add_at(rows[time], time, accumulator)
            else:
                accumulator = function.add(rows[time], accumulator)
        return accumulator

    def vectorised(*sizes: int) -> pa.Array:
        columns = {field.name: pa.array([row[field.name] for row in rows], field.type) for field in INPUT}
        return function.accumulate(columns, np.arange(len(rows)), Groups.of_sizes(np.array(sizes)))

    half = len(rows) // 2
    one_by_one = [
        function.get_result(folded(0, len(rows))),
        function.get_result(function.merge(folded(0, half), folded(half, len(rows)))),
    ]
    whole = function.finish(vectorised(len(rows)))
    assert whole.type == function.result_type
    by_arrays = whole.to_pylist()
    if half:
        both = function.combine(vectorised(half, len(rows) - half), Groups.of_sizes(np.array([2])))
        by_arrays += function.finish(both).to_pylist()
    return [*one_by_one, *by_arrays]


def only(found: list[Any]) -> Any:
    """The one result that every way gives."""
    texts = {repr(result + 0.0 if isinstance(result, float) else result) for result in found}
    assert len(texts) == 1, texts
    return found[0]


def of(aggregate: Aggregate, column: str, *values: Any) -> Any:
    return only(results(aggregate, *({column: value} for value in values)))


def test_nulls_are_left_out_and_of_nothing_else_comes_null() -> None:
    assert of(Sum("n"), "n", None, 1, None, 2) == 3
    for aggregate in (Sum("n"), Min("n"), Max("n"), Mean("n"), Variance("n"), ApproxQuantile("n", 0.5)):
        assert of(aggregate, "n", None, None) is None
    assert of(AnyTrue("b"), "b", None, None) is None
    assert of(AllTrue("b"), "b", None, True) is True
    assert of(CollectList("n"), "n", None, None) == []


def test_counts_are_never_null() -> None:
    assert of(Count(), "n", None, 1) == 2
    assert of(Count("n"), "n", None, 1) == 1
    assert of(CountIf("b"), "b", True, None, False, True) == 2
    assert of(ApproxCountDistinct("n"), "n", None, None) == 0


def test_nan_is_larger_than_any_number_and_equal_to_itself() -> None:
    assert math.isnan(of(Max("x"), "x", 1.0, math.nan, math.inf))
    assert of(Min("x"), "x", math.nan, 2.0, None) == 2.0
    assert math.isnan(of(Min("x"), "x", math.nan, None))
    found = of(CollectSet("x"), "x", math.nan, 1.0, math.nan, -0.0, 0.0, -math.inf)
    assert found[:3] == [-math.inf, 0.0, 1.0]
    assert len(found) == 4
    assert math.isnan(found[3])
    assert math.isnan(of(ApproxQuantile("x", 1.0), "x", math.nan, 1.0))
    assert of(ApproxQuantile("x", 0.5), "x", math.nan, 1.0) == 1.0
    assert of(ApproxQuantile("x", 0.0), "x", math.nan, 1.0) == 1.0
    for fraction in (0.0, 0.5, 1.0):
        assert math.isnan(of(ApproxQuantile("x", fraction), "x", math.nan, None, math.nan))


def test_infinities_add_up_as_in_spark() -> None:
    assert of(Sum("x"), "x", math.inf, 1.0) == math.inf
    assert math.isnan(of(Sum("x"), "x", math.inf, -math.inf))
    assert math.isnan(of(Variance("x"), "x", 1.0, math.inf))


def test_a_sum_of_integers_that_leaves_int64_is_an_error_and_never_wraps() -> None:
    top = 2**63 - 1
    assert of(Sum("n"), "n", top - 1, 1) == top
    assert of(Sum("n"), "n", -top, -1) == -(2**63)
    with pytest.raises(OverflowError, match="sum of column 'n' is too large for int64"):
        results(Sum("n"), {"n": top}, {"n": 1})
    function = Sum("n").bind(INPUT)
    assert isinstance(function, VectorisedAggregate)
    with pytest.raises(OverflowError, match="sum of column 'n' is too large for int64"):
        function.combine(pa.array([top, 1, 5]), Groups.of_sizes(np.array([2, 1])))
    assert function.combine(pa.array([top, -5, 5]), Groups.of_sizes(np.array([2, 1]))).to_pylist() == [top - 5, 5]


def test_small_integers_widen() -> None:
    assert of(Sum("i"), "i", 127, 127) == 254


def test_sums_of_decimals_are_exact_to_38_digits() -> None:
    wide = Decimal("123456789012345678901234567890123456.78")
    assert str(of(Sum("d"), "d", wide, Decimal("-0.01"))) == "123456789012345678901234567890123456.77"
    with pytest.raises(OverflowError, match=r"is too large for decimal128\(38, 2\)"):
        results(Sum("d"), *[{"d": Decimal("9" * 36 + ".99")}] * 2)
    function = Sum("d").bind(INPUT)
    assert isinstance(function, VectorisedAggregate)
    with pytest.raises(OverflowError, match=r"is too large for decimal128\(38, 2\)"):
        function.combine(
            pa.array([Decimal("9" * 36 + ".99")] * 2, INPUT.field("d").type), Groups.of_sizes(np.array([2]))
        )


def test_variance_of_large_values_that_lie_close_together_keeps_its_digits() -> None:
    found = results(Variance("x"), *({"x": 1e9 + offset} for offset in (4.0, 7.0, 13.0, 16.0)))
    assert found == pytest.approx([30.0] * 4, rel=1e-12)
    assert of(Variance("x", sample=False), "x", 2.0, 4.0) == 1.0
    assert of(StandardDeviation("x", sample=False), "x", 2.0, 4.0) == 1.0


def test_the_variance_of_one_value_is_null_of_a_sample_and_zero_of_a_population() -> None:
    assert of(Variance("x"), "x", 0.1) is None
    assert of(Variance("x", sample=False), "x", 0.1, None) == 0.0


def test_first_and_last_go_by_time_and_may_be_null() -> None:
    assert of(First("s"), "s", None, "b") is None
    assert of(Last("s"), "s", "a", "b") == "b"


def test_min_by_and_max_by_leave_out_what_has_no_order_value() -> None:
    elements = [{"s": "a", "x": 2.0}, {"s": "b", "x": None}, {"s": "c", "x": 2.0}, {"s": None, "x": 1.0}]
    assert only(results(MinBy("s", "x"), *elements)) is None
    assert only(results(MaxBy("s", "x"), *elements)) == "c"
    assert only(results(MaxBy("s", "x"), {"s": "a", "x": None})) is None


def test_collected_values_come_by_time_and_sets_by_value() -> None:
    assert of(CollectList("s"), "s", "b", None, "a", "b") == ["b", "a", "b"]
    assert of(CollectSet("s"), "s", "b", None, "a", "b") == ["a", "b"]


def test_the_top_elements_come_best_first_and_declared_columns_decide_between_those_that_tie() -> None:
    elements = [
        {"x": 2.0, "n": 7, "s": "late"},
        {"x": 9.0, "n": 5, "s": "b"},
        {"x": None, "n": 0, "s": "none"},
        {"x": 9.0, "n": 5, "s": "a"},
        {"x": 9.0, "n": None, "s": "z"},
        {"x": 1.0, "n": 1, "s": "one"},
    ]
    best = only(results(TopN(3, by="x", ties=["n"], also=["s"]), *elements))
    assert best == [{"x": 9.0, "n": None, "s": "z"}, {"x": 9.0, "n": 5, "s": "a"}, {"x": 9.0, "n": 5, "s": "b"}]
    least = only(results(TopN(2, by="x", also=["s"], largest=False), *elements))
    assert least == [{"x": 1.0, "s": "one"}, {"x": 2.0, "s": "late"}]
    assert only(results(TopN(9, by="n"), *elements)) == [{"n": n} for n in (7, 5, 5, 1, 0)]
    assert only(results(TopN(2, by="x"), {"x": None}, {"x": None})) == []


def test_top_elements_rank_nan_first_and_show_no_negative_zero() -> None:
    best = of(TopN(3, by="x"), "x", 0.0, math.nan, -0.0, math.inf, math.nan)
    assert [entry["x"] for entry in best[2:]] == [math.inf]
    assert all(math.isnan(entry["x"]) for entry in best[:2])
    assert repr(of(TopN(2, by="x", largest=False), "x", -0.0, 1.0)) == "[{'x': 0.0}, {'x': 1.0}]"


def test_distinct_values_are_counted_exactly_up_to_the_size_of_the_sketch() -> None:
    assert of(ApproxCountDistinct("n"), "n", *range(1500), *range(1500)) == 1500


@pytest.mark.parametrize(("column", "values"), [("s", ("", "a", "b", "")), ("raw", (b"", b"a", b"ff", b"\xff", None))])
def test_an_empty_text_is_a_value_too(column: str, values: tuple[Any, ...]) -> None:
    distinct = len(set(values) - {None})
    assert of(ApproxCountDistinct(column), column, *values) == distinct
    assert of(ApproxCountDistinct(column), column, values[0]) == 1


def test_decimals_are_distinct_in_any_of_their_38_digits_and_not_by_their_trailing_zeros() -> None:
    texts = ("123456789012345678901234567890123456.77", "123456789012345678901234567890123456.78", "1.5", "1.50")
    assert of(ApproxCountDistinct("d"), "d", *map(Decimal, texts)) == 3


def test_more_distinct_values_are_estimated_the_same_whatever_their_order() -> None:
    found = of(ApproxCountDistinct("n", log_size=8), "n", *range(20_000))
    assert found == of(ApproxCountDistinct("n", log_size=8), "n", *reversed(range(20_000)))
    assert found == pytest.approx(20_000, rel=4 / 16)


def test_quantiles_are_exact_up_to_the_size_of_the_sketch_and_near_beyond() -> None:
    assert of(ApproxQuantile("x", 0.5), "x", 5.0, 1.0, 3.0) == 3.0
    assert of(ApproxQuantile("x", 0.25), "x", *map(float, range(100))) == 24.0
    near = results(ApproxQuantile("x", 0.9), *({"x": float(value)} for value in range(5000)))
    assert near == pytest.approx([4500.0] * 4, abs=5000 * 0.03)


@pytest.mark.parametrize("aggregate", [Sum("s"), Variance("s"), CountIf("n"), AnyTrue("s"), ApproxQuantile("s", 0.5)])
def test_a_column_of_the_wrong_type_is_refused_by_name(aggregate: Aggregate) -> None:
    with pytest.raises(IllegalArgument, match=r"'s'|'n'"):
        aggregate.bind(INPUT)

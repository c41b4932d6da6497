"""Each aggregate in both its forms: one value at a time, and groups of values as arrays. Sums do not depend on the
division into groups: doubles keep what rounding loses, integers and decimals may overflow on the way.
"""

from __future__ import annotations

import math
import pickle
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.transcripts.by_element import columnar_harness
from tidegate.windowing import TumblingEventTimeWindows, Windows
from tidegate.windowing.aggregates import (
    Aggregate,
    AggregateColumns,
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
from tidegate.windowing.aggregates.doubles import Total, added, doubles_of, sums
from tidegate.windowing.aggregates.exact import SumOutOfRange, unwrapped, wrapped
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.functions.aggregate import TimedAggregateFunction
from tidegate.windowing.keys import DECIMALS, KeySchema
from tidegate.windowing.state.rows import REST
from tidegate.windowing.testing import OperatorHarness, window_harness

INPUT = pa.schema(
    [
        ("n", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("d", pa.decimal128(38, 2)),
        ("e", pa.decimal128(20, 2)),
        ("price", pa.decimal128(10, 2)),
        ("i", pa.int8()),
        ("raw", pa.binary()),
    ]
)


def results(aggregate: Aggregate, *elements: dict[str, Any]) -> list[Any]:
    """Return the result over elements at times 0, 1, 2 and so on: one by one, as one group, and merged from two
    groups.
    """
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
    """Return the one result that all ways give."""
    texts = {repr(result) for result in found}
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


def test_a_variance_that_no_double_holds_is_infinite_in_both_forms_without_a_warning(
    recwarn: pytest.WarningsRecorder,
) -> None:
    for values in ((1e300, -1e300), (1e300, -1e300, 0.5), (1e160, -1e160, 3.0)):
        assert of(Variance("x"), "x", *values) == math.inf
        assert of(StandardDeviation("x"), "x", *values) == math.inf
    assert not recwarn.list


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
    assert math.isnan(of(Variance("x"), "x", 1.0, math.inf))


@pytest.mark.parametrize(
    "kind", [pa.decimal128(10, 2), pa.decimal128(15, 6), pa.decimal128(18, 2), pa.decimal128(15, 15)]
)
def test_decimals_become_the_nearest_doubles(kind: pa.DataType) -> None:
    values = [Decimal(number).scaleb(-kind.scale) for number in range(-2000, 2000)]
    doubles = doubles_of(pa.array([Decimal(0), None, *values], kind)[1:])
    assert doubles.tolist() == [0.0, *map(float, values)]


def test_a_quantile_of_prices_is_a_price() -> None:
    assert of(ApproxQuantile("price", 0.5), "price", Decimal("0.35"), None) == 0.35
    assert of(StandardDeviation("price"), "price", *[Decimal("0.35")] * 3) == 0.0


def test_first_and_last_go_by_time_and_may_be_null() -> None:
    assert of(First("s"), "s", None, "b") is None
    assert of(Last("s"), "s", "a", "b") == "b"


def test_first_and_last_ignore_nulls_if_asked() -> None:
    assert of(First("s", ignore_nulls=True), "s", None, "b", "a", None) == "b"
    assert of(Last("s", ignore_nulls=True), "s", None, "b", "a", None) == "a"
    for aggregate in (First("s", ignore_nulls=True), Last("s", ignore_nulls=True)):
        assert of(aggregate, "s", None, None) is None
    elements = ({"s": None, "x": 0.0}, {"s": "b", "x": 1.0}, {"s": "a", "x": 2.0}, {"s": None, "x": 3.0})
    assert only(results(MinBy("s", "x", ignore_nulls=True), *elements)) == "b"
    assert only(results(MaxBy("s", "x", ignore_nulls=True), *elements)) == "a"
    assert only(results(MaxBy("s", "x", ignore_nulls=True), {"s": None, "x": 1.0}, {"s": "c", "x": None})) is None


def test_the_mean_of_decimals_is_their_exact_sum_divided_and_rounded_half_up_once() -> None:
    near = Decimal("12345678901234567.89"), Decimal("-12345678901234567.88")
    assert of(Mean("e"), "e", *near) == Decimal("0.005000")
    assert of(Mean("e"), "e", Decimal("0.01"), None, Decimal(0), Decimal(0)) == Decimal("0.003333")
    assert of(Mean("e"), "e", Decimal("-0.01"), Decimal("-0.01"), Decimal(0)) == Decimal("-0.006667")
    thirds = [Decimal("0.01")] + [Decimal(0)] * 19_999
    assert of(Mean("e"), "e", *thirds) == Decimal("0.000001")  # 0.0000005
    assert Mean("e").bind(INPUT).result_type == pa.decimal128(24, 6)
    assert Mean("d").bind(INPUT).result_type == pa.decimal128(38, 6)


def test_the_mean_of_decimals_may_have_a_sum_that_overflows_but_not_too_many_digits_itself() -> None:
    most = Decimal("9" * 36 + ".99")
    with pytest.raises(OverflowError, match=r"the mean of column 'd' is too large .*Mean\('narrow'\)"):
        of(Mean("d"), "d", most, most)
    assert of(Mean("d"), "d", most, most.copy_negate(), Decimal("9" * 32)) == Decimal("3" * 32)
    narrow = pa.schema([("d", pa.decimal128(34, 0))])
    function = Mean("d").bind(narrow)
    accumulator = function.create_accumulator()
    for _ in range(20_000):
        accumulator = function.add({"d": Decimal("9" * 34)}, accumulator)
    assert function.get_result(accumulator) == Decimal("9" * 34)
    value, rest = function.stored(accumulator)
    assert rest is not None
    assert function.get_result(function.restored(value, rest)) == Decimal("9" * 34)


def test_the_mean_of_decimals_of_unknown_type_is_exact() -> None:
    function = Mean("v").bind(None)
    accumulator = function.create_accumulator()
    for value in (Decimal("12345678901234567.89"), None, Decimal("-12345678901234567.88")):
        accumulator = function.add({"v": value}, accumulator)
    accumulator = function.merge(function.create_accumulator(), accumulator)
    assert function.get_result(accumulator) == Decimal("0.005")


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


@pytest.mark.parametrize("zeros", [(0.0, -0.0), (-0.0, 0.0)])
def test_the_sign_of_a_zero_does_not_depend_on_the_order_of_elements(zeros: tuple[float, ...]) -> None:
    for aggregate in (Min("x"), Max("x"), ApproxQuantile("x", 0.5), Mean("x")):
        assert repr(of(aggregate, "x", *zeros)) == "0.0"
    tied = [{"x": zero, "n": 1} for zero in zeros]
    assert [repr(only(results(kind("x", "n"), *tied))) for kind in (MinBy, MaxBy)] == ["-0.0", "0.0"]
    ranked = [{"x": zero, "n": number} for zero, number in zip(zeros, (1, 2), strict=True)]
    assert [only(results(kind("n", "x"), *ranked)) for kind in (MinBy, MaxBy)] == [1, 2]


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


SUMMED = pa.schema(
    [("x", pa.float64()), ("n", pa.int64()), ("d", pa.decimal128(38, 2)), ("wide", pa.decimal128(38, 0))]
)
KEY = KeySchema.of(key=pa.string())
MIXED = [0.1, 0.2, -0.3, 1e9, -1e9, 0.7]
DOUBLES = st.floats(-1e12, 1e12) | st.sampled_from([1e9, -1e9, 0.1, 1e300, -1e300, 5e-324])


def harness(operator: str, **aggregates: Aggregate) -> OperatorHarness:
    windows = Windows(TumblingEventTimeWindows.of(100), aggregate=AggregateColumns.of(aggregates, SUMMED))
    if operator == "columnar":
        return columnar_harness(windows, key=KEY, values=SUMMED)
    return window_harness(windows, key=KEY)


def result(made: OperatorHarness, column: str, values: list[Any], restores: bool = True) -> dict[str, Any]:
    for time, value in enumerate(values):
        made.element("a", {**dict.fromkeys(SUMMED.names), column: value}, time)
        if restores:
            made.restore(made.snapshot())
    made.watermark(99)
    (found,) = made.results()
    value: dict[str, Any] = found.value
    return value


@pytest.mark.parametrize("operator", ["row", "columnar"])
@pytest.mark.parametrize("restores", [False, True])
def test_large_numbers_that_cancel_leave_the_small_ones(operator: str, restores: bool) -> None:
    exact = float(sum(map(Fraction, MIXED)))
    for values in (MIXED, MIXED[::-1], [1e9, 0.1, -1e9, 0.2, 0.7, -0.3]):
        found = result(harness(operator, total=Sum("x"), mean=Mean("x")), "x", values, restores)
        assert found == {"total": exact, "mean": pytest.approx(exact / 6, rel=1e-15)}


@given(st.lists(st.lists(DOUBLES, min_size=1, max_size=20), min_size=1, max_size=5))
def test_groups_of_doubles_add_up_as_exact_numbers_do(parts: list[list[float]]) -> None:
    groups = Groups.of_sizes(np.array([len(part) for part in parts]))
    totals, rests = sums(np.array([number for part in parts for number in part]), groups)
    for part, total, rest in zip(parts, totals.tolist(), rests.tolist(), strict=True):
        magnitudes = sum(abs(Fraction(number)) for number in part)
        exact = sum(map(Fraction, part), Fraction(0))
        one_by_one = Total.of(0.0)
        for number in part:
            one_by_one = added(one_by_one, number)
        for value, remainder in ((total, rest), (float(one_by_one), one_by_one.rest)):
            assert abs(Fraction(value) + Fraction(remainder) - exact) <= magnitudes / 2**90


@pytest.mark.parametrize("operator", ["row", "columnar"])
@pytest.mark.parametrize(
    ("values", "total"),
    [
        ([math.inf, 1.0], math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.nan, 1.0], math.nan),
        ([1.7e308, 1.7e308], math.inf),
        ([-0.0, -0.0], 0.0),
        ([5e-324, 5e-324], 1e-323),
        ([None, None], None),
        ([None, 2.5], 2.5),
    ],
)
def test_what_is_not_finite_and_what_is_nothing(operator: str, values: list[Any], total: Any) -> None:
    for restores in (False, True):
        found = result(harness(operator, total=Sum("x")), "x", values, restores)["total"]
        assert repr(found) == repr(total)


def test_snapshots_from_before_there_were_rests_go_on() -> None:
    made = harness("row", total=Sum("x"), mean=Mean("x"), n=Sum("n"), v=Variance("x"))
    for time, number in enumerate((0.5, 0.25)):
        made.element("a", {"x": number, "n": 1, "d": None, "wide": None}, time)
    taken = made.snapshot()
    rests = [name for name in taken.rows.column_names if name.startswith(REST)]
    assert rests == [f"{REST}acc_{name}" for name in ("total", "mean", "n", "v")]
    contents = {name: kind for name, kind in taken.format.contents.items() if name not in rests}
    older = replace(taken, rows=taken.rows.drop_columns(rests), format=replace(taken.format, contents=contents))
    for operator in ("row", "columnar"):
        made = harness(operator, total=Sum("x"), mean=Mean("x"), n=Sum("n"), v=Variance("x"))
        made.restore(older)
        assert result(made, "x", [0.75]) == {"total": 1.5, "mean": 0.5, "n": 2, "v": 0.0625}


TOP = 2**63 - 1
TOP_DECIMAL = Decimal("999999999999999999999999999999999999.99")


@pytest.mark.parametrize("operator", ["row", "columnar"])
@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize(
    ("column", "values", "total"),
    [
        ("n", [TOP, 1, -5], TOP - 4),
        ("n", [TOP, TOP, TOP, -TOP, -TOP], TOP),
        ("n", [-TOP, -TOP, 5, TOP], 5 - TOP),
        ("d", [TOP_DECIMAL, TOP_DECIMAL, TOP_DECIMAL.copy_negate()], TOP_DECIMAL),
    ],
)
def test_a_sum_may_leave_its_type_on_the_way_to_a_result_that_fits(
    operator: str, restores: bool, column: str, values: list[Any], total: Any
) -> None:
    assert result(harness(operator, total=Sum(column)), column, values, restores)["total"] == total


@pytest.mark.parametrize("operator", ["row", "columnar"])
@pytest.mark.parametrize(("column", "value"), [("n", TOP), ("d", TOP_DECIMAL)])
def test_a_result_that_leaves_its_type_is_an_error_that_names_a_way_out(operator: str, column: str, value: Any) -> None:
    with pytest.raises(
        SumOutOfRange, match=rf"the sum of column '{column}' is too large for .* and name the old sum"
    ) as error:
        result(harness(operator, total=Sum(column)), column, [value, value], restores=False)
    again = pickle.loads(pickle.dumps(error.value))
    assert str(again) == str(error.value)


@pytest.mark.parametrize("operator", ["row", "columnar"])
def test_the_way_out_goes_on_from_the_snapshot_that_the_sum_could_not_leave(operator: str) -> None:
    before = harness("row", total=Sum("n"))
    for time in (0, 1):
        before.element("a", {"x": None, "n": TOP, "d": None, "wide": None}, time)
    now = harness(operator, wide_total=Sum("wide"))
    now.restore(before.snapshot(), drop={"acc_total"})
    # The open window has lost its sum, and the next one has the wider sum.
    assert result(now, "wide", [Decimal(TOP)]) == {"wide_total": None}
    for time in (100, 101):
        now.element("a", {"x": None, "n": TOP, "d": None, "wide": Decimal(TOP)}, time)
    now.watermark(199)
    assert [found.value for found in now.results()] == [{"wide_total": Decimal(2 * TOP)}]


@given(st.integers(-(2**100), 2**100))
def test_what_wraps_comes_back(total: int) -> None:
    low, times = wrapped(total, pa.int64())
    assert -(2**63) <= low < 2**63
    assert total == (low if times is None else unwrapped(low, times, pa.int64()))
    kind = pa.decimal128(20, 4)
    number = Decimal(total).scaleb(-4, DECIMALS)
    stored, times = wrapped(number, kind)
    assert pa.scalar(stored, kind).as_py() == stored
    assert number == (stored if times is None else unwrapped(stored, times, kind))

"""Sums do not depend on the cut: doubles keep what rounding leaves, integers and decimals may wrap on the way."""

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
from tidegate.windowing import Mean, Sum, TumblingEventTimeWindows, Variance, Windows
from tidegate.windowing.aggregates import Aggregate, AggregateColumns, Groups
from tidegate.windowing.aggregates.doubles import Total, added, sums
from tidegate.windowing.aggregates.exact import SumOutOfRange, unwrapped, wrapped
from tidegate.windowing.keys import DECIMALS, KeySchema
from tidegate.windowing.state.rows import REST
from tidegate.windowing.testing import OperatorHarness, window_harness

INPUT = pa.schema([("x", pa.float64()), ("n", pa.int64()), ("d", pa.decimal128(38, 2)), ("wide", pa.decimal128(38, 0))])
KEY = KeySchema.of(key=pa.string())
MIXED = [0.1, 0.2, -0.3, 1e9, -1e9, 0.7]
DOUBLES = st.floats(-1e12, 1e12) | st.sampled_from([1e9, -1e9, 0.1, 1e300, -1e300, 5e-324])


def harness(operator: str, **aggregates: Aggregate) -> OperatorHarness:
    windows = Windows(TumblingEventTimeWindows.of(100), aggregate=AggregateColumns.of(aggregates, INPUT))
    if operator == "columnar":
        return columnar_harness(windows, key=KEY, values=INPUT)
    return window_harness(windows, key=KEY)


def result(made: OperatorHarness, column: str, values: list[Any], restores: bool = True) -> dict[str, Any]:
    for time, value in enumerate(values):
        made.element("a", {**dict.fromkeys(INPUT.names), column: value}, time)
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


@pytest.mark.parametrize("operator", ["row", "columnar"])
def test_the_variance_of_what_lies_close_together_and_far_from_zero(operator: str) -> None:
    values = [1e9 + step / 1024 for step in (1, 2, 3, 4)]
    assert result(harness(operator, v=Variance("x")), "x", values)["v"] == pytest.approx(5 / 3 / 1024**2, rel=1e-12)


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
    # The window that is open has lost its sum, and the next one has the wider sum.
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

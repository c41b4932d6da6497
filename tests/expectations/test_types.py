"""Each expectation of Great Expectations reads each type of column, or a message says why it can't."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import great_expectations as gx
import great_expectations.expectations as gxe
import numpy as np
import pyarrow as pa
import pytest
from great_expectations.expectations.expectation import Expectation

from tidegate.expectations.needs import CORE, NEEDS, fact_of
from tidegate.expectations.outcome import Outcome
from tidegate.expectations.run import any_rows, validate
from tidegate.expectations.suites import own_suite
from tidegate.expectations.typed import type_faults

VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "double": (pa.float64(), [1.5, 2.5, 3.5]),
    "int": (pa.int64(), [1, 2, 3]),
    "bool": (pa.bool_(), [True, False, True]),
    "text": (pa.string(), ["a", "b", "c"]),
    "decimal": (pa.decimal128(20, 2), [Decimal("1.50"), Decimal("2.50"), Decimal("3.50")]),
    "date": (pa.date32(), [date(2024, 1, day) for day in (1, 2, 3)]),
    "time": (pa.timestamp("us", "UTC"), [datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 3)]),
    "naive": (pa.timestamp("us"), [datetime(2024, 1, day) for day in (1, 2, 3)]),
    "binary": (pa.binary(), [b"a", b"b", b"c"]),
    "list": (pa.list_(pa.int64()), [[1], [2], [3, 4]]),
    "struct": (pa.struct([("x", pa.int64())]), [{"x": 1}, {"x": 2}, {"x": 3}]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [("b", 2)], [("c", 3)]]),
}
NUMBERS, NESTED = {"double", "int", "decimal"}, {"list", "struct", "map"}


def expectations(values: list[Any]) -> Iterator[Any]:
    """Yield the expectations that read values, with limits that hold for numbers, times or dates."""
    low, high = (values[0], values[2]) if isinstance(values[0], int | float | Decimal | date) else (0, 5)
    column = {"column": "v"}
    pair = {"column_A": "v", "column_B": "w"}
    yield gxe.ExpectColumnDistinctValuesToBeInSet(**column, value_set=values)
    yield gxe.ExpectColumnDistinctValuesToContainSet(**column, value_set=values[:1])
    yield gxe.ExpectColumnDistinctValuesToEqualSet(**column, value_set=[values[0], values[2]])
    yield gxe.ExpectColumnMaxToBeBetween(**column, min_value=low, max_value=high)
    yield gxe.ExpectColumnMinToBeBetween(**column, min_value=low, max_value=high)
    yield gxe.ExpectColumnMeanToBeBetween(**column, min_value=low, max_value=high)
    yield gxe.ExpectColumnMedianToBeBetween(**column, min_value=low, max_value=high)
    yield gxe.ExpectColumnStdevToBeBetween(**column, min_value=0, max_value=5)
    yield gxe.ExpectColumnSumToBeBetween(**column, min_value=0, max_value=50)
    yield gxe.ExpectColumnQuantileValuesToBeBetween(
        **column, quantile_ranges={"quantiles": [0.5], "value_ranges": [[0, 5]]}
    )
    yield gxe.ExpectColumnMostCommonValueToBeInSet(**column, value_set=values, ties_okay=True)
    yield gxe.ExpectColumnProportionOfUniqueValuesToBeBetween(**column, min_value=0.1)
    yield gxe.ExpectColumnUniqueValueCountToBeBetween(**column, min_value=1, max_value=5)
    yield gxe.ExpectColumnValueZScoresToBeLessThan(**column, threshold=4, double_sided=True)
    yield gxe.ExpectColumnValuesToNotBeOutliers(**column, method="iqr", multiplier=3.0)
    yield gxe.ExpectColumnValuesToBeBetween(**column, min_value=low, max_value=high)
    yield gxe.ExpectColumnValuesToBeIncreasing(**column)
    yield gxe.ExpectColumnValuesToBeInSet(**column, value_set=values)
    yield gxe.ExpectColumnValuesToNotBeInSet(**column, value_set=values[1:2])
    yield gxe.ExpectColumnValuesToBeUnique(**column)
    yield gxe.ExpectCompoundColumnsToBeUnique(column_list=["v", "k"])
    yield gxe.ExpectColumnPairValuesToBeEqual(**pair)
    yield gxe.ExpectColumnPairValuesAToBeGreaterThanB(**pair, or_equal=True)
    yield gxe.ExpectColumnPairValuesToBeInSet(**pair, value_pairs_set=[(each, each) for each in values])
    yield gxe.ExpectMulticolumnSumToEqual(column_list=["v", "w"], sum_total=3, ignore_row_if="any_value_is_missing")
    yield gxe.ExpectSelectColumnValuesToBeUniqueWithinRecord(column_list=["v", "k"])


def refused(kind: str, expectation: Any) -> bool:
    """Return True if a message must say that the expectation can't read such a column."""
    reads, name = fact_of(expectation).reads, expectation.expectation_type
    if kind in NESTED:
        return reads in ("values", "numbers")
    if reads == "numbers":
        return kind not in NUMBERS | {"bool"}
    if "increasing" in name:
        return kind in ("text", "binary", "bool")
    if "most_common" in name or "pair_values_to_be_in_set" in name:
        return kind == "time"
    return kind in ("text", "binary") and reads == "values" and name.endswith("_to_be_between")


@pytest.mark.first(len(VALUES))
@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("with_null", [True, False], ids=["null", "full"])
def test_each_expectation_reads_each_type_or_says_why_not(kind: str, with_null: bool) -> None:
    arrow, values = VALUES[kind]
    # A repeated value stands for the null, so that the same things hold.
    column = pa.array([values[0], None if with_null else values[0], values[2]], arrow)
    rows = pa.table({"v": column, "w": column, "k": ["x", "y", "z"]})
    batch = any_rows()
    for expectation in expectations(values):
        name = expectation.expectation_type
        fault = next(type_faults(expectation, rows.schema), None)
        assert (fault is not None) == refused(kind, expectation), (name, fault)
        if fault is not None:
            assert "column 'v' holds " in fault
            continue
        suite = gx.ExpectationSuite(name="own", expectations=[expectation.copy(deep=True)])
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            (outcome,) = validate(batch, own_suite("rows", suite, rows), ())
        unlike = {"expect_multicolumn_sum_to_equal", *(["expect_column_values_to_be_unique"] * (not with_null))}
        # The range of booleans is that of their first and last value.
        unlike |= {"expect_column_values_to_be_unique"} if kind == "bool" else set()
        assert outcome.success == (name not in unlike), (name, outcome.summary, outcome.examples)


def outcome_of(expectation: Any, rows: pa.Table) -> Outcome:
    suite = gx.ExpectationSuite(name="own", expectations=[expectation])
    (outcome,) = validate(any_rows(), own_suite("rows", suite, rows), ())
    return outcome


def test_a_decimal_equals_the_double_that_its_limit_is() -> None:
    rows = pa.table({"v": pa.array([Decimal("0.30"), Decimal("0.10"), None], pa.decimal128(5, 2))})
    assert outcome_of(gxe.ExpectColumnValuesToBeBetween(column="v", min_value=0.1, max_value=0.3), rows).success
    assert outcome_of(gxe.ExpectColumnValuesToBeInSet(column="v", value_set=[Decimal("0.3"), 0.1]), rows).success
    large = pa.table({"v": pa.array([Decimal(10**20), Decimal(10**20 + 1)], pa.decimal128(30, 0))})
    assert outcome_of(gxe.ExpectColumnValuesToBeUnique(column="v"), large).success, "exact where values are told apart"


UTC_COLUMN, DATE_COLUMN = pa.schema([("v", pa.timestamp("us", "UTC"))]), pa.schema([("v", pa.date32())])


@pytest.mark.parametrize(
    ("schema", "limit", "said"),
    [
        (UTC_COLUMN, datetime(2024, 1, 1), "has no time zone, but column 'v' holds times in UTC: write datetime"),
        (
            UTC_COLUMN,
            date(2024, 1, 1),
            "is a date, but column 'v' holds times in UTC: write datetime(2024, 1, 1, t",
        ),
        (
            DATE_COLUMN,
            datetime(2024, 1, 1, tzinfo=UTC),
            "has a time zone, but column 'v' holds dates: write it with",
        ),
        (pa.schema([("v", pa.int64())]), datetime(2024, 1, 1), "is a time, but column 'v' holds numbers"),
    ],
)
def test_a_limit_of_another_type_is_an_error_of_the_suite(schema: pa.Schema, limit: date, said: str) -> None:
    for expectation in (
        gxe.ExpectColumnValuesToBeBetween(column="v", min_value=limit),
        gxe.ExpectColumnValuesToBeInSet(column="v", value_set=[limit]),
    ):
        fault = next(type_faults(expectation, schema))
        assert said in fault


def test_each_expectation_of_great_expectations_has_a_decision() -> None:
    core = {each for each in vars(gxe).values() if isinstance(each, type) and issubclass(each, Expectation)}
    assert core - {Expectation} == CORE.keys()
    assert {fact.needs for fact in CORE.values()} == {*NEEDS}


def test_a_subclass_has_the_facts_of_its_base_until_it_declares_others() -> None:
    class Ordered(gxe.ExpectColumnValuesToBeIncreasing):
        column: str = "v"

    class MeanOfAll(gxe.ExpectColumnMeanToBeBetween):
        needs = "standing"

    assert fact_of(Ordered()) == CORE[gxe.ExpectColumnValuesToBeIncreasing]
    assert fact_of(MeanOfAll(column="v")) == ("standing", "values")


def test_a_decimal_equals_the_limit_of_the_same_digits() -> None:
    cents = [Decimal(number).scaleb(-2) for number in range(1, 200, 7)]
    rows = pa.table({"v": pa.chunked_array([pa.array([value, None], pa.decimal128(10, 2)) for value in cents])})
    for limits in (cents, [*map(float, cents)]):
        assert outcome_of(gxe.ExpectColumnValuesToBeInSet(column="v", value_set=limits), rows).success
    for cent in cents:
        one = pa.table({"v": pa.array([cent], pa.decimal128(10, 2))})
        between = gxe.ExpectColumnValuesToBeBetween(column="v", min_value=float(cent), max_value=cent)
        assert outcome_of(between, one).success, cent


IDS = [1_700_000_000_000_000_001, 1_700_000_000_000_000_002, None]


@pytest.mark.parametrize(
    ("expectation", "observed"),
    [
        (gxe.ExpectColumnValuesToBeUnique(column="v"), "0 of 3 rows break it"),
        (gxe.ExpectCompoundColumnsToBeUnique(column_list=["v", "w"]), "0 of 3 rows break it"),
        (gxe.ExpectColumnUniqueValueCountToBeBetween(column="v", min_value=2, max_value=2), "2"),
        (gxe.ExpectColumnValuesToBeInSet(column="v", value_set=IDS[:2]), "0 of 3 rows break it"),
        (gxe.ExpectColumnValuesToNotBeInSet(column="v", value_set=[IDS[1]]), "1 of 3 rows break it"),
        (gxe.ExpectColumnPairValuesToBeEqual(column_A="v", column_B="w"), "1 of 3 rows break it"),
        (gxe.ExpectColumnValuesToBeIncreasing(column="v", strictly=True), "0 of 3 rows break it"),
        (gxe.ExpectColumnValuesToMatchRegex(column="v", regex=r"^\d{19}$"), "0 of 3 rows break it"),
        (
            gxe.UnexpectedRowsExpectation(unexpected_rows_query=f"SELECT * FROM {{batch}} WHERE v = {IDS[1]}"),
            "1 of 3 rows break it",
        ),
        (gxe.ExpectColumnValuesToBeOfType(column="v", type_="int64"), "int64"),
    ],
)
def test_numbers_of_19_digits_are_exact_though_one_is_null(expectation: Any, observed: str) -> None:
    rows = pa.table({"v": pa.array(IDS), "w": pa.array([IDS[0], IDS[1] + 1, None]), "k": ["x", "y", "z"]})
    outcome = outcome_of(expectation, rows)
    assert outcome.summary == observed
    assert all("e+18" not in str(example) for example in outcome.examples)

"""Values of user code against declared types: what is meant goes in, and nothing is cast without a word."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tidegate.windowing.declared import checker
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.time import to_millis
from tidegate.windowing.timestamps import TIMESTAMP, epoch_millis, floored_millis, timestamps_of
from tidegate.windowing.type_names import name_of

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)

NOON_MILLIS = 1_714_564_800_000

UTC_US = pa.timestamp("us", tz="UTC")

PART = pa.struct([("at", UTC_US), ("n", pa.int8())])


def fitted(name: str, values: list[Any], kind: pa.DataType) -> pa.Array:
    """Return values of a result as the column of its table."""
    fit = checker(kind, name, None, takes_millis=True)
    return pa.array([fit(value) for value in values], kind)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize(
    "value", [NOON_MILLIS, np.int64(NOON_MILLIS), NOON, NOON.astimezone(timezone(timedelta(hours=2)))]
)
def test_an_int_in_a_timestamp_is_epoch_milliseconds_whatever_the_unit(unit: str, value: Any) -> None:
    assert fitted("at", [value, None], pa.timestamp(unit, tz="UTC")).to_pylist() == [NOON, None]


def test_a_wall_clock_takes_the_utc_time_of_an_int() -> None:
    assert fitted("at", [NOON_MILLIS], pa.timestamp("us")).to_pylist() == [NOON.replace(tzinfo=None)]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        ([NOON_MILLIS, None], pa.list_(UTC_US), [NOON, None]),
        ((NOON_MILLIS,), pa.list_(UTC_US), [NOON]),
        ({"at": NOON_MILLIS}, PART, {"at": NOON, "n": None}),
        ({"a": {"at": NOON_MILLIS, "n": 1}}, pa.map_(pa.string(), PART), [("a", {"at": NOON, "n": 1})]),
        ([("a", NOON_MILLIS)], pa.map_(pa.string(), UTC_US), [("a", NOON)]),
        ([[{"at": -1}]], pa.list_(pa.list_(PART)), [[{"at": NOON.fromtimestamp(-0.001, UTC), "n": None}]]),
        (date(2024, 5, 1), pa.date32(), date(2024, 5, 1)),
        (5, pa.decimal128(10, 2), Decimal("5.00")),
        (Decimal("7"), pa.int64(), 7),
        (float("inf"), pa.float32(), float("inf")),
        (3, pa.float64(), 3.0),
        ({"a", "b"} - {"b"}, pa.list_(pa.string()), ["a"]),
    ],
)
def test_what_is_meant_goes_in(value: Any, kind: pa.DataType, expected: Any) -> None:
    assert fitted("x", [value], kind).to_pylist() == [expected]


@pytest.mark.parametrize(
    ("value", "kind", "field", "why"),
    [
        ("noon", UTC_US, "x = 'noon'", "give a datetime, or epoch milliseconds as an int"),
        (True, UTC_US, "x = True", "give a datetime, or epoch milliseconds"),
        (1.5, UTC_US, "x = 1.5", "give a datetime, or epoch milliseconds"),
        (date(2024, 5, 1), UTC_US, "x = datetime.date", "give a datetime, or epoch milliseconds"),
        (NOON_MILLIS * 1000, UTC_US, f"x = {NOON_MILLIS}000", "not in the years 1 to 9999"),
        (NOON.replace(tzinfo=None), UTC_US, "x = datetime", "give the datetime a zone"),
        (NOON, pa.timestamp("us"), "x = datetime", "give a datetime without a zone"),
        (NOON, pa.date32(), "x = datetime", "give a datetime.date"),
        (19_844, pa.date32(), "x = 19844", "give a datetime.date"),
        (1e300, pa.float32(), "x = 1e+300", "it is too large"),
        (True, pa.float64(), "x = True", "give a float"),
        (300, pa.int8(), "x = 300", "declared type is int8"),
        (2**70, pa.int64(), "x = 11805916", "declared type is int64"),
        (Decimal("1.5"), pa.int64(), "x = Decimal('1.5')", "give an int"),
        (1.5, pa.int64(), "x = 1.5", "declared type is int64"),
        (Decimal("1.234"), pa.decimal128(10, 2), "x = Decimal('1.234')", "declared type is decimal128(10, 2)"),
        (0.5, pa.decimal128(10, 2), "x = 0.5", "declared type is decimal128(10, 2)"),
        (1, pa.bool_(), "x = 1", "declared type is bool"),
        (1, pa.string(), "x = 1", "declared type is string"),
        ("abc", pa.list_(pa.string()), "x = 'abc'", "give a list"),
        ([1, NOON], pa.list_(pa.date32()), "x[0] = 1", "give a datetime.date"),
        ({"at": "noon"}, PART, "x.at = 'noon'", "declared type is struct<at: timestamp[us, tz=UTC], n: int8>"),
        ({"when": 1}, PART, "x = {'when': 1}", "'when' is not declared; declared are ['at', 'n']"),
        ((1, 2), PART, "x = (1, 2)", "give a mapping with ['at', 'n']"),
        ({"a": "noon"}, pa.map_(pa.string(), UTC_US), "x['a'] = 'noon'", "epoch milliseconds"),
    ],
)
def test_what_would_be_cast_is_refused_with_field_value_and_type(
    value: Any, kind: pa.DataType, field: str, why: str
) -> None:
    with pytest.raises(IllegalArgument) as refused:
        fitted("x", [None, value], kind)
    assert str(refused.value).startswith(field)
    assert why in str(refused.value)
    assert f"declared type is {kind}" in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (pa.int8(), "tinyint"),
        (pa.int32(), "int"),
        (pa.bool_(), "boolean"),
        (pa.date32(), "date"),
        (pa.large_string(), "string"),
        (pa.decimal128(10, 2), "decimal(10,2)"),
        (pa.timestamp("us", tz="UTC"), "timestamp"),
        (pa.timestamp("ms", tz="Europe/Berlin"), "timestamp"),
        (pa.timestamp("us"), "timestamp_ntz"),
        (pa.list_(pa.int32()), "array<int>"),
        (pa.map_(pa.string(), pa.float32()), "map<string, float>"),
        (pa.struct([("os", pa.string()), ("app", pa.struct([("beta", pa.bool_())]))]), "struct<os: string, app: "),
        (pa.uint64(), "uint64"),
    ],
    ids=str,
)
def test_a_type_has_the_name_that_its_user_wrote(kind: pa.DataType, name: str) -> None:
    assert name_of(kind).startswith(name)


MOMENTS = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    None,
]

MILLIS = [None if moment is None else to_millis(moment) for moment in MOMENTS]


@pytest.mark.parametrize("form", [pa.array, lambda values, kind: pa.chunked_array([values[:2], values[2:]], kind)])
def test_times_come_back_from_milliseconds_as_they_were(form: object) -> None:
    times = form(MOMENTS, TIMESTAMP)  # type: ignore[operator]
    assert epoch_millis(times).to_pylist() == MILLIS
    assert timestamps_of(epoch_millis(times)) == times


def test_a_time_with_microseconds_is_refused_in_a_table_of_ours_and_rounded_down_in_a_source() -> None:
    between = pa.chunked_array([[datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=n) for n in (-1, 1, 1999)]])
    with pytest.raises(pa.ArrowInvalid):
        epoch_millis(between.cast(TIMESTAMP))
    assert floored_millis(between.cast(TIMESTAMP)).tolist() == [-1, 0, 1]

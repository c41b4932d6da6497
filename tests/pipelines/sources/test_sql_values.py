"""Values and errors of programs, as known from Spark in ANSI mode; tests/spark/test_sql.py compares all of them."""

from __future__ import annotations

import unicodedata
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidegate.pipelines.sources.sql.compile import columns_of, compile_expression
from tidegate.pipelines.sources.sql.program import RowFailure, as_array
from tidegate.pipelines.sources.sql.reading import Unproven


def value(expression: str, **columns: tuple[Any, pa.DataType]) -> Any:
    """Return the value of an expression for one row."""
    rows = pa.RecordBatch.from_arrays(
        [pa.array([None], pa.int8()), *(pa.array([cell], kind) for cell, kind in columns.values())],
        names=["nothing", *columns],
    )
    return as_array(compile_expression(expression, rows.schema).evaluate(rows), 1)[0].as_py()


def double(expression: str, a: float | None, b: float | None) -> Any:
    return value(expression, a=(a, pa.float64()), b=(b, pa.float64()))


def whole(expression: str, a: int | None, b: int | None = None) -> Any:
    return value(expression, a=(a, pa.int32()), b=(b, pa.int32()))


def text(expression: str, s: str | None) -> Any:
    return value(expression, s=(s, pa.string()))


@pytest.mark.parametrize(
    "expression", ["a + b", "a * b", "a - -b", "abs(a - 1 - b)", "-(a + 1 - 2147483647 - 2147483647 - 2)"]
)
def test_an_integer_out_of_range_is_an_error(expression: str) -> None:
    numbers = {"abs(a - 1 - b)": (-2147483647, 0), "-(a + 1 - 2147483647 - 2147483647 - 2)": (2147483646, 0)}
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        whole(expression, *numbers.get(expression, (2147483647, 2147483647)))


@pytest.mark.parametrize("expression", ["a / b", "a div b", "a % b"])
def test_a_division_by_zero_is_an_error_also_for_doubles(expression: str) -> None:
    with pytest.raises((pa.ArrowInvalid, RowFailure), match="zero"):
        whole(expression, 1, 0)
    assert whole(expression, None, 0) is None
    with pytest.raises(RowFailure):
        double("a / b", 1.0, -0.0)


def test_a_branch_is_evaluated_only_for_the_rows_that_take_it() -> None:
    assert whole("case when b <> 0 then a / b else 0D end", 1, 0) == 0.0
    assert whole("b <> 0 and a / b > 1", 1, 0) is False
    assert whole("b = 0 or a / b > 1", 1, 0) is True
    assert whole("coalesce(a, 1 / b)", 1, 0) == 1.0
    assert whole("if(b = 0, null, a % b)", 1, 0) is None
    assert whole("b + 1 div a", 0, None) is None


@pytest.mark.parametrize("sign", ["\U0001fa77", "\U0001faef", "\U0001faff", "\u20c1", "\U000323af", "日"])
def test_a_sign_without_case_is_safe_even_if_python_does_not_know_it(sign: str) -> None:
    assert text("upper(s)", f"a{sign}é") == f"A{sign}É"
    assert text("lower(s)", f"A{sign}É") == f"a{sign}é"


@pytest.mark.parametrize("sign", ["\u019b", "\ua7dc", "\U00010d50", "\U00016ea0"])
def test_a_letter_that_unicode_gave_a_case_later_is_left_to_spark(sign: str) -> None:
    if unicodedata.category(sign) != "Cn" and sign != "\u019b":
        pytest.skip(f"Unicode {unicodedata.unidata_version} of this Python knows it")
    with pytest.raises(RowFailure, match="depends on the Unicode version"):
        text("upper(s)", f"a{sign}")


@pytest.mark.parametrize(
    ("written", "form", "micros"),
    [
        ("2024-02-29 10:11:12", "yyyy-MM-dd HH:mm:ss", 1_709_201_472_000_000),
        ("2024-02-29T10:11:12", "yyyy-MM-dd'T'HH:mm:ss", 1_709_201_472_000_000),
        ("2024-02-29 10:11:12.5", "yyyy-MM-dd HH:mm:ss.SSS", 1_709_201_472_500_000),
        ("2024-02-29 10:11:12.1234", "yyyy-MM-dd HH:mm:ss.SSS", None),
        ("2024-02-29", "yyyy-MM-dd", 1_709_164_800_000_000),
        ("2023-02-29", "yyyy-MM-dd", None),
        ("2024-2-9", "yyyy-MM-dd", None),
        ("0000-01-01", "yyyy-MM-dd", -62_167_219_200_000_000),
        ("-0001-03-01", "yyyy-MM-dd", -62_193_657_600_000_000),
        ("-0000-03-01", "yyyy-MM-dd", None),
        ("2024/02/29", "yyyy/MM/dd", 1_709_164_800_000_000),
        ("2024-02-29 10:11:12", "yyyy-MM-dd", None),
        ("+294247-01-10", "yyyy-MM-dd", 9_223_372_022_400_000_000),
    ],
)
def test_text_is_read_by_a_format_strictly(written: str, form: str, micros: int | None) -> None:
    assert text(f'unix_micros(try_to_timestamp(s, "{form}"))', written) == micros


def test_text_that_is_no_time_is_an_error_without_try() -> None:
    with pytest.raises(RowFailure, match="'x' is not a valid TIMESTAMP"):
        text("to_timestamp(s)", "x")
    with pytest.raises(RowFailure, match=r"zone 'Europe/Berlin', which only Spark reads\. With a format, such as"):
        text("try_to_timestamp(s)", "2024-01-01 10:00:00 Europe/Berlin")
    with pytest.raises(RowFailure, match=r"'1\.5' is not a valid INT"):
        text("cast(s as int)", "1.5")
    with pytest.raises(RowFailure, match=r"'\+294248-01-01' is out of range for a timestamp"):
        text("to_timestamp(s, 'yyyy-MM-dd')", "+294248-01-01")


@pytest.mark.parametrize("written", ["5881580-07-12", "-5877641-06-22", "9999999-01-01"])
def test_a_date_beyond_an_int_of_days_is_not_a_date(written: str) -> None:
    assert text("try_cast(s as date)", written) is None
    with pytest.raises(RowFailure, match="is not a valid DATE"):
        text("cast(s as date)", written)
    with pytest.raises(Unproven, match="is not a valid date"):
        compile_expression(f"date '{written}'", pa.schema([]))


@pytest.mark.parametrize(
    ("five", "digits"),
    [
        *(("5", 1), ("(5)", 1), ("-5", 1), ("5L", 1), ("-5L", 1), ("5S", 1)),
        *(("+5", 10), ("-(5)", 10), ("int(5)", 10), ("cast(5 as int)", 10), ("bigint(5)", 20), ("a_column", 10)),
    ],
)
def test_only_a_literal_counts_as_a_decimal_of_its_digits(five: str, digits: int) -> None:
    columns = columns_of(pa.schema([("p", pa.decimal128(10, 2))]))
    columns["a_column"] = compile_expression("5", columns)
    assert compile_expression(f"p + {five}", columns).type == pa.decimal128(max(8, digits) + 3, 2)


def test_a_plus_sign_is_for_numbers_only() -> None:
    assert whole("+a", 5) == 5
    with pytest.raises(Unproven):
        text("+s", "5")


def test_a_value_that_fits_into_no_narrower_number_is_null_with_try_cast_and_else_an_error() -> None:
    longs = [(number, pa.int64()) for number in (2**31 - 1, 2**31, -(2**31), -(2**31) - 1, None)]
    assert [value("try_cast(n as int)", n=each) for each in longs] == [2**31 - 1, None, -(2**31), None, None]
    cents = [(Decimal(text), pa.decimal128(6, 2)) for text in ("999.94", "999.95", "-0.05", "-1000.00")]
    assert [value("try_cast(p as decimal(4,1))", p=each) for each in cents] == [
        Decimal("999.9"),
        None,
        Decimal("-0.1"),
        None,
    ]
    with pytest.raises(RowFailure, match=r"the value 999\.95 is out of range for decimal\(4,1\)"):
        value("cast(p as decimal(4,1))", p=cents[1])


@pytest.mark.parametrize(
    ("told", "amount"),
    [
        (" 12.345 ", "12.35"),
        ("-0.005", "-0.01"),
        ("+.5", "0.50"),
        ("7.", "7.00"),
        ("1.5E3", "1500.00"),
        ("1e-400", "0.00"),
        ("9" * 9 + ".99", None),
        ("99999999.994999999999999999999999999999999", "99999999.99"),
        ("99999999.995", None),
        ("0E50", None),
        ("12 345", None),
        ("1,5", None),
        ("NaN", None),
        ("", None),
    ],
)
def test_text_is_cast_to_a_decimal_and_rounded_half_up(told: str, amount: str | None) -> None:
    cell = (told, pa.string())
    assert value("try_cast(s as decimal(10,2))", s=cell) == (None if amount is None else Decimal(amount))
    if amount is None:
        with pytest.raises(RowFailure, match=r"is not a valid DECIMAL|out of range for decimal"):
            value("cast(s as decimal(10,2))", s=cell)

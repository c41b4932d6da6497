"""Values and errors of programs, as known from Spark in ANSI mode; tests/spark/test_sql.py compares all of them."""

from __future__ import annotations

import unicodedata
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidegate.pipelines.sources.sql.compile import columns_of, compile_expression
from tidegate.pipelines.sources.sql.program import OnlyBySpark, RowFailure, as_array
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


@pytest.mark.parametrize(
    ("zone", "hour"),
    [
        *(("-0800", 20), ("+0530", 6.5), ("+05:30:15", 6.5 - 15 / 3600), ("+053015", 6.5 - 15 / 3600), ("-5", 17)),
        *(("UTC+0100", 11), ("GMT-3", 15), ("UT+2", 10), ("UTC", 12), ("GMT0", 12), ("Zulu", 12), ("+05:3", 6.95)),
        *((" Europe/Berlin", 11), ("America/New_York", 16), ("PST", 19), ("EST", 17), ("CET", 11), ("Etc/GMT+5", 17)),
        *(("utc", None), ("+1801", None), ("+0560", None), ("+123", None), ("Europe/Paris-Plage", None), ("PM", None)),
        *(("GMT+0", 12), ("ROC", None), ("UTC+25", None), ("posix/UTC", None), ("z", None), ("europe/berlin", None)),
    ],
)
def test_a_zone_after_a_time_is_read_as_spark_reads_it(zone: str, hour: float | None) -> None:
    written = f"2024-03-10T12:00:00{zone}"
    noon = 1_710_072_000
    expected = None if hour is None else noon + round((hour - 12) * 3600)
    assert text("unix_seconds(try_to_timestamp(s))", written) == expected
    if expected is None:
        with pytest.raises(RowFailure, match="is not a valid TIMESTAMP"):
            text("to_timestamp(s)", written)


BERLIN = [
    ("2024-03-31 01:30:00", "2024-03-31 00:30:00", "2024-03-31 03:30:00"),
    ("2024-03-31 02:30:00", "2024-03-31 01:30:00", "2024-03-31 04:30:00"),  # skipped by the clocks
    ("2024-10-27 01:00:00", "2024-10-26 23:00:00", "2024-10-27 02:00:00"),
    ("2024-10-27 02:30:00", "2024-10-27 00:30:00", "2024-10-27 03:30:00"),  # shown twice
    ("2050-07-01 00:00:00", "2050-06-30 22:00:00", "2050-07-01 02:00:00"),
]


@pytest.mark.parametrize(("clock", "in_utc", "from_utc"), BERLIN)
def test_a_clock_that_changes_is_read_and_shown_as_in_spark(clock: str, in_utc: str, from_utc: str) -> None:
    zoned = "_utc_timestamp(to_timestamp(s), 'Europe/Berlin') as string)"
    assert text(f"cast(to{zoned}", clock) == in_utc
    assert text(f"cast(from{zoned}", clock) == from_utc
    assert text("cast(try_to_timestamp(s) as string)", f"{clock} Europe/Berlin") == in_utc


def test_a_time_whose_offset_depends_on_the_time_zone_database_is_left_to_spark() -> None:
    assert text("cast(to_utc_timestamp(to_timestamp(s), 'Europe/Berlin') as string)", "1970-01-01") == (
        "1969-12-31 23:00:00"
    )
    for zone, time in (("Europe/Oslo", "1969-06-01"), ("WET", "1996-01-01"), ("Asia/Tehran", "1978-12-01")):
        with pytest.raises(OnlyBySpark, match=f"offset in {zone} depends on the version of the time zone database"):
            text(f"from_utc_timestamp(to_timestamp(s), '{zone}')", time)
        assert text(f"from_utc_timestamp(to_timestamp(s), '{zone}') is null", None)
    assert text("cast(from_utc_timestamp(to_timestamp(s), '+01:00') as string)", "0001-01-01") == "0001-01-01 01:00:00"


@pytest.mark.parametrize(
    ("start", "expression", "end"),
    [
        ("2024-01-31 10:00:00.5", "interval 1 month", "2024-02-29 10:00:00.5"),
        ("2024-02-29", "interval 1 year", "2025-02-28 00:00:00"),
        ("1969-12-31 23:59:59", "interval 2 seconds", "1970-01-01 00:00:01"),
        ("2024-03-31", "interval '-1' day", "2024-03-30 00:00:00"),
        ("2024-03-31", "interval 2 weeks", "2024-04-14 00:00:00"),
        ("2024-03-31", "interval 999999 microseconds", "2024-03-31 00:00:00.999999"),
    ],
)
def test_an_interval_is_added_to_a_time(start: str, expression: str, end: str) -> None:
    assert text(f"cast(to_timestamp(s) + {expression} as string)", start) == end


def test_a_time_plus_an_interval_that_is_out_of_range_is_an_error() -> None:
    latest = (2**63 - 1, pa.timestamp("us", "UTC"))
    for interval in ("1 microsecond", "1 month"):
        with pytest.raises(pa.ArrowInvalid, match="overflow"):
            value(f"t + interval {interval}", t=latest)
    earliest = (-(2**63), pa.timestamp("us", "UTC"))
    assert value("unix_micros((t + interval 1 month) - interval 1 month)", t=earliest) == -(2**63)


@pytest.mark.parametrize(
    ("number", "places", "rounded"),
    [
        *((2.5, 0, 3.0), (-2.5, 0, -3.0), (1.005, 2, 1.01), (2.675, 2, 2.68), (0.1 + 0.2, 6, 0.3), (-0.04, 1, 0.0)),
        *((1e300, 2, 1e300), (5e-324, 6, 0.0), (2.0**53, 1, 2.0**53), (float("inf"), 2, float("inf"))),
    ],
)
def test_doubles_are_rounded_by_their_shortest_text(number: float, places: int, rounded: float) -> None:
    assert repr(double(f"round(a, {places})", number, None)) == repr(rounded)


@pytest.mark.parametrize(
    ("number", "written"),
    [
        *((0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (0.001, "0.001"), (0.000999, "9.99E-4"), (-1e-5, "-1.0E-5")),
        *(
            (9_999_999.0, "9999999.0"),
            (1e7, "1.0E7"),
            (123_456_789.5, "1.234567895E8"),
            (0.1 + 0.2, "0.30000000000000004"),
        ),
        *((float("nan"), "NaN"), (float("-inf"), "-Infinity"), (2.0**53 - 1, "9.007199254740991E15")),
    ],
)
def test_doubles_are_written_as_java_writes_them(number: float, written: str) -> None:
    assert double("cast(a as string)", number, None) == written


def test_a_double_that_versions_of_java_write_differently_is_left_to_spark() -> None:
    for number in (2e23, 2.0**53, 9e-7):
        with pytest.raises(OnlyBySpark, match="depends on the version of Java"):
            double("cast(a as string)", number, None)
    assert value("cast(f as string)", f=(0.1, pa.float32())) == "0.1"
    with pytest.raises(OnlyBySpark):
        value("cast(f as string)", f=(2.0**24, pa.float32()))


def test_decimals_are_divided_with_the_digits_of_spark() -> None:
    price, ratio = (Decimal("10.00"), pa.decimal128(12, 2)), (Decimal("3.000"), pa.decimal128(5, 3))
    assert value("p / q", p=price, q=ratio) == Decimal("3.33333333")
    wide = pa.decimal128(38, 18)
    assert value("p / q", p=(Decimal(1), wide), q=(Decimal(-3), wide)) == Decimal("-0.333333")
    with pytest.raises(RowFailure, match="division by zero"):
        value("p / q", p=price, q=(Decimal("0.000"), pa.decimal128(5, 3)))
    with pytest.raises(RowFailure, match=r"out of range for decimal\(38,6\)"):
        value("p / q", p=(Decimal(10) ** 19, wide), q=(Decimal("1e-18"), wide))
    assert value("p / q", p=(None, wide), q=(Decimal(0), wide)) is None


@pytest.mark.parametrize(
    ("pattern", "written"),
    [
        ("yyyy-MM-dd HH:mm:ss.SSS", "2024-03-05 14:07:09.123"),
        ("EEEE, d MMMM yy", "Tuesday, 5 March 24"),
        ("E M/d h:mm a", "Tue 3/5 2:07 PM"),
        ("D QQQ qqqq", "65 Q1 1st quarter"),
        ("yyyy'T'''XXX''VV", "2024T'Z'UTC"),
    ],
)
def test_a_time_is_written_by_a_format(pattern: str, written: str) -> None:
    assert text(f'date_format(to_timestamp(s), "{pattern}")', "2024-03-05 14:07:09.123456") == written


def test_text_is_replaced_by_a_pattern() -> None:
    assert text("regexp_replace(s, '[^0-9+]', '')", "+49 (30) 12-34") == "+49301234"
    assert text("regexp_replace(s, '([a-z]+)@([a-z]+)', '$2 $1 $0')", "me@home") == "home me me@home"
    assert text("regexp_replace(s, 'a|ab', 'x')", "abab") == "xbxb"
    assert text("regexp_replace(s, ' +', ' ')", "a   b c") == "a b c"


def test_null_without_a_type_is_compared_and_combined() -> None:
    assert whole("a <=> null", None) is True
    assert whole("(a / b) <=> null and a is not null", 1, 2) is False
    assert whole("a / b > null", 1, 0) is None  # Spark does not evaluate the other side
    assert whole("a = 1 and null", 2) is False
    assert whole("a = 1 or null", 1) is True
    assert whole("a + null", 2147483647) is None


def test_a_noncharacter_has_no_case() -> None:
    for sign in ("\uffff", "\ufdd0", "\U0001fffe", "\U0010ffff"):
        assert text("upper(s)", f"é{sign}") == f"É{sign}"
        assert text("lower(s)", f"É{sign}") == f"é{sign}"


def test_text_that_is_no_time_is_an_error_without_try() -> None:
    with pytest.raises(RowFailure, match="'x' is not a valid TIMESTAMP"):
        text("to_timestamp(s)", "x")
    with pytest.raises(RowFailure, match=r"zone 'SystemV/PST8', which only Spark reads\. With a format, such as"):
        text("try_to_timestamp(s)", "2024-01-01 10:00:00 SystemV/PST8")
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

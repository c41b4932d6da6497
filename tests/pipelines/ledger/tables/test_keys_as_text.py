"""Keys as the command line takes them: a text for each key column, read as a value of the column's type."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.tables.keys import hash_of, key_of_texts, rows_of_key
from tidegate.windowing.keys import KeySchema, signed64
from tidegate.windowing.type_names import name_of

MOMENT = datetime(2024, 3, 1, 6, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.int32(), "42", 42),
        (pa.date32(), "2024-03-01", date(2024, 3, 1)),
        (pa.timestamp("us", "UTC"), "2024-03-01T06:00:00Z", MOMENT),
        (pa.timestamp("us", "UTC"), "2024-03-01T07:00:00+01:00", MOMENT),
        (pa.timestamp("us", "UTC"), "2024-03-01 06:00", MOMENT),
        (pa.timestamp("us"), "2024-03-01 06:00", MOMENT.replace(tzinfo=None)),
        (pa.bool_(), "true", True),
        (pa.decimal128(10, 2), "1.5", Decimal("1.50")),
        (pa.string(), "Köln", "Köln"),
        (pa.string(), "null", "null"),
        (pa.binary(), "ab", b"ab"),
        (pa.binary(), r"\x00ff", b"\x00\xff"),
    ],
    ids=str,
)
def test_a_text_selects_the_rows_of_its_value(kind: pa.DataType, text: str, value: Any) -> None:
    schema = KeySchema.of(branch=kind)
    rows = pa.table({"branch": pa.array([value], kind), "n": [1]})
    assert rows_of_key(rows, ("branch",), (text,)).num_rows == 1
    key = key_of_texts(schema, (text,))
    assert (key[0].as_py(), hash_of(schema, key)) == (value, signed64(schema.hash_of(value)))


@pytest.mark.parametrize("kind", [pa.int32(), pa.string(), pa.date32(), pa.bool_(), pa.decimal128(5, 2)], ids=str)
def test_a_null_has_a_text_of_its_own_in_every_column(kind: pa.DataType) -> None:
    rows = pa.table({"branch": pa.array([None], kind)})
    assert rows_of_key(rows, ("branch",), (r"\N",)).num_rows == 1


@pytest.mark.parametrize("kind", [pa.int32(), pa.date32(), pa.bool_(), pa.timestamp("us", "UTC")], ids=str)
def test_null_is_a_null_too_where_it_is_no_value(kind: pa.DataType) -> None:
    rows = pa.table({"branch": pa.array([None], kind)})
    assert rows_of_key(rows, ("branch",), ("null",)).num_rows == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(
            (r"\N", None),
            (r"\\N", r"\N"),
            (r"\\\N", r"\\N"),
            ("null", "null"),
            (r"\n", r"\n"),
            (r"a\N", r"a\N"),
            ("", ""),
        ),
        *((r"\x610062", "a\0b"), (r"\x00", "\0"), (r"\\x00", r"\x00"), (r"\x0", r"\x0"), (r"\x", r"\x"), ("a", "a")),
        *(("e\u0301", "e\u0301"), ("\u00e9", "\u00e9"), (r"\xc3a9", "\u00e9")),
    ],
)
def test_each_text_of_a_column_can_be_named_and_is_told_from_a_null(text: str, value: str | None) -> None:
    texts = [None, "null", r"\N", r"\\N", r"\n", r"a\N", "", "None", "a\0b", "a", "\0", r"\x00", r"\x0", r"\x"]
    rows = pa.table({"branch": pa.array([*texts, "e\u0301", "\u00e9"])})
    assert rows_of_key(rows, ("branch",), (text,))["branch"].to_pylist() == [value]


def test_every_column_of_a_key_counts() -> None:
    rows = pa.table({"branch": [1, 1, 2], "day": pa.array([date(2024, 3, d) for d in (1, 2, 1)])})
    assert rows_of_key(rows, ("branch", "day"), ("1", "2024-03-02")).to_pylist() == rows.slice(1, 1).to_pylist()


@pytest.mark.parametrize(
    ("kind", "text", "example"),
    [
        (pa.int32(), "abc", "give a whole number of 32 bits, such as 42"),
        (pa.int8(), "300", "give a whole number of 8 bits, such as 42"),
        (pa.date32(), "1.3.2024", "give a date, such as 2024-03-01"),
        (pa.timestamp("us", "UTC"), "soon", "such as 2024-03-01T06:00:00Z; without a zone it is in UTC"),
        (pa.timestamp("us"), "2024-03-01T06:00:00Z", "give a date-time, such as 2024-03-01T06:00:00"),
        (pa.bool_(), "yes", "give true or false"),
        (pa.string(), "\udcff", r"or bytes as hexadecimal digits after \x, such as \x00ff"),
        (pa.string(), r"\xff", r"or bytes as hexadecimal digits after \x, such as \x00ff"),
        (pa.binary(), "\udcff", r"or bytes as hexadecimal digits after \x, such as \x00ff"),
        (pa.decimal128(10, 2), "1,5", "at most 8 digits before the decimal point and 2 after it"),
        (pa.decimal128(10, 2), "1.555", "at most 8 digits before the decimal point and 2 after it"),
        (pa.decimal128(10, 2), "123456789012", "at most 8 digits before the decimal point and 2 after it"),
    ],
    ids=str,
)
def test_a_text_that_is_no_value_is_refused_with_the_column_its_type_and_an_example(
    kind: pa.DataType, text: str, example: str
) -> None:
    rows = pa.table({"branch": pa.array([None], kind)})
    for refuse in (
        lambda: rows_of_key(rows, ("branch",), (text,)),
        lambda: key_of_texts(KeySchema.of(branch=kind), (text,)),
    ):
        with pytest.raises(UsageError) as refused:
            refuse()
        what = f"{text!r} is not a value of key column 'branch', which has type {name_of(kind)}: "
        assert str(refused.value).startswith(what)
        assert example in str(refused.value)

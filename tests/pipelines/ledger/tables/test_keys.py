"""A key is its values, including nulls: no other key is mistaken for it, whatever its hash."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.key_search import texts
from tests.twins import twin_of
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.tables.keys import (
    are_forgotten,
    are_in,
    are_of_key,
    digest_of,
    digests,
    group_of,
    is_forgotten,
    key_groups,
    key_of_texts,
    key_schema,
    mark_of_forgotten,
    names_key,
    names_part,
    rows_of_key,
    texts_of_key,
)
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.type_names import name_of

TEXT = "alice.customer.1"

TWINS: list[tuple[str | None, str | None]] = [
    (TEXT, None),
    (None, TEXT),
    (twin_of(TEXT), None),
    (None, twin_of(TEXT)),
    ("null", None),
    ("a", "b"),
    ("ab", ""),
    ("", "ab"),
    ("a\0", "b"),
    ("a", "\0b"),
    (None, None),
    ("", ""),
    ('"', '", "'),
]


def rows_of(keys: list[Any]) -> pa.Table:
    columns = {name: pa.array([key[place] for key in keys], pa.string()) for place, name in enumerate("ab")}
    return pa.table(columns)


def test_a_twin_has_the_hash_of_another_key_and_not_its_digest() -> None:
    rows = rows_of(TWINS)
    groups = key_groups(rows, ("a", "b"), 2**30).to_pylist()
    assert len(set(groups[:4])) == 1
    assert len(set(digests(rows, ("a", "b")).to_pylist())) == len(TWINS)


@pytest.mark.parametrize("key", TWINS, ids=repr)
def test_only_the_rows_of_a_key_are_of_it(key: tuple[str | None, str | None]) -> None:
    rows = rows_of([*TWINS, key])
    texts = [r"\N" if part is None else part for part in key]
    value = key_of_texts(key_schema(rows.schema, ("a", "b")), texts)
    expected = [other == key for other in [*TWINS, key]]
    assert are_of_key(rows, ("a", "b"), value).to_pylist() == expected
    assert are_in(rows, rows_of([key]), ("a", "b")).to_pylist() == expected
    assert [digest == digest_of(value) for digest in digests(rows, ("a", "b")).to_pylist()] == expected
    mark = mark_of_forgotten(value)
    assert are_forgotten(rows, ("a", "b"), (mark,)).to_pylist() == expected
    assert is_forgotten(value, mark)
    assert mark != mark_of_forgotten(value)


PARTS = (
    st.none() | st.sampled_from(["", "\0", "a", "a\0", "\0a", "null", r"\N", TEXT, twin_of(TEXT)]) | st.text(max_size=3)
)


@given(st.lists(st.tuples(PARTS, PARTS), max_size=12), st.lists(st.tuples(PARTS, PARTS), max_size=4))
def test_rows_are_in_others_if_their_values_are_equal(rows: list[Any], others: list[Any]) -> None:
    left, right = rows_of(rows), rows_of(others)
    assert are_in(left, right, ("a", "b")).to_pylist() == [row in others for row in rows]
    named = digests(left, ("a", "b")).to_pylist()
    assert [[row == other for other in rows] for row in rows] == [[name == other for other in named] for name in named]


@pytest.mark.parametrize(
    ("kinds", "values"),
    [
        ((pa.int32(), pa.int64()), [1, -1, None]),
        ((pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC")), [datetime(2024, 3, 1, 6, tzinfo=UTC), None]),
        ((pa.string(), pa.large_string()), ["Köln", "", None]),
        ((pa.decimal128(10, 1), pa.decimal128(12, 3)), [Decimal("1.5"), Decimal(100), None]),
    ],
    ids=str,
)
def test_a_digest_does_not_depend_on_the_width_of_a_column(kinds: tuple[pa.DataType, ...], values: list[Any]) -> None:
    narrow, wide = (digests(pa.table({"k": pa.array(values, kind)}), ("k",)).to_pylist() for kind in kinds)
    assert narrow == wide
    assert len(set(narrow)) == len(values)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.decimal128(38, 0), [Decimal(10**37 + 1), Decimal(10**37 + 2)]),
        (pa.int64(), [2**53, 2**53 + 1]),
        (pa.binary(), [b"", b"\0", b"\0\0"]),
        (pa.date32(), [date(1, 1, 1), date(9999, 12, 31)]),
        (pa.bool_(), [True, False]),
        (pa.timestamp("us"), [datetime(2024, 3, 1), datetime(2024, 3, 1, microsecond=1)]),
    ],
    ids=str,
)
def test_near_values_have_different_digests(kind: pa.DataType, values: list[Any]) -> None:
    assert len(set(digests(pa.table({"k": pa.array([*values, None], kind)}), ("k",)).to_pylist())) == len(values) + 1


def test_without_key_columns_all_rows_are_of_one_key() -> None:
    rows = pa.table({"n": [1, 2, 3]})
    assert len(set(digests(rows, ()).to_pylist())) == 1
    assert are_in(rows, rows.slice(0, 1), ()).to_pylist() == [True, True, True]


MOMENT = datetime(2024, 3, 1, 6, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "value", "given", "shown"),
    [
        (pa.int64(), 7, "07", "user 7, 2024"),
        (pa.int64(), 7, "7", "user 7.0"),
        (pa.decimal128(10, 2), Decimal("1.50"), "1.5", "[user 1.50]"),
        (pa.decimal128(10, 2), Decimal("100.00"), "1e2", "user 100"),
        (pa.timestamp("us", "UTC"), MOMENT, "2024-03-01T07:00:00+01:00", "user 2024-03-01 06:00:00, "),
        (pa.timestamp("us", "UTC"), MOMENT, "2024-03-01T06:00", '"user": "2024-03-01T06:00:00Z"'),
        (pa.date32(), date(2024, 3, 1), "2024-03-01", "user 2024-03-01"),
        (pa.bool_(), True, "true", "user True"),
        (pa.binary(), b"\x00\xff", r"\x00ff", r"user b'\x00\xff'"),
        (pa.string(), "O'Brien", "O'Brien", "user = 'O''Brien'"),
        (pa.string(), r"\N", r"\\N", r"user \N"),
        (pa.string(), 'a"b\n', 'a"b\n', json.dumps(json.dumps({"user": 'a"b\n'}))),
        (pa.string(), "Zebulon", "Zebulon", "user ann, bob, Zebu..."),
        (pa.string(), "é", "é", json.dumps("user é")),
    ],
    ids=str,
)
def test_a_key_is_found_however_it_is_written(kind: pa.DataType, value: Any, given: str, shown: str) -> None:
    key = texts_of_key((pa.scalar(value, kind),), (given,))
    assert names_key(shown, key)
    assert not names_key("user ann, 2023-01-01 05:00:00", key)


def test_digits_of_another_number_and_a_piece_of_a_word_are_no_key() -> None:
    number = texts_of_key((pa.scalar(1),), ("1",))
    assert not names_key("21 of 31 rows, 2011-11-21, x1, 2.1", number)
    assert names_part("user 'ann'", texts("ann"))
    assert not names_part("annotated", texts("ann"))
    assert names_key("annotated", texts("ann")), "whole files are removed to be safe"


def test_nulls_and_empty_texts_are_in_every_text_so_they_name_nothing() -> None:
    assert not names_key("anything", texts_of_key((pa.scalar(None, pa.string()), pa.scalar("")), (r"\N", "")))
    assert names_key("user ann", texts_of_key((pa.scalar("ann"), pa.scalar("")), ("ann", "")))


def test_a_backslash_names_no_more_than_itself() -> None:
    assert names_key(r"user \\", texts("\\"))
    assert not names_key("user ann", texts("\\"))


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
    assert (key[0].as_py(), group_of(key, 2**30)) == (value, schema.key_group_of(value, 2**30))


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
        (pa.int32(), "abc", "give a 32-bit integer, such as 42"),
        (pa.int8(), "300", "give a 8-bit integer, such as 42"),
        (pa.date32(), "1.3.2024", "give a date, such as 2024-03-01"),
        (pa.timestamp("us", "UTC"), "soon", "such as 2024-03-01T06:00:00Z; without a zone, it is in UTC"),
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

"""A key is its values with nulls: no other key is taken for it, whatever its hash."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.twins import twin_of
from tidegate.pipelines.ledger.tables.keys import (
    are_forgotten,
    are_in,
    are_of_key,
    digest_of,
    digests,
    is_forgotten,
    key_hashes,
    key_of_texts,
    key_schema,
    mark_of_forgotten,
)

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
    hashes = key_hashes(rows, ("a", "b")).to_pylist()
    assert len(set(hashes[:4])) == 1
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

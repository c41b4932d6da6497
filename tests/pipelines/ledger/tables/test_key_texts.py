"""A key in texts: as data, JSON, Python and SQL write it, and as messages cut it."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.key_search import texts
from tidegate.pipelines.ledger.tables.keys import names_key, names_part, texts_of_key

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

"""The checksum of rows: the same for each way to hold them, and the same as files of earlier versions recorded."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from tidegate.pipelines.definition.far_times import MICROS
from tidegate.pipelines.ledger.tables.checksum import add_up, checksum_of, hashes_of_rows

ROWS = 40_000


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    numbers = np.arange(ROWS)
    missing = numbers % 7 == 0
    return pa.table(
        {
            "key": pa.array([None if n % 11 == 0 else f"user-{n % 50}" for n in range(ROWS)]),
            "constant": pa.repeat("on_time", ROWS),
            "one": pa.repeat(1, ROWS),
            "count": pa.array(numbers * 7919 % 1000, mask=missing),
            "small": pa.array((numbers % 100).astype(np.int8)),
            "double": pa.array(np.where(numbers % 3 == 0, -0.0, 0.0)),
            "flag": pa.array(numbers % 2 == 0),
            "at": pa.array(numbers * 1_000_003, pa.timestamp("us", tz="UTC"), mask=missing),
            "day": pa.array(numbers.astype(np.int32) % 400, pa.date32()),
            "price": pa.array([Decimal(n % 9) / 4 for n in range(ROWS)], pa.decimal128(9, 2)),
            "nothing": pa.nulls(ROWS, pa.int64()),
        }
    )


def test_it_is_what_earlier_versions_recorded(rows: pa.Table) -> None:
    assert f"{checksum_of(rows):016x}" == "96e08672ef13fcf9"


def test_parts_add_up_in_any_order(rows: pa.Table) -> None:
    parts = [rows.slice(begin, 16_000) for begin in (32_000, 0, 16_000)]
    assert add_up([checksum_of(part) for part in parts]) == checksum_of(rows)
    assert checksum_of(pa.concat_tables(parts)) == checksum_of(rows)


@pytest.mark.parametrize("name", ["key", "constant"])
def test_a_dictionary_has_the_checksum_of_its_values(rows: pa.Table, name: str) -> None:
    place = rows.column_names.index(name)
    assert checksum_of(rows.set_column(place, name, rows[name].dictionary_encode())) == checksum_of(rows)


def test_each_row_has_a_hash_of_its_own_values(rows: pa.Table) -> None:
    (batch,) = rows.combine_chunks().to_batches()
    hashes = hashes_of_rows(batch)
    for place in (0, 16_383, 16_384, ROWS - 1):
        assert hashes[place] == hashes_of_rows(batch.slice(place, 1))[0]


@pytest.mark.parametrize("name", ["key", "constant", "one", "count", "double", "flag", "at", "price"])
def test_every_value_counts(rows: pa.Table, name: str) -> None:
    place = rows.column_names.index(name)
    values = rows[name].combine_chunks()
    other = values.take(pa.array([*range(ROWS - 1), None], pa.int64()))
    assert checksum_of(rows.set_column(place, name, other)) != checksum_of(rows)


NESTED = {
    "struct": pa.array(
        [{"a": 1, "b": "x"}, {"a": None, "b": None}, None, {"a": 2, "b": "x"}],
        pa.struct({"a": pa.int64(), "b": pa.string()}),
    ),
    "list": pa.array([[1, 2], [2, 1], [], None, [None], [1], [2, None], [None, 2]], pa.list_(pa.int32())),
    "lists": pa.array([[[1], [2]], [[1, 2]], [[], [1, 2]], [None]], pa.list_(pa.list_(pa.int64()))),
    "map": pa.array([[("a", 1)], [("a", 2)], [("b", 1), ("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    "fixed": pa.array([[1, 2], [2, 1], None], pa.list_(pa.int64(), 2)),
    "times": pa.array(
        [[{"at": at}] for at in (0, MICROS[1], MICROS[1] + 1, None)],
        pa.list_(pa.struct({"at": pa.timestamp("us", tz="UTC")})),
    ),
    "prices": pa.array([[Decimal("1.50")], [Decimal("2.50")]], pa.list_(pa.decimal128(9, 2))),
}


@pytest.mark.parametrize("kind", NESTED)
@pytest.mark.parametrize("as_text", [False, True])
def test_each_nested_value_counts_row_by_row(kind: str, as_text: bool) -> None:
    values = NESTED[kind]
    rows = pa.table({"value": values})
    one_by_one = [checksum_of(rows.slice(place, 1), nested_as_text=as_text) for place in range(len(values))]
    assert len(set(one_by_one)) == len(values)
    assert add_up(one_by_one) == checksum_of(rows, nested_as_text=as_text)


def test_a_list_of_a_fixed_size_has_the_checksum_of_a_list() -> None:
    fixed = NESTED["fixed"]
    lists = pa.array(fixed.to_pylist(), pa.list_(pa.int64()))
    assert checksum_of(pa.table({"value": fixed})) == checksum_of(pa.table({"value": lists}))


def test_nested_columns_have_a_checksum_that_stays() -> None:
    """Files keep it: another number would call each of them damaged."""
    sums = {kind: f"{checksum_of(pa.table({'value': values})):016x}" for kind, values in NESTED.items()}
    assert sums == {
        "struct": "114f2a71e324ab31",
        "list": "a89754a4e9fecc75",
        "lists": "20fbdb875f6b143d",
        "map": "e48e15154bac40f1",
        "fixed": "548a0d67e3d25f07",
        "times": "ae33844f7dd86186",
        "prices": "c6c51490a20b17d6",
    }

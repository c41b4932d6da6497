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


def test_times_that_python_lacks_count_row_by_row() -> None:
    moments = pa.array([0, MICROS[1], MICROS[1] + 1, None], pa.timestamp("us", tz="UTC"))
    rows = pa.table({"value": pa.StructArray.from_arrays([moments], ["at"])})
    one_by_one = [checksum_of(rows.slice(place, 1)) for place in range(rows.num_rows)]
    assert len(set(one_by_one)) == rows.num_rows
    assert add_up(one_by_one) == checksum_of(rows)

"""Keys are hashed on arrays as Spark hashes them, whatever their type and length."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing.columnar.hashing import hash_keys, key_groups, window_ids
from tidegate.windowing.keys import KeySchema, window_identity

VALUES: dict[Any, st.SearchStrategy[Any]] = {
    pa.string(): st.text(max_size=70),
    pa.binary(): st.binary(max_size=100),
    pa.int8(): st.integers(-128, 127),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(date(1900, 1, 1)),
    pa.timestamp("us", tz="UTC"): st.integers(-(10**14), 10**15).map(
        lambda micros: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    ),
    pa.decimal128(10, 2): st.integers(-(10**9), 10**9).map(lambda cents: Decimal(cents).scaleb(-2)),
    pa.decimal128(38, 0): st.integers(-(10**27), 10**27).map(Decimal),
}


@pytest.mark.parametrize("kind", list(VALUES), ids=str)
@given(data=st.data())
def test_every_key_hashes_as_one_by_one(kind: pa.DataType, data: st.DataObject) -> None:
    keys = data.draw(st.lists(st.tuples(st.none() | VALUES[kind], st.none() | VALUES[pa.string()]), max_size=8))
    schema = KeySchema(("a", "b"), (kind, pa.string()))
    columns = [pa.array([key[0] for key in keys], kind), pa.array([key[1] for key in keys], pa.string())]
    hashes = hash_keys(schema, columns, len(keys))
    assert hashes.tolist() == [schema.hash_of(key) for key in keys]
    assert key_groups(hashes, 128).tolist() == [schema.key_group_of(key, 128) for key in keys]


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62))))
def test_window_ids_are_those_of_single_windows(windows: list[tuple[int, int, int]]) -> None:
    hashes, starts, ends = (
        np.array([window[i] for window in windows], kind) for i, kind in enumerate((np.uint64, np.int64, np.int64))
    )
    assert window_ids(hashes, starts, ends).tolist() == [window_identity(*window) for window in windows]

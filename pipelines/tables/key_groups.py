"""Hash and key group of each row of a table, computed as Spark computes them for the shuffle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.keys import KeySchema, signed64


def key_groups(rows: pa.Table, key: tuple[str, ...], max_parallelism: int) -> pa.Array:
    """Return the key group of each row, int32. Each distinct key is hashed once.

    Args:
        rows: rows with the key columns, typed as in the pipeline's tables.
        key: names of the key columns.
        max_parallelism: number of key groups.
    """
    schema = key_schema(rows.schema, key)
    return _of_each_key(rows, key, lambda value: schema.key_group_of(value, max_parallelism), pa.int32())


def key_hashes(rows: pa.Table, key: tuple[str, ...]) -> pa.Array:
    """Return Spark's `xxhash64(key columns)` of each row, int64. Each distinct key is hashed once.

    Different keys may have one hash, and anybody can make such keys: it tells no key from another. See `tables.keys`.
    """
    schema = key_schema(rows.schema, key)
    return _of_each_key(rows, key, lambda value: signed64(schema.hash_of(value)), pa.int64())


def key_schema(schema: pa.Schema, key: tuple[str, ...]) -> KeySchema:
    """Return the key columns of a table with their types."""
    return KeySchema(key, tuple(schema.field(name).type for name in key))


def _of_each_key(rows: pa.Table, key: tuple[str, ...], compute: Callable[[Any], int], kind: pa.DataType) -> pa.Array:
    if not key:
        return pa.array([compute(())] * len(rows), kind)
    columns = [rows[name].combine_chunks().dictionary_encode() for name in key]
    if len(columns) == 1:
        computed = [compute(value) for value in columns[0].dictionary.to_pylist()]
        return pc.fill_null(pa.array(computed, kind).take(columns[0].indices), compute(None))
    by_key: dict[tuple[object, ...], int] = {}
    computed = []
    for value in zip(*(column.to_pylist() for column in columns), strict=True):
        if value not in by_key:
            by_key[value] = compute(value)
        computed.append(by_key[value])
    return pa.array(computed, kind)

"""The key group of each row of a table, computed as Spark does it for the shuffle."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from windowing.keys import KeySchema


def key_groups(rows: pa.Table, key: tuple[str, ...], max_parallelism: int) -> pa.Array:
    """The key group of each row, int32. Each distinct key is hashed once.

    Args:
        rows: with the key columns, typed as in the pipeline's tables.
        key: names of the key columns.
        max_parallelism: number of key groups.
    """
    schema = KeySchema(key, tuple(rows.schema.field(name).type for name in key))
    if not key:
        return pa.array([schema.key_group_of((), max_parallelism)] * len(rows), pa.int32())
    columns = [rows[name].combine_chunks().dictionary_encode() for name in key]
    if len(columns) == 1:
        groups = [schema.key_group_of(value, max_parallelism) for value in columns[0].dictionary.to_pylist()]
        null_group = schema.key_group_of(None, max_parallelism)
        return pc.fill_null(pa.array(groups, pa.int32()).take(columns[0].indices), null_group)
    known: dict[tuple[object, ...], int] = {}
    found = []
    for value in zip(*(column.to_pylist() for column in columns), strict=True):
        if value not in known:
            known[value] = schema.key_group_of(value, max_parallelism)
        found.append(known[value])
    return pa.array(found, pa.int32())

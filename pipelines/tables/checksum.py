"""Checksum of rows, which does not depend on their order, so a compaction keeps it.

It is the sum of the hashes of the rows. Each column adds a hash of its name and value to the hash of a row; a null adds
nothing. So a file that lacks a column has the same checksum as a file in which that column is null.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh64_intdigest

from tidegate.windowing.columnar.hashing import hash_values

UInt64s = npt.NDArray[np.uint64]

_ROWS_AT_A_TIME = 65_536


def checksum_of(rows: pa.Table | pa.RecordBatch) -> int:
    """Return the checksum of rows. Checksums of tables with the same columns add up, modulo 2 ** 64."""
    batches = [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches(max_chunksize=_ROWS_AT_A_TIME)
    return add_up([int(hashes_of_rows(batch).sum(dtype=np.uint64)) for batch in batches])


def hashes_of_rows(batch: pa.RecordBatch) -> UInt64s:
    """Return the hash of each row, over all of its columns."""
    hashes = np.zeros(len(batch), np.uint64)
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if column.null_count < len(column):
            # Many columns have one value for all rows of an epoch, and adding one hash to all is cheap.
            once = column[:1] if _is_constant(column) else column
            hashes += _hashed(once, xxh64_intdigest(field.name.encode()))
    return _mixed(hashes)


def add_up(checksums: list[int]) -> int:
    """Return the checksum of all rows from the checksums of their parts."""
    return int(sum(checksums) % 2**64)


def _is_constant(column: pa.Array) -> bool:
    """Return True if all values are the same. Floats are never: 0.0 equals -0.0, and their hashes differ."""
    kind = column.type
    if column.null_count or pa.types.is_nested(kind) or pa.types.is_floating(kind) or column[0] != column[-1]:
        return False
    return bool(pc.all(pc.equal(column, column[0])).as_py())


def _hashed(column: pa.Array, seed: int) -> UInt64s:
    """Return a hash of each value, 0 for a null."""
    numbers = _numbers(column)
    if numbers is None:
        # Each distinct text is hashed once: texts repeat, because a key has many windows.
        encoded = _texts(column).dictionary_encode()
        seeds = np.full(len(encoded.dictionary), seed, np.uint64)
        of_texts = hash_values(encoded.dictionary, "a text", seeds)
        hashed: UInt64s = of_texts[encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)]
    else:
        hashed = _mixed(numbers + np.uint64(seed))
    if column.null_count:
        hashed = np.where(column.is_valid().to_numpy(zero_copy_only=False), hashed, np.uint64(0))
    return hashed


def _mixed(values: UInt64s) -> UInt64s:
    """Spread each number over all bits, with the finalizer of SplitMix64."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _numbers(column: pa.Array) -> UInt64s | None:
    """Return the values as 64 bits each, with any number for a null; None for a type with more bits."""
    kind: Any = column.type
    if pa.types.is_floating(kind):
        column = column.cast(pa.float64())
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        column = pc.cast(column, pa.int64(), safe=False)
    elif pa.types.is_temporal(kind) and kind.bit_width in (32, 64):
        column = column.view(pa.int64() if kind.bit_width == 64 else pa.int32()).cast(pa.int64())
    else:
        return None
    column = column.fill_null(0) if column.null_count else column
    return np.ascontiguousarray(column.to_numpy(zero_copy_only=False)).view(np.uint64)


def _texts(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return column
    return pa.array([None if value is None else repr(value) for value in column.to_pylist()], pa.string())

"""Spark's xxhash64 on arrays. It equals `KeySchema.hash_of`, but hashes many keys at a time.

Values of four or eight bytes are hashed together in NumPy. Text and bytes are hashed one by one by the xxhash library,
in place, so the cost of a value depends on its own length only, and no value is copied. Source: the specification of
xxHash, XXH64.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from xxhash import xxh64_intdigest

from tidegate.windowing.aggregates.vectorised import Int64s
from tidegate.windowing.keys import SPARK_SEED, KeySchema, column_hash

UInt64s = npt.NDArray[np.uint64]

_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_ROWS_AT_A_TIME = 16_384
"""Number of rows that are hashed together: their hashes stay in a core's cache, and little memory is needed for them.
"""


def hash_keys(schema: KeySchema, columns: list[pa.Array], keys: int) -> UInt64s:
    """Return Spark's `xxhash64` of each key; a null part leaves the hash as it is."""
    hashes = np.full(keys, SPARK_SEED, np.uint64)
    for name, kind, column in zip(schema.names, schema.types, columns, strict=True):
        hashed = hash_values(column, kind, name, hashes)
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        hashes = hashed if valid.all() else np.where(valid, hashed, hashes)
    return hashes


def window_ids(hashes: UInt64s, starts: Int64s, ends: Int64s) -> Int64s:
    """Return the `window_identity` of each window, from the hash of its key and its bounds."""
    ids = np.empty(len(hashes), np.uint64)
    for begin in range(0, len(hashes), _ROWS_AT_A_TIME):
        rows = slice(begin, begin + _ROWS_AT_A_TIME)
        ids[rows] = _hash_longs(ends[rows], _hash_longs(starts[rows], hashes[rows]))
    return ids.view(np.int64)


def key_groups(hashes: UInt64s, max_parallelism: int) -> npt.NDArray[np.int32]:
    """Return the key group of each key, 0 to `max_parallelism - 1`."""
    return (hashes.view(np.int64) % max_parallelism).astype(np.int32)


def hash_values(column: pa.Array, kind: pa.DataType, name: str, seeds: UInt64s) -> UInt64s:
    """Return Spark's `xxhash64` of each value of a column, each with its own seed. The hash of a null is undefined.

    Raises:
        UnsupportedOperation: values of this type can't be keys.
    """
    if pa.types.is_timestamp(kind):
        return _hash_longs(_integers(column.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.int64())), seeds)
    if pa.types.is_int64(kind) or pa.types.is_uint32(kind):
        return _hash_longs(_integers(column.cast(pa.int64())), seeds)
    if pa.types.is_boolean(kind) or pa.types.is_signed_integer(kind):
        return _hash_ints(_integers(column.cast(pa.int32())), seeds)
    if pa.types.is_date32(kind):
        return _hash_ints(_integers(column.view(pa.int32())), seeds)
    hashed = np.empty(len(column), np.uint64)
    for begin in range(0, len(column), _ROWS_AT_A_TIME):
        rows = slice(begin, begin + _ROWS_AT_A_TIME)
        hashed[rows] = _hash_each(column.slice(begin, _ROWS_AT_A_TIME), kind, name, seeds[rows].tolist())
    return hashed


def _hash_each(column: pa.Array, kind: pa.DataType, name: str, seeds: list[int]) -> list[int]:
    """Return the hash of each value, one value at a time."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _hash_bytes(column.cast(pa.large_string()).cast(pa.large_binary()), seeds)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _hash_bytes(column.cast(pa.large_binary()), seeds)
    hash_value = column_hash(kind, name)
    values = zip(column.to_pylist(), seeds, strict=True)
    return [seed if value is None else hash_value(value, seed) for value, seed in values]


def _integers(column: pa.Array) -> npt.NDArray[Any]:
    filled = column.fill_null(0) if column.null_count else column
    return np.ascontiguousarray(filled.to_numpy(zero_copy_only=False))


def _hash_longs(values: Int64s, seeds: UInt64s) -> UInt64s:
    hashed: UInt64s = seeds + _P5 + np.uint64(8)
    return _final(_eight(hashed, np.ascontiguousarray(values).view(np.uint64)))


def _hash_ints(values: npt.NDArray[np.int32], seeds: UInt64s) -> UInt64s:
    words = values.view(np.uint32).astype(np.uint64)
    hashed: UInt64s = seeds + _P5 + np.uint64(4)
    return _final(_rotated(hashed ^ words * _P1, 23) * _P2 + _P3)


def _hash_bytes(column: pa.Array, seeds: list[int]) -> list[int]:
    _, offsets, content = column.buffers()
    bounds = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1].tolist()
    values = memoryview(b"" if content is None else content)
    return [
        xxh64_intdigest(values[begin:end], seed) for (begin, end), seed in zip(pairwise(bounds), seeds, strict=True)
    ]


def _eight(hashed: UInt64s, word: UInt64s) -> UInt64s:
    return _rotated(hashed ^ _rotated(word * _P2, 31) * _P1, 27) * _P1 + _P4


def _rotated(value: npt.NDArray[Any], bits: int) -> UInt64s:
    rotated: UInt64s = value << np.uint64(bits)
    rotated |= value >> np.uint64(64 - bits)
    return rotated


def _final(hashed: UInt64s) -> UInt64s:
    hashed = (hashed ^ (hashed >> np.uint64(33))) * _P2
    hashed = (hashed ^ (hashed >> np.uint64(29))) * _P3
    return hashed ^ (hashed >> np.uint64(32))

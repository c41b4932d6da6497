"""Spark's xxhash64 on arrays. It equals `KeySchema.hash_of`, but hashes many keys at a time.

Values of the same length are hashed together, as the rows of a matrix of bytes. Source: the specification of xxHash,
XXH64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

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
_STRIPE = 32
_ROWS_AT_A_TIME = 16_384
"""Number of rows whose hashes stay in a core's cache from step to step."""


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
        return _xxh64(_bytes_of(_integers(column.cast(pa.int32()))), seeds)
    if pa.types.is_date32(kind):
        return _xxh64(_bytes_of(_integers(column.view(pa.int32()))), seeds)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _hash_bytes(column.cast(pa.large_string()).cast(pa.large_binary()), seeds)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _hash_bytes(column.cast(pa.binary()).cast(pa.large_binary()), seeds)
    # Wide decimals are hashed as bytes of different lengths, so each is hashed by itself.
    hash_value = column_hash(kind, name)
    values = zip(column.to_pylist(), seeds.tolist(), strict=True)
    return np.array([seed if value is None else hash_value(value, seed) for value, seed in values], np.uint64)


def _integers(column: pa.Array) -> npt.NDArray[Any]:
    filled = column.fill_null(0) if column.null_count else column
    return np.ascontiguousarray(filled.to_numpy(zero_copy_only=False))


def _bytes_of(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return values.view(np.uint8).reshape(len(values), values.itemsize)


def _hash_longs(values: Int64s, seeds: UInt64s) -> UInt64s:
    hashed: UInt64s = seeds + _P5 + np.uint64(8)
    return _final(_eight(hashed, np.ascontiguousarray(values).view(np.uint64)))


def _hash_bytes(column: pa.Array, seeds: UInt64s) -> UInt64s:
    if not len(column):
        return seeds
    offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    data = column.buffers()[2]
    content = np.frombuffer(data, np.uint8) if data is not None else np.empty(0, np.uint8)
    lengths = np.diff(offsets)
    hashed = np.empty(len(column), np.uint64)
    for length in np.unique(lengths).tolist():
        rows = np.flatnonzero(lengths == length)
        hashed[rows] = _xxh64(content[offsets[rows, None] + np.arange(length)], seeds[rows])
    return hashed


def _xxh64(rows: npt.NDArray[np.uint8], seeds: UInt64s) -> UInt64s:
    length = rows.shape[1]
    at = 0
    if length >= _STRIPE:
        lanes: list[UInt64s] = [seeds + _P1 + _P2, seeds + _P2, seeds, seeds - _P1]
        for at in range(0, length - _STRIPE + 1, _STRIPE):
            lanes = [
                _rotated(lane + _words(rows, at + 8 * i, np.uint64) * _P2, 31) * _P1 for i, lane in enumerate(lanes)
            ]
        at += _STRIPE
        hashed = _rotated(lanes[0], 1) + _rotated(lanes[1], 7) + _rotated(lanes[2], 12) + _rotated(lanes[3], 18)
        for lane in lanes:
            hashed = (hashed ^ _rotated(lane * _P2, 31) * _P1) * _P1 + _P4
    else:
        hashed = seeds + _P5
    hashed = hashed + np.uint64(length)
    while at + 8 <= length:
        hashed = _eight(hashed, _words(rows, at, np.uint64))
        at += 8
    if at + 4 <= length:
        hashed = _rotated(hashed ^ _words(rows, at, np.uint32).astype(np.uint64) * _P1, 23) * _P2 + _P3
        at += 4
    for column in range(at, length):
        hashed = _rotated(hashed ^ rows[:, column].astype(np.uint64) * _P5, 11) * _P1
    return _final(hashed)


def _words(rows: npt.NDArray[np.uint8], at: int, kind: type[np.unsignedinteger[Any]]) -> npt.NDArray[Any]:
    size = np.dtype(kind).itemsize
    return np.ascontiguousarray(rows[:, at : at + size]).view(kind).reshape(len(rows))


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

"""Checksum of rows that does not depend on their order, so a compaction preserves it.

It is the sum of the hashes of the rows. Each column adds a hash of its name and value to the hash of a row; a null adds
nothing. So a file that lacks a column has the same checksum as a file in which that column is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh64_intdigest

from tidegate.windowing.columnar.hashing import hash_values
from tidegate.windowing.columnar.order import numbers_of

UInt64s = npt.NDArray[np.uint64]

_ROWS_AT_A_TIME = 16_384
"""Number of rows whose hashes fit in a core's cache while all columns are added to them."""


def checksum_of(rows: pa.Table | pa.RecordBatch) -> int:
    """Return the checksum of rows. Checksums of tables with the same columns can be added, modulo 2 ** 64.

    A dictionary has the checksum of its values.
    """
    batches = [rows] if isinstance(rows, pa.RecordBatch) else rows.to_batches()
    sums = [hashes_of_rows(batch).sum(dtype=np.uint64) for batch in batches]
    return add_up([int(part) for part in sums])


def hashes_of_rows(batch: pa.RecordBatch) -> UInt64s:
    """Return the hash of each row, over all of its columns."""
    same, columns = np.uint64(0), []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if column.null_count == len(column):
            continue
        seed = np.uint64(xxh64_intdigest(field.name.encode()))
        if _is_constant(column):
            # Many columns have the same value in all rows of an epoch, and adding one hash to all rows is cheap.
            (hashed,) = _HashedColumn.of(column[:1], seed).part(0, 1)
            same = np.uint64((int(same) + int(hashed)) % 2**64)
        else:
            columns.append(_HashedColumn.of(column, seed))
    hashes = np.full(len(batch), same)
    for begin in range(0, len(batch), _ROWS_AT_A_TIME):
        part = hashes[begin : begin + _ROWS_AT_A_TIME]
        for column in columns:
            part += column.part(begin, begin + len(part))
        _mix(part)
    return hashes


def add_up(checksums: list[int]) -> int:
    """Return the checksum of all rows from the checksums of their parts."""
    return int(sum(checksums) % 2**64)


def _is_constant(column: pa.Array) -> bool:
    """Return True if all values are the same. Always False for floats: 0.0 equals -0.0, but their hashes differ."""
    kind = column.type
    if column.null_count or pa.types.is_nested(kind) or pa.types.is_floating(kind) or column[0] != column[-1]:
        return False
    if pa.types.is_dictionary(kind):
        # The operator's dictionaries have distinct values; others are hashed row by row.
        column = column.indices
    return bool(pc.all(pc.equal(column, column[0])).as_py())


@dataclass(frozen=True, slots=True)
class _HashedColumn:
    """A column whose values are hashed part by part.

    Args:
        values: each value, or its hash, as 64 bits, with any bits for a null; or the index of its hash in `of_texts`.
        seed: hash of the column's name.
        valid: True for each value that is not null; None if no value is null.
        of_texts: hashes of the distinct values of a type with more than 64 bits; None for other types.
    """

    values: npt.NDArray[Any]
    seed: np.uint64
    valid: npt.NDArray[np.bool_] | None
    of_texts: UInt64s | None

    @classmethod
    def of(cls, column: pa.Array, seed: np.uint64) -> _HashedColumn:
        """Create the column; its name is part of the seed."""
        valid = np.asarray(column.is_valid().to_numpy(zero_copy_only=False)) if column.null_count else None
        numbers = _numbers_of_nested(column) if pa.types.is_nested(column.type) else _numbers(column)
        if numbers is not None:
            return cls(numbers, seed, valid, None)
        # Each distinct text is hashed once: texts repeat, because a key has many windows.
        encoded = column if pa.types.is_dictionary(column.type) else _texts(column).dictionary_encode()
        texts = _texts(encoded.dictionary)
        of_texts = hash_values(texts, texts.type, "a text", np.full(len(texts), seed))
        places = encoded.indices.fill_null(0) if encoded.indices.null_count else encoded.indices
        return cls(places.to_numpy(zero_copy_only=False), seed, valid, of_texts)

    def part(self, begin: int, end: int) -> UInt64s:
        """Return a hash of each value of a range of rows; 0 for a null."""
        values = self.values[begin:end]
        hashed: UInt64s
        if self.of_texts is not None:
            hashed = self.of_texts[values]
        else:
            hashed = values + self.seed
            _mix(hashed)
        if self.valid is not None:
            hashed[~self.valid[begin:end]] = 0
        return hashed


def _mix(values: UInt64s) -> None:
    """Spread each number over all bits in place, with the finalizer of SplitMix64."""
    shifted = values >> np.uint64(30)
    values ^= shifted
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= np.right_shift(values, np.uint64(27), out=shifted)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= np.right_shift(values, np.uint64(31), out=shifted)


def _numbers(column: pa.Array) -> UInt64s | None:
    """Return each value as 64 bits, with any number for a null, or None for a type with more bits."""
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


def _numbers_of_nested(column: pa.Array) -> UInt64s:
    """Return a hash of each struct, list or map, with any number for a null."""
    kind = column.type
    if pa.types.is_struct(kind):
        hashes = np.ones(len(column), np.uint64)
        for field, values in zip(kind, column.flatten(), strict=True):
            hashes += _hashes(values, field.name)
        _mix(hashes)
        return hashes
    if pa.types.is_fixed_size_list(kind):
        column = column.cast(pa.list_(kind.value_field))
    offsets = column.offsets.to_numpy()
    begins, ends = offsets[:-1].astype(np.int64), offsets[1:].astype(np.int64)
    parts = (column.keys, column.items) if pa.types.is_map(kind) else (column.values,)
    lengths = ends - begins
    # The position of an entry in its list matters, so lists with the same entries in another order differ.
    entries, owners = numbers_of(begins, lengths)
    hashes = (entries - begins[owners]).astype(np.uint64)
    _mix(hashes)
    for name, values in zip(("key", "value"), parts, strict=False):
        hashes += _hashes(values, name)[entries]
    _mix(hashes)
    # Unsigned sums wrap around, so a difference of running sums is the sum of a list.
    running = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    sums: UInt64s = running[bounds[1:]] - running[bounds[:-1]] + lengths.astype(np.uint64)
    return sums


def _hashes(column: pa.Array, name: str) -> UInt64s:
    """Return a hash of each value in a nested column, 0 for a null."""
    if column.null_count == len(column):
        return np.zeros(len(column), np.uint64)
    seed = np.uint64(xxh64_intdigest(name.encode()))
    return _HashedColumn.of(column, seed).part(0, len(column))


def _texts(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return column
    return pa.array([None if value is None else repr(value) for value in column.to_pylist()], pa.string())

"""Keys, their key groups, and the ranges of key groups that subtasks own.

A key group is `pmod(xxhash64(key columns), max_parallelism)` with Spark's hash (seed 42), so that
Spark can shuffle by it and this library computes the same number without Spark.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from xxhash import xxh64_intdigest

from tidegate.windowing.errors import IllegalArgument, UnsupportedOperation
from tidegate.windowing.time import to_millis

SPARK_SEED = 42
MAX_KEY_GROUPS = 32768
DEFAULT_MAX_PARALLELISM = 128

DECIMALS = Context(prec=76)
"""Python rounds decimals to 28 digits unless it is told otherwise; values and sums of 38 digits need this."""

_UINT64 = 2**64
_DATE_EPOCH = date(1970, 1, 1)

ColumnHash = Callable[[Any, int], int]


@dataclass(frozen=True, slots=True)
class KeyGroupRange:
    """The key groups `first` to `last`, both included."""

    first: int
    last: int

    def __contains__(self, key_group: object) -> bool:
        return isinstance(key_group, int) and self.first <= key_group <= self.last

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __len__(self) -> int:
        return self.last - self.first + 1


def check_max_parallelism(value: int) -> int:
    """`value` if it is a number of key groups.

    Raises:
        IllegalArgument: unless 1 <= value <= 32768.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_KEY_GROUPS:
        raise IllegalArgument("max_parallelism", value, f"give a whole number from 1 to {MAX_KEY_GROUPS}")
    return value


def subtask_of(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """The subtask that owns a key group. Source: Flink's `KeyGroupRangeAssignment`."""
    return key_group * parallelism // max_parallelism


def key_group_range(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """The key groups that a subtask owns; together they cover every group once.

    Raises:
        IllegalArgument: if there are more subtasks than key groups.
    """
    if not 1 <= parallelism <= max_parallelism:
        raise IllegalArgument("parallelism", parallelism, f"give 1 to max_parallelism ({max_parallelism})")
    first = -(-subtask * max_parallelism // parallelism)
    last = -(-(subtask + 1) * max_parallelism // parallelism) - 1
    return KeyGroupRange(first, last)


def _hash_int(value: int, seed: int) -> int:
    return xxh64_intdigest(struct.pack("<i", value), seed)


def _hash_long(value: int, seed: int) -> int:
    return xxh64_intdigest(struct.pack("<q", value), seed)


def _hash_bytes(value: bytes, seed: int) -> int:
    return xxh64_intdigest(value, seed)


def _hash_text(value: str, seed: int) -> int:
    return xxh64_intdigest(value.encode(), seed)


def _hash_date(value: date, seed: int) -> int:
    return _hash_int((value - _DATE_EPOCH).days, seed)


def _hash_timestamp(value: datetime, seed: int) -> int:
    return _hash_long(to_millis(value) * 1000 + value.microsecond % 1000, seed)


def _decimal_hash(kind: pa.Decimal128Type) -> ColumnHash:
    precision, scale = kind.precision, kind.scale

    def unscaled(value: Decimal) -> int:
        return int(value.scaleb(scale, DECIMALS))

    if precision <= 18:
        return lambda value, seed: _hash_long(unscaled(value), seed)

    def hash_wide(value: Decimal, seed: int) -> int:
        number = unscaled(value)
        size = (number.bit_length() if number >= 0 else (number + 1).bit_length()) // 8 + 1
        return _hash_bytes(number.to_bytes(size, "big", signed=True), seed)

    return hash_wide


def column_hash(kind: pa.DataType, name: str) -> ColumnHash:
    """Spark's hash of one key column: `(value, seed) -> uint64`.

    Raises:
        UnsupportedOperation: for types whose equality or hash is not stable as a key (floats,
            structs, arrays, maps, intervals).
    """
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _hash_text
    if pa.types.is_int64(kind) or pa.types.is_uint32(kind):
        return _hash_long
    if pa.types.is_boolean(kind) or pa.types.is_signed_integer(kind):
        return _hash_int
    if pa.types.is_timestamp(kind):
        return _hash_timestamp
    if pa.types.is_date32(kind):
        return _hash_date
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _hash_bytes
    if pa.types.is_decimal128(kind):
        return _decimal_hash(kind)
    raise UnsupportedOperation(
        f"key column {name!r} has type {kind}, which can't be a key: use strings, integers, dates, timestamps, "
        "decimals, booleans or binary, or derive one of these in `columns=`"
    )


@dataclass(frozen=True)
class KeySchema:
    """Names and types of the key columns, and how a key in memory is made of them.

    A key of one column is its value; of several (or none) it is a tuple of their values.
    """

    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]

    @classmethod
    def of(cls, **columns: pa.DataType) -> KeySchema:
        """`KeySchema.of(tailnum=pa.string())`."""
        return cls(tuple(columns), tuple(columns.values()))

    @classmethod
    def inferred(cls, key: object) -> KeySchema:
        """The schema of a key whose columns were never declared: `key`, or `key_0`, `key_1` and so on."""
        if isinstance(key, tuple):
            return cls(tuple(f"key_{i}" for i in range(len(key))), tuple(pa.scalar(part).type for part in key))
        return cls(("key",), (pa.scalar(key).type,))

    def __post_init__(self) -> None:
        if len(self.names) != len(self.types):
            raise IllegalArgument("types", self.types, f"give one type for each of {list(self.names)}")
        hashes = [column_hash(kind, name) for name, kind in zip(self.names, self.types, strict=True)]
        object.__setattr__(self, "_hashes", hashes)

    def columns_of(self, key: Any) -> tuple[Any, ...]:
        """The key's values, one for each column."""
        return (key,) if len(self.names) == 1 else tuple(key)

    def key_of(self, columns: Sequence[Any]) -> Any:
        """The key in memory of one value for each column."""
        return columns[0] if len(self.names) == 1 else tuple(columns)

    def hash_of(self, key: Any) -> int:
        """Spark's `xxhash64(key columns)` as an unsigned 64-bit number; a null part changes nothing."""
        hashes: list[ColumnHash] = self._hashes  # type: ignore[attr-defined]
        seed = SPARK_SEED
        for value, hash_column in zip(self.columns_of(key), hashes, strict=True):
            if value is not None:
                seed = hash_column(value, seed)
        return seed

    def key_group_of(self, key: Any, max_parallelism: int) -> int:
        """The key group of a key, 0 to `max_parallelism - 1`."""
        return signed64(self.hash_of(key)) % max_parallelism


def signed64(number: int) -> int:
    """An unsigned 64-bit number as the signed one with the same bits."""
    return number - _UINT64 if number >= _UINT64 // 2 else number


def window_identity(key_hash: int, start: int, end: int) -> int:
    """The id of a window, stable while a session grows: Spark's `xxhash64(key columns, start, end)`.

    Args:
        key_hash: `KeySchema.hash_of` of the key.
        start: of the window that holds the contents, int64 epoch milliseconds.
        end: its end.
    """
    return signed64(_hash_long(end, _hash_long(start, key_hash)))

"""Keys, their key groups, and the ranges of key groups that subtasks own.

A key group is `pmod(xxhash64(key columns), max_parallelism)` with Spark's hash (seed 42). So Spark can shuffle by key
group, and this library computes the same number without Spark.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
from xxhash import xxh64_intdigest

from tidegate.windowing.errors import IllegalArgument, UnsupportedOperation
from tidegate.windowing.time import to_millis
from tidegate.windowing.type_names import name_of

SPARK_SEED = 42
MAX_KEY_GROUPS = 32768
DEFAULT_MAX_PARALLELISM = 128

DECIMALS = Context(prec=76)
"""Context for values and sums of 38 digits. Python's default rounds decimals to 28 digits."""

_UINT64 = 2**64
_DATE_EPOCH = date(1970, 1, 1)

ColumnHash = Callable[[Any, int], int]


def check_max_parallelism(value: int) -> int:
    """Return `value` if it is a valid number of key groups.

    Raises:
        IllegalArgument: `value` is not a whole number from 1 to 32768.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_KEY_GROUPS:
        raise IllegalArgument("max_parallelism", value, f"give a whole number from 1 to {MAX_KEY_GROUPS}")
    return value


def subtask_of(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """Return the subtask that owns a key group. Source: Flink's `KeyGroupRangeAssignment`."""
    return key_group * parallelism // max_parallelism


def key_group_range(subtask: int, parallelism: int, max_parallelism: int) -> range:
    """Return the key groups that a subtask owns. Each key group belongs to exactly one subtask.

    Raises:
        IllegalArgument: there are more subtasks than key groups.
    """
    if not 1 <= parallelism <= max_parallelism:
        raise IllegalArgument("parallelism", parallelism, f"give 1 to max_parallelism ({max_parallelism})")
    first, end = (-(-number * max_parallelism // parallelism) for number in (subtask, subtask + 1))
    return range(first, end)


def _hash_int(value: int, seed: int) -> int:
    return xxh64_intdigest(struct.pack("<i", value), seed)


def _hash_long(value: int, seed: int) -> int:
    return xxh64_intdigest(struct.pack("<q", value), seed)


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
        return xxh64_intdigest(number.to_bytes(size, "big", signed=True), seed)

    return hash_wide


def column_hash(kind: pa.DataType, name: str) -> ColumnHash:
    """Return Spark's hash function for a key column: `(value, seed) -> uint64`.

    Raises:
        UnsupportedOperation: the type has no stable equality or hash (floats, structs, arrays, maps, intervals).
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
        return xxh64_intdigest
    if pa.types.is_decimal128(kind):
        return _decimal_hash(kind)
    raise UnsupportedOperation(
        f"key column {name!r} has type {name_of(kind)}, which can't be a key: use strings, integers, dates, "
        "timestamps, decimals, booleans or binary, or derive one of these in `columns=`"
    )


@dataclass(frozen=True)
class KeySchema:
    """Names and types of the key columns, with the conversion between columns and keys in memory.

    A key of one column is the value of the column. A key of several columns, or of none, is a tuple of their values.
    """

    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]

    @classmethod
    def of(cls, **columns: pa.DataType) -> KeySchema:
        """Create a schema from columns and their types: `KeySchema.of(tailnum=pa.string())`."""
        return cls(tuple(columns), tuple(columns.values()))

    @classmethod
    def inferred(cls, key: object) -> KeySchema:
        """Return the schema of a key without declared columns, named `key`, or `key_0`, `key_1` and so on."""
        if isinstance(key, tuple):
            return cls(tuple(f"key_{i}" for i in range(len(key))), tuple(pa.scalar(part).type for part in key))
        return cls(("key",), (pa.scalar(key).type,))

    def __post_init__(self) -> None:
        if len(self.names) != len(self.types):
            raise IllegalArgument("types", self.types, f"give one type for each of {list(self.names)}")
        hashes = [column_hash(kind, name) for name, kind in zip(self.names, self.types, strict=True)]
        object.__setattr__(self, "_hashes", hashes)

    def columns_of(self, key: Any) -> tuple[Any, ...]:
        """Return the values of a key, one for each column."""
        return (key,) if len(self.names) == 1 else tuple(key)

    def key_of(self, columns: Sequence[Any]) -> Any:
        """Return the key in memory, from the values of its columns."""
        return columns[0] if len(self.names) == 1 else tuple(columns)

    def hash_of(self, key: Any) -> int:
        """Return Spark's `xxhash64(key columns)` as an unsigned 64-bit number. A null does not change the hash."""
        hashes: list[ColumnHash] = self._hashes  # type: ignore[attr-defined]
        seed = SPARK_SEED
        for value, hash_column in zip(self.columns_of(key), hashes, strict=True):
            if value is not None:
                seed = hash_column(value, seed)
        return seed

    def key_group_of(self, key: Any, max_parallelism: int) -> int:
        """Return the key group of a key, 0 to `max_parallelism - 1`."""
        return signed64(self.hash_of(key)) % max_parallelism


def signed64(number: int) -> int:
    """Return the signed 64-bit number with the same bits as an unsigned one."""
    return number - _UINT64 if number >= _UINT64 // 2 else number


def window_identity(key_hash: int, start: int, end: int) -> int:
    """Return the id of a window, Spark's `xxhash64(key columns, start, end)`. It does not change while a session grows.

    Args:
        key_hash: `KeySchema.hash_of` of the key.
        start: start of the window that identifies the contents (the window at its first firing), int64 epoch
            milliseconds.
        end: its end, int64 epoch milliseconds.
    """
    return signed64(_hash_long(end, _hash_long(start, key_hash)))

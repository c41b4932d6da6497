"""Flink's own key groups, for cases that say where a key belongs."""

from __future__ import annotations

import struct

from tidegate.windowing.keys import DEFAULT_MAX_PARALLELISM, MAX_KEY_GROUPS

_UINT64 = 2**64


def intersection(a: range, b: range) -> range | None:
    """Return the groups in both, or None."""
    return range(max(a.start, b.start), min(a.stop, b.stop)) or None


def default_max_parallelism(parallelism: int) -> int:
    """Return one and a half times `parallelism`, rounded up to a power of two, from 128 to 32768."""
    wanted = parallelism + parallelism // 2
    return min(max(1 << (wanted - 1).bit_length(), DEFAULT_MAX_PARALLELISM), MAX_KEY_GROUPS)


def flink_key_group(key: str | int | bool, max_parallelism: int, *, long: bool = False) -> int:
    """Return the key group that Flink itself assigns to a key; cases name subtasks by it.

    Args:
        key: a string, an integer or a boolean.
        max_parallelism: number of key groups.
        long: whether an integer is a Java `Long`, not an `Integer` (their hash codes differ).

    Source: Flink's `KeyGroupRangeAssignment.assignToKeyGroup` (murmur over Java's `hashCode`).
    """
    code = _murmur(_java_hash(key, long))
    return (0 if code == -(2**31) else abs(code)) % max_parallelism


def _java_hash(key: str | int | bool, long: bool) -> int:
    if isinstance(key, bool):
        return 1231 if key else 1237
    if isinstance(key, int):
        return (key ^ (key % _UINT64 >> 32)) % 2**32 if long else key % 2**32
    code = 0
    units = key.encode("utf-16-le")
    for (unit,) in struct.iter_unpack("<H", units):
        code = (31 * code + unit) % 2**32
    return code


def _murmur(code: int) -> int:
    def rotate(number: int, bits: int) -> int:
        return (number << bits | number >> (32 - bits)) % 2**32

    code = rotate(code * 0xCC9E2D51 % 2**32, 15) * 0x1B873593 % 2**32
    code = (rotate(code, 13) * 5 + 0xE6546B64) % 2**32
    code ^= 4
    code = (code ^ code >> 16) * 0x85EBCA6B % 2**32
    code = (code ^ code >> 13) * 0xC2B2AE35 % 2**32
    code ^= code >> 16
    return code - 2**32 if code >= 2**31 else code

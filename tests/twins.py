"""Keys that a hash can't tell apart: anybody can construct a text with the Spark hash of another one."""

from __future__ import annotations

import random
import string
import struct

_MASK = (1 << 64) - 1
_P1, _P2, _P4, _P5 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_SEED = 42
"""Spark's seed for the hash of a key's first column."""


def twin_of(text: str) -> str:
    """Return another text of 16 printable characters with the hash of a text of 16 bytes. Source: XXH64."""
    first, second = struct.unpack("<QQ", text.encode())
    before = (_SEED + _P5 + 16) & _MASK
    target = _step(before, first) ^ _mixed(second)
    draw = random.Random(text)
    while True:
        begin = "".join(draw.choices(string.ascii_letters + string.digits, k=8)).encode()
        lane = _step(before, struct.unpack("<Q", begin)[0]) ^ target
        end = struct.pack("<Q", _unmixed(lane))
        if begin != text.encode()[:8] and all(32 < character < 127 for character in end):
            return (begin + end).decode()


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (64 - bits))) & _MASK


def _mixed(lane: int) -> int:
    return (_rotated((lane * _P2) & _MASK, 31) * _P1) & _MASK


def _unmixed(mixed: int) -> int:
    return (_rotated((mixed * pow(_P1, -1, 1 << 64)) & _MASK, 33) * pow(_P2, -1, 1 << 64)) & _MASK


def _step(state: int, lane: int) -> int:
    return (_rotated(state ^ _mixed(lane), 27) * _P1 + _P4) & _MASK

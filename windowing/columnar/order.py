"""Sorting rows by several integers at once.

If their ranges allow, the integers are packed with the row number into an int64, because NumPy sorts plain int64
several times faster than it computes a permutation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tidegate.windowing.aggregates.vectorised import Bools, Int64s

_BITS = 63
_SAMPLE = 64
"""Number of distances from which `_in_steps` guesses a part's step."""


def sort_order(*parts: Int64s) -> Int64s:
    """Return the rows in lexicographic order of `parts`, by the first part first. Equal rows keep their order."""
    rows = len(parts[0])
    if rows < 2:
        return np.arange(rows)
    row_bits = int(rows - 1).bit_length()
    order: Int64s | None = None
    word, used = np.zeros(rows, np.int64), 0
    for part in reversed(parts):
        low = part.min()
        bits = (int(part.max()) - int(low)).bit_length()
        if used and used + bits + row_bits > _BITS:
            order = _by_word(word, row_bits, order)
            word, used = np.zeros(rows, np.int64), 0
        if bits + row_bits > _BITS:
            place = np.argsort(part if order is None else part[order], kind="stable")
            order = place if order is None else order[place]
        elif bits:
            word |= (part - low) << used
            used += bits
    if used:
        order = _by_word(word, row_bits, order)
    return np.arange(rows) if order is None else order


def sort_groups(*parts: Int64s) -> tuple[Int64s, Bools]:
    """Return the rows in the order of `sort_order`, and a flag for each: whether it differs from the previous one.

    If one packed integer holds all parts, the flags are computed from it, and the caller need not gather the parts.
    """
    rows = len(parts[0])
    row_bits = int(max(rows - 1, 0)).bit_length()
    word = one_word(parts, _BITS - row_bits)
    if word is None:
        order = sort_order(*parts)
        return order, begins(*(part[order] for part in parts))
    word <<= row_bits
    word |= np.arange(rows)
    word.sort()
    order = word & ((1 << row_bits) - 1)
    word >>= row_bits
    return order, begins(word)


def one_word(parts: Sequence[Int64s], bits: int = _BITS) -> Int64s | None:
    """Return one integer for each row, ordered like the parts, or None if it needs more than `bits` bits."""
    if not len(parts[0]):
        return parts[0].copy()
    raised = [part - part.min() for part in parts]
    widths = [int(part.max()).bit_length() for part in raised]
    if sum(widths) > bits:
        widest = int(np.argmax(widths))
        raised[widest] = _in_steps(raised[widest])
        widths[widest] = int(raised[widest].max()).bit_length()
        if sum(widths) > bits:
            return None
    word = np.zeros(len(parts[0]), np.int64)
    for part, width in zip(raised, widths, strict=True):
        if width:
            word <<= width
            word |= part
    return word


def _in_steps(distances: Int64s) -> Int64s:
    """Divide distances by their common step, such as that of window starts. Return them unchanged if they have none."""
    step = int(np.gcd.reduce(distances[:: max(1, len(distances) // _SAMPLE)]))
    if step <= 1:
        return distances
    # NumPy is much faster at dividing alone than at also computing remainders.
    steps = distances // step
    return steps if (steps * step == distances).all() else distances


def _by_word(word: Int64s, row_bits: int, order: Int64s | None) -> Int64s:
    packed = (word if order is None else word[order]) << row_bits
    packed |= np.arange(len(packed))
    packed.sort()
    packed &= (1 << row_bits) - 1
    return packed if order is None else order[packed]


def rearranged(part: Int64s, order: Int64s) -> Int64s:
    """Return `part[order]`, without copying if nothing changes: random access is the largest cost of sorting."""
    if is_every_row(order, len(part)):
        return part
    if len(part) == len(order) and len(part) and part[0] == part[-1] and part.min() == part.max():
        return part
    return part[order]


def numbers_of(begins: Int64s, sizes: Int64s) -> tuple[Int64s, Int64s]:
    """Return all numbers in the ranges, and the index of each number's range."""
    owners = np.repeat(np.arange(len(sizes)), sizes)
    return np.arange(len(owners)) + (begins - (np.cumsum(sizes) - sizes))[owners], owners


def is_every_row(rows: Int64s, length: int) -> bool:
    """Return True if `rows` are all rows of an array of this length, in order."""
    if len(rows) != length or (length and (rows[0] != 0 or rows[-1] != length - 1)):
        return False
    return bool((rows[1:] > rows[:-1]).all())


def begins(*parts: Int64s) -> Bools:
    """Return a flag for each sorted row: whether it differs from the previous row in any part. Row 0 is flagged."""
    first = np.ones(len(parts[0]), np.bool_)
    if len(first):
        first[1:] = False
    for part in parts:
        first[1:] |= part[1:] != part[:-1]
    return first


def running_max(values: Int64s, ids: Int64s) -> Int64s:
    """Return the largest value so far within each run of equal `ids`; `ids` never decrease."""
    if not len(values):
        return values
    low = int(values.min())
    span = int(values.max()) - low + 1
    if span * (int(ids[-1]) + 1) >= 1 << _BITS - 1:
        distinct, rank = np.unique(values, return_inverse=True)
        return distinct[running_max(rank, ids)]
    raised = values - low + ids * span
    np.maximum.accumulate(raised, out=raised)
    return raised - ids * span + low


def shifted(values: Int64s, starts: Int64s, first: int) -> Int64s:
    """Return for each row the value of the previous row, or `first` at the start of a run."""
    before = np.empty_like(values)
    before[1:] = values[:-1]
    before[starts] = first
    return before

"""Sorting rows by several integers at once.

If their ranges allow, the integers are packed with the row number into an int64, because NumPy sorts plain int64
several times faster than it computes a permutation.
"""

from __future__ import annotations

import numpy as np

from tidegate.windowing.aggregates.vectorised import Bools, Int64s

_BITS = 63


def sort_order(*parts: Int64s) -> Int64s:
    """Return the rows in lexicographic order of `parts`, the first part first; equal rows keep their order."""
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


def _by_word(word: Int64s, row_bits: int, order: Int64s | None) -> Int64s:
    packed = (word if order is None else word[order]) << row_bits
    packed |= np.arange(len(packed))
    packed.sort()
    packed &= (1 << row_bits) - 1
    return packed if order is None else order[packed]


def rearranged(part: Int64s, order: Int64s) -> Int64s:
    """Return `part[order]`, without copying if all values are equal: random access is the largest cost of sorting."""
    if len(part) and part[0] == part[-1] and part.min() == part.max():
        return part
    return part[order]


def begins(*parts: Int64s) -> Bools:
    """Return a flag for each sorted row: it differs from the previous row in any part; true at row 0."""
    first = np.ones(len(parts[0]), np.bool_)
    if len(first):
        first[1:] = False
    for part in parts:
        first[1:] |= part[1:] != part[:-1]
    return first


def running_max(values: Int64s, ids: Int64s) -> Int64s:
    """Return the largest value so far within each run of equal `ids`; `ids` never fall."""
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
    """Return the value of the previous row for each row, and `first` at the start of each run."""
    before = np.empty_like(values)
    before[1:] = values[:-1]
    before[starts] = first
    return before

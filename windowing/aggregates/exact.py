"""Sums that never wrap and never round: int64 and decimals, group by group.

Where a group could leave int64, numbers are added in limbs of 32 bits, whose sums stay in int64 for up
to 2^31 rows; the carries are settled afterwards.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from windowing.aggregates.vectorised import Groups, Int64s
from windowing.keys import DECIMALS
from windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP

_LIMB = np.int64(32)
_MASK = np.int64(2**32 - 1)


def checked_int64(total: int, column: str) -> int:
    """`total` if it fits.

    Raises:
        OverflowError: it leaves int64.
    """
    if not MIN_TIMESTAMP <= total <= MAX_TIMESTAMP:
        raise OverflowError(
            f"the sum of column {column!r} leaves int64 ({total}): cast it to a decimal or double in columns="
        )
    return total


def checked_decimal(total: Decimal, kind: pa.Decimal128Type | None, column: str) -> Decimal:
    """`total` if its type has the digits for it.

    Raises:
        OverflowError: it has too many.
    """
    if kind is not None and total.adjusted() + 1 + kind.scale > kind.precision and total:
        raise OverflowError(f"the sum of column {column!r} leaves {kind} ({total}): cast it to a double in columns=")
    return total


def sum_int64(numbers: Int64s, groups: Groups, column: str) -> Int64s:
    """Sum of each group.

    Raises:
        OverflowError: a sum leaves int64.
    """
    if not len(groups):
        return numbers[:0]
    largest = max(abs(int(numbers.min())), abs(int(numbers.max())))
    if largest * int(groups.sizes.max()) > MAX_TIMESTAMP:
        high, low = np.add.reduceat(numbers >> _LIMB, groups.starts), np.add.reduceat(numbers & _MASK, groups.starts)
        carried = high + (low >> _LIMB)
        outside = np.flatnonzero((carried < -(2**31)) | (carried >= 2**31))
        if len(outside):
            checked_int64((int(high[outside[0]]) << 32) + int(low[outside[0]]), column)
    return np.add.reduceat(numbers, groups.starts)


def sum_decimals(values: pa.Array, groups: Groups, kind: pa.Decimal128Type, column: str) -> pa.Array:
    """Sum of the values of each group that are not null, null where all are.

    Args:
        values: decimal128 of the scale of `kind`.
        groups: which values belong together.
        kind: type of the sums.
        column: the name to use in the error.

    Raises:
        OverflowError: a sum has more digits than `kind`.
    """
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    if not len(groups):
        return pa.array([], kind)
    limbs = _words(values).view(np.uint32).reshape(-1, 4)
    sums = []
    for i in range(4):
        limb = limbs[:, i].view(np.int32) if i == 3 else limbs[:, i]
        sums.append(np.add.reduceat(np.where(valid, limb, 0).astype(np.int64), groups.starts))
    for i in range(3):
        sums[i + 1] = sums[i + 1] + (sums[i] >> _LIMB)
        sums[i] = sums[i] & _MASK
    # 10^38 is below 2^127, so whatever still fits 128 bits can be held against the precision exactly.
    for group in np.flatnonzero(np.abs(sums[3]) >= 10**kind.precision >> 96):
        unscaled = sum(int(part[group]) << (32 * i) for i, part in enumerate(sums))
        checked_decimal(Decimal(unscaled).scaleb(-kind.scale, DECIMALS), kind, column)
    packed = np.empty((len(groups), 4), np.uint32)
    for i, part in enumerate(sums):
        packed[:, i] = (part & _MASK).astype(np.uint32)
    known = groups.any(valid)
    validity = None if known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(kind, len(groups), [validity, pa.py_buffer(packed)])


def _words(values: pa.Array) -> np.ndarray[Any, np.dtype[np.uint64]]:
    words = np.frombuffer(values.buffers()[1], np.uint64) if len(values) else np.empty(0, np.uint64)
    return words[2 * values.offset : 2 * (values.offset + len(values))]

"""Sums of int64 and decimals that never round: sums of groups, and sums as a snapshot stores them.

If a group's sum could exceed int64, its numbers are added in limbs of 32 bits. The sums of limbs stay in int64 for up
to 2^31 rows, and the carries are added afterwards.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Groups, Int64s
from tidegate.windowing.keys import DECIMALS
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP

_WRAP = 2**64
_LIMB = np.int64(32)
_MASK = np.int64(2**32 - 1)


class SumOutOfRange(OverflowError):
    """A sum does not fit its type."""

    def __init__(self, column: str, kind: object, total: object, wider: str) -> None:
        super().__init__(
            f"the sum of column {column!r} is too large for {kind} ({total}): sum a wider column under another name, "
            f"such as columns={{'wide': 'cast({column} as {wider})'}} and {{'total': Sum('wide')}}, and name the old "
            "sum in dropped= of the pipeline"
        )
        self.arguments = column, kind, total, wider

    def __reduce__(self) -> tuple[type, tuple[str, object, object, str]]:
        return type(self), self.arguments


class MeanOutOfRange(SumOutOfRange):
    """A mean does not fit its type, because a mean has more decimal places than its column."""

    def __init__(self, column: str, kind: object, mean: object, narrower: str) -> None:
        OverflowError.__init__(
            self,
            f"the mean of column {column!r} is too large for {kind} ({mean}): average a column of another type under "
            f"another name, such as columns={{'narrow': 'cast({column} as {narrower})'}} and "
            "{'mean': Mean('narrow')}, and name the old mean in dropped= of the pipeline",
        )
        self.arguments = column, kind, mean, narrower


def checked_int64(total: int, column: str) -> int:
    """Return `total` if int64 can hold it.

    Raises:
        SumOutOfRange: `total` does not fit int64.
    """
    if not MIN_TIMESTAMP <= total <= MAX_TIMESTAMP:
        raise SumOutOfRange(column, "int64", total, "decimal(38, 0)")
    return total


def checked_decimal(total: Decimal, kind: pa.Decimal128Type | None, column: str) -> Decimal:
    """Return `total` if the decimal type can hold it.

    Raises:
        SumOutOfRange: `total` has too many digits.
    """
    if kind is not None and total.adjusted() + 1 + kind.scale > kind.precision and total:
        raise SumOutOfRange(column, kind, total, "double")
    return total


def wrapped(total: Any, kind: pa.DataType) -> tuple[Any, int | None]:
    """Wrap a sum of any size into its type. Return it and how many times it wrapped, or None if it did not."""
    if type(total) is int:
        if MIN_TIMESTAMP <= total <= MAX_TIMESTAMP:
            return total, None
        low = (total - MIN_TIMESTAMP) % _WRAP + MIN_TIMESTAMP
        return low, (total - low) // _WRAP
    span = _span(kind)
    # copy_abs() keeps all digits, and abs() would round to the 28 digits of the thread's context.
    if total.copy_abs() < span:
        return total, None
    times = int(DECIMALS.divide_int(total, span))
    return unwrapped(total, -times, kind), times


def unwrapped(value: Any, times: int, kind: pa.DataType) -> Any:
    """Undo `wrapped`: return the original sum."""
    if type(value) is int:
        return value + times * _WRAP
    return DECIMALS.add(value, DECIMALS.multiply(_span(kind), Decimal(times)))


def _span(kind: pa.Decimal128Type) -> Decimal:
    """Return the smallest power of ten that does not fit a decimal type."""
    return Decimal(1).scaleb(kind.precision - kind.scale, DECIMALS)


def sum_int64(numbers: Int64s, groups: Groups, column: str) -> Int64s:
    """Return the sum of each group.

    Raises:
        SumOutOfRange: a sum does not fit int64.
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
    """Return the sum of each group, ignoring nulls. The sum of a group that has only nulls is null.

    The values have the scale of `kind`, the type of the sums.

    Raises:
        SumOutOfRange: a sum has more digits than `kind`.
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
    # 10^38 is below 2^127, so a sum that fits 128 bits can be compared with the precision exactly.
    for group in np.flatnonzero(np.abs(sums[3]) >= 10**kind.precision >> 96):
        unscaled = sum(int(part[group]) << (32 * i) for i, part in enumerate(sums))
        checked_decimal(Decimal(unscaled).scaleb(-kind.scale, DECIMALS), kind, column)
    packed = np.empty((len(groups), 4), np.uint32)
    for i, part in enumerate(sums):
        packed[:, i] = (part & _MASK).astype(np.uint32)
    has_value = groups.any(valid)
    validity = None if has_value.all() else pa.py_buffer(np.packbits(has_value, bitorder="little"))
    return pa.Array.from_buffers(kind, len(groups), [validity, pa.py_buffer(packed)])


def mean_type(kind: pa.Decimal128Type) -> pa.Decimal128Type:
    """Return the type of the mean of decimals: four digits more after the point, within 38 digits, as in Spark."""
    return pa.decimal128(min(kind.precision + 4, 38), min(kind.scale + 4, 38))


def mean_of(total: Decimal, count: int, kind: pa.Decimal128Type | None, of: pa.Decimal128Type, column: str) -> Decimal:
    """Return an exact sum of decimals divided by a count, rounded half up once.

    `kind` is the type of the result, and `of` that of the column; if types are unknown, both are None, and the result
    has four digits more after the point than the sum.

    Raises:
        MeanOutOfRange: the mean has too many digits.
    """
    sign, _, exponent = total.as_tuple()
    scale = 4 - int(exponent) if kind is None else kind.scale
    unscaled = int(total.copy_abs().scaleb(scale, DECIMALS))
    size = (2 * unscaled + count) // (2 * count)
    mean = Decimal(-size if sign else size).scaleb(-scale, DECIMALS)
    if kind is not None and size >= 10**kind.precision:
        places = 34 - (of.precision - of.scale)
        raise MeanOutOfRange(column, kind, mean, "double" if places < 0 else f"decimal(34, {places})")
    return mean


def _words(values: pa.Array) -> np.ndarray[Any, np.dtype[np.uint64]]:
    words = np.frombuffer(values.buffers()[1], np.uint64) if len(values) else np.empty(0, np.uint64)
    return words[2 * values.offset : 2 * (values.offset + len(values))]

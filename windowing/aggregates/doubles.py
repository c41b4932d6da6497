"""Sums of doubles that keep their rounding errors (about 106 bits), so small numbers survive when large ones cancel.

A sum consists of two doubles, the rounded total and its remainder. For single values, the algorithm is TwoSum. For
groups of values, each value is split at a power of two large enough that the upper parts add up without rounding. Both
results agree to about 2^-100 of the sum of magnitudes. Source: Knuth's TwoSum; Rump, Ogita and Oishi, Accurate
Floating-Point Summation (2008).
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.aggregates.vectorised import Groups

Doubles: TypeAlias = npt.NDArray[np.float64]

_EXPONENT = np.int64(0x7FF0_0000_0000_0000)
_EXACT_DIGITS, _EXACT_POWER = 15, 22
"""Every integer of up to 15 digits is exactly representable as a double, and so is every power of ten up to 10^22. So
the quotient of two of them is correctly rounded.
"""


class Total(float):
    """A rounded sum of doubles with its remainder. Code that expects a double sees the sum."""

    __slots__ = ("rest",)
    rest: float

    @classmethod
    def of(cls, value: float, rest: float | None = None) -> Total:
        """Create a total from a rounded sum and its remainder, which is smaller than the sum's last digit."""
        total = cls(value)
        total.rest = rest or 0.0
        return total


def added(total: float, number: float) -> Total:
    """Return the sum of two doubles or totals. A sum that is not finite has no remainder; a zero has no sign."""
    high = total + number
    if high - high != 0.0:
        return Total.of(high)
    part = high - total
    low = (total - (high - part)) + (number - part) + rest_of(total) + rest_of(number)
    rounded = high + low
    part = rounded - high
    return Total.of(rounded + 0.0, (high - (rounded - part)) + (low - part))


def rest_of(total: float) -> float:
    """Return the rounding error of a total; 0 for a plain double."""
    return total.rest if type(total) is Total else 0.0


def two_sum(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """Return the rounded sums of pairs and their remainders. The remainder of a sum that is not finite is 0."""
    if not b.any():
        return a + 0.0, np.zeros(len(a))
    with np.errstate(invalid="ignore", over="ignore"):
        high = a + b + 0.0
        part = high - a
        rest = (a - (high - part)) + (b - part)
    finite = np.isfinite(high)
    return high, rest if finite.all() else np.where(finite, rest, 0.0)


def sums(numbers: Doubles, groups: Groups, rests: Doubles | None = None) -> tuple[Doubles, Doubles]:
    """Return the total of each group and its remainder. If the numbers are totals, `rests` are their remainders."""
    if not len(groups):
        return numbers[:0], numbers[:0]
    several = groups.sizes > 1
    if np.count_nonzero(several) * 2 < len(several):
        # The sum of a single number is the number itself, and most groups have only one. The rest is for the others.
        high, low = two_sum(numbers[groups.starts], np.zeros(len(groups)) if rests is None else rests[groups.starts])
        rows = np.repeat(several, groups.sizes)
        of = Groups.of_sizes(groups.sizes[several])
        high[several], low[several] = sums(numbers[rows], of, None if rests is None else rests[rows])
        return high, low
    with np.errstate(invalid="ignore", over="ignore"):
        # Split at a power of two above the sum of magnitudes. If that sum is not finite, nothing is split and the lower
        # parts are zero.
        bounds = groups.max(np.abs(numbers)) * (groups.sizes * 4.0)
        cuts = (bounds.view(np.int64) & _EXPONENT).view(np.float64)
        cuts[~np.isfinite(cuts)] = 0.0
        cut = np.repeat(cuts, groups.sizes)
        upper = (numbers + cut) - cut
        lower = numbers - upper
        if not cuts.all():
            lower[cut == 0.0] = 0.0
        if rests is not None:
            lower += rests
    return two_sum(groups.sum(upper), groups.sum(lower))


def doubles_of(values: pa.Array) -> Doubles:
    """Return numbers of any type as the nearest doubles, and nulls as 0."""
    kind: Any = values.type
    if not pa.types.is_decimal(kind):
        numbers = values.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy(zero_copy_only=False)
        return np.asarray(numbers)
    # Arrow's own cast multiplies by an inexact power of ten: it makes 0.35 of decimal(10,2) 0.35000000000000003.
    if pa.types.is_decimal128(kind) and kind.precision <= _EXACT_DIGITS and 0 <= kind.scale <= _EXACT_POWER:
        doubles: Doubles = unscaled(values) / float(10**kind.scale)
        if values.null_count:
            doubles[values.is_null().to_numpy(zero_copy_only=False)] = 0.0
        return doubles
    return _of_wide_decimals(values)


def unscaled(values: pa.Array) -> npt.NDArray[np.int64]:
    """Return 128-bit decimals of at most 18 digits as int64 without their scale. A null becomes an arbitrary number."""
    words = np.frombuffer(values.buffers()[1], np.int64)
    return words[2 * values.offset : 2 * (values.offset + len(values)) : 2]


def _of_wide_decimals(values: pa.Array) -> Doubles:
    """Return decimals rounded as Python rounds them, like the row operator.

    Each distinct value is rounded once.
    """
    encoded = values.dictionary_encode()
    rounded = np.array([_rounded(value) for value in encoded.dictionary.to_pylist()], np.float64)
    if not len(rounded):
        return np.zeros(len(values))
    places = pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False)
    numbers: Doubles = rounded[places]
    return np.where(values.is_valid().to_numpy(zero_copy_only=False), numbers, 0.0) if values.null_count else numbers


def _rounded(value: Any) -> float:
    return float(Decimal(value))

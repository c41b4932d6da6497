"""Sums of doubles that keep what rounding leaves: about 106 bits, so large numbers that cancel leave the small ones.

A sum is two doubles, the rounded total and its rest. One value at a time that is TwoSum; of groups of values, each
is cut at a power of two so large that the upper parts add up without rounding. Both agree to about 2^-100 of the sum
of magnitudes. Source: Knuth's TwoSum; Rump, Ogita and Oishi, Accurate Floating-Point Summation (2008).
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
_EXACT_DIGITS = 15
"""Decimals of so many digits, and powers of ten up to 10^22, are doubles without rounding."""


class Total(float):
    """A rounded sum of doubles that knows its rest; wherever a double is expected it is the sum."""

    __slots__ = ("rest",)
    rest: float

    @classmethod
    def of(cls, value: float, rest: float | None = None) -> Total:
        """The sum of a double and a rest that is small beside it."""
        total = cls(value)
        total.rest = rest or 0.0
        return total


def added(total: float, number: float) -> Total:
    """The sum of two doubles or totals. What is not finite has no rest; a zero has no sign."""
    high = total + number
    if high - high != 0.0:
        return Total.of(high)
    part = high - total
    low = (total - (high - part)) + (number - part) + rest_of(total) + rest_of(number)
    rounded = high + low
    part = rounded - high
    return Total.of(rounded + 0.0, (high - (rounded - part)) + (low - part))


def rest_of(total: float) -> float:
    """What rounding left of a total; 0 of a plain double."""
    return total.rest if type(total) is Total else 0.0


def two_sum(a: Doubles, b: Doubles) -> tuple[Doubles, Doubles]:
    """The rounded sums of pairs, and their rests; those of sums that are not finite are 0."""
    if not b.any():
        return a + 0.0, np.zeros(len(a))
    with np.errstate(invalid="ignore", over="ignore"):
        high = a + b + 0.0
        part = high - a
        rest = (a - (high - part)) + (b - part)
    finite = np.isfinite(high)
    return high, rest if finite.all() else np.where(finite, rest, 0.0)


def sums(numbers: Doubles, groups: Groups, rests: Doubles | None = None) -> tuple[Doubles, Doubles]:
    """The total of each group, and its rest.

    Args:
        numbers: to add up.
        groups: which belong together.
        rests: of the numbers, where they are totals.
    """
    if not len(groups):
        return numbers[:0], numbers[:0]
    several = groups.sizes > 1
    if np.count_nonzero(several) * 2 < len(several):
        # Most groups are one number: that is their sum, and costs nothing.
        high, low = two_sum(numbers[groups.starts], np.zeros(len(groups)) if rests is None else rests[groups.starts])
        rows = np.repeat(several, groups.sizes)
        of = Groups.of_sizes(groups.sizes[several])
        high[several], low[several] = sums(numbers[rows], of, None if rests is None else rests[rows])
        return high, low
    with np.errstate(invalid="ignore", over="ignore"):
        # A power of two above the sum of magnitudes; none where that is not finite, and all goes into one sum.
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
    """Numbers of any type as the nearest doubles, 0 where they are null."""
    kind = values.type
    if pa.types.is_decimal(kind) and (kind.precision > _EXACT_DIGITS or kind.scale > 22):
        return _of_wide_decimals(values)
    numbers = values.cast(pa.float64(), safe=False).fill_null(0.0).to_numpy(zero_copy_only=False)
    return np.asarray(numbers)


def _of_wide_decimals(values: pa.Array) -> Doubles:
    """As Python rounds them, and so the row operator; Arrow's cast may be off by a bit. Each distinct value once."""
    encoded = values.dictionary_encode()
    rounded = np.array([_rounded(value) for value in encoded.dictionary.to_pylist()], np.float64)
    if not len(rounded):
        return np.zeros(len(values))
    places = pc.fill_null(encoded.indices, 0).to_numpy(zero_copy_only=False)
    numbers: Doubles = rounded[places]
    return np.where(values.is_valid().to_numpy(zero_copy_only=False), numbers, 0.0) if values.null_count else numbers


def _rounded(value: Any) -> float:
    return float(Decimal(value))

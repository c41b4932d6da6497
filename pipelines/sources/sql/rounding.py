"""Kernels that round half up: `round`, and the quotient of decimals."""

from __future__ import annotations

import math
from decimal import ROUND_HALF_UP, Context, Decimal

import numpy as np
import pyarrow as pa

from tidegate.pipelines.sources.sql.numbers import arrays
from tidegate.pipelines.sources.sql.program import RowFailure, Value
from tidegate.windowing.type_names import name_of

_MOST_DIGITS = 38
"""Digits of the widest decimal, and the scale to which Spark rounds a quotient first."""
_EXACT = Context(prec=4 * _MOST_DIGITS)

MOST_PLACES = 6
"""Decimal places for which rounding doubles is proven: no version of Java writes the digits that decide differently."""


def _unscaled(values: pa.Array) -> list[int | None]:
    scale = values.type.scale
    return [None if number is None else int(number.scaleb(scale, _EXACT)) for number in values.to_pylist()]


def _half_up(dividend: int, divisor: int) -> int:
    """Return a quotient of numbers that are not negative, rounded half up."""
    return (2 * dividend + divisor) // (2 * divisor)


def _scaled(number: int, scale: int, kind: pa.DataType) -> Decimal:
    if abs(number) >= 10**kind.precision:
        raise RowFailure(f"the value {Decimal(number).scaleb(-scale, _EXACT)} is out of range for {name_of(kind)}")
    return Decimal(number).scaleb(-scale, _EXACT)


def divide(left: Value, right: Value, kind: pa.DataType) -> Value:
    """Return `left / right` of decimals. Division by zero is an error, and so is a quotient with too many digits.

    Like Spark, it rounds to 38 decimal places, and then to those of the result.
    """
    left, right = arrays(left, right)
    up, down = 10 ** (right.type.scale + _MOST_DIGITS), 10**left.type.scale

    def quotient(dividend: int | None, divisor: int | None) -> Decimal | None:
        if dividend is None or divisor is None:
            return None
        if divisor == 0:
            raise RowFailure("division by zero")
        size = _half_up(abs(dividend) * up, abs(divisor) * down)
        size = _half_up(size, 10 ** (_MOST_DIGITS - kind.scale))
        return _scaled(-size if (dividend < 0) != (divisor < 0) else size, kind.scale, kind)

    return pa.array(map(quotient, _unscaled(left), _unscaled(right)), kind)


def round_integer(value: Value, places: int) -> Value:
    """Return `round(value, places)` of integers for negative places. A result out of range is an error."""
    (values,) = arrays(value)
    unit = int(10**-places)

    def rounded(number: int) -> int:
        size = _half_up(abs(number), unit) * unit
        return -size if number < 0 else size

    bounds = np.iinfo(values.type.to_pandas_dtype())
    encoded = values.dictionary_encode()
    results = [rounded(number) for number in encoded.dictionary.to_pylist()]
    for result in results:
        if not bounds.min <= result <= bounds.max:
            raise RowFailure(f"the value {result} is out of range for {name_of(values.type)}")
    return pa.array(results, values.type).take(encoded.indices)


def round_decimal(value: Value, places: int, kind: pa.DataType) -> Value:
    """Return `round(value, places)` of decimals; `kind` is the type of the result."""
    (values,) = arrays(value)
    unit = 10 ** (values.type.scale - places)

    def rounded(number: int | None) -> Decimal | None:
        if number is None:
            return None
        size = _half_up(abs(number), unit) * 10 ** (kind.scale - places)
        return _scaled(-size if number < 0 else size, kind.scale, kind)

    encoded = values.dictionary_encode()
    return pa.array(map(rounded, _unscaled(encoded.dictionary)), kind).take(encoded.indices)


def round_double(value: Value, places: int) -> Value:
    """Return `round(value, places)` of doubles, which rounds the digits of the shortest text of a number.

    `places` is at most `MOST_PLACES`.
    """
    (values,) = arrays(value)
    unit = Decimal(1).scaleb(-places)

    def rounded(number: float) -> float:
        if not math.isfinite(number) or abs(number) >= 2.0**53:
            return number
        # Zero has no sign, as in Java's BigDecimal.
        return float(Decimal(repr(number)).quantize(unit, ROUND_HALF_UP, _EXACT)) + 0.0

    encoded = values.view(pa.int64()).dictionary_encode()
    numbers = encoded.dictionary.view(pa.float64()).to_pylist()
    return pa.array(map(rounded, numbers), pa.float64(), from_pandas=False).take(encoded.indices)

"""Kernels of comparisons and arithmetic that Arrow lacks, with the results and errors of Spark in ANSI mode.

Arrow's own `add_checked` and similar functions give Spark's results: an integer out of range is an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.sources.sql.program import RowFailure, Value, as_array


def arrays(*values: Value) -> list[pa.Array]:
    """Return values as arrays of one length. At least one of them is an array."""
    rows = next(len(value) for value in values if isinstance(value, pa.Array))
    return [as_array(value, rows) for value in values]


def equal(left: Value, right: Value) -> Value:
    """Return `left = right`: NaN is equal to NaN, and 0.0 to -0.0."""
    same = pc.equal(left, right)
    if pa.types.is_floating(left.type):
        return pc.or_(same, pc.and_(pc.is_nan(left), pc.is_nan(right)))
    return same


def less(left: Value, right: Value) -> Value:
    """Return `left < right`: NaN is greater than any other value."""
    if pa.types.is_boolean(left.type):
        left, right = left.cast(pa.uint8()), right.cast(pa.uint8())
    smaller = pc.less(left, right)
    if pa.types.is_floating(left.type):
        return pc.or_(smaller, pc.and_(pc.invert(pc.is_nan(left)), pc.is_nan(right)))
    return smaller


def not_equal(left: Value, right: Value) -> Value:
    """Return `left <> right`."""
    return pc.invert(equal(left, right))


def less_equal(left: Value, right: Value) -> Value:
    """Return `left <= right`."""
    return pc.invert(less(right, left))


def greater(left: Value, right: Value) -> Value:
    """Return `left > right`."""
    return less(right, left)


def greater_equal(left: Value, right: Value) -> Value:
    """Return `left >= right`."""
    return pc.invert(less(left, right))


def same(left: Value, right: Value) -> Value:
    """Return `left <=> right`, which is never null."""
    missing = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(missing, pc.fill_null(equal(left, right), False))


def is_nan(value: Value) -> Value:
    """Return `isnan(value)`, which is false for null."""
    return pc.fill_null(pc.is_nan(value), False)


def divide(left: Value, right: Value) -> Value:
    """Return `left / right` of doubles; division by zero is an error, even for doubles."""
    _refuse_zero(left, right)
    return pc.divide(left, right)


def remainder(left: Value, right: Value) -> Value:
    """Return `left % right` with the sign of the dividend; division by zero is an error."""
    _refuse_zero(left, right)
    left, right = arrays(left, right)
    valid = pc.and_(left.is_valid(), right.is_valid())
    dividend = np.asarray(left.fill_null(0).to_numpy(zero_copy_only=False))
    divisor = np.asarray(right.fill_null(1).to_numpy(zero_copy_only=False))
    if not pa.types.is_floating(left.type):
        # MIN % -1 would overflow in the processor, but anything % -1 is 0.
        divisor = np.where(divisor == -1, np.ones_like(divisor), divisor)
    with np.errstate(all="ignore"):
        result = np.fmod(dividend, np.where(divisor == 0, np.ones_like(divisor), divisor))
    return pa.array(result, left.type, mask=~np.asarray(valid.to_numpy(zero_copy_only=False)), from_pandas=False)


def _refuse_zero(left: Value, right: Value) -> None:
    zero = pc.and_(pc.equal(right, pa.scalar(0, right.type)), pc.is_valid(left))
    if pc.any(zero).as_py() if isinstance(zero, pa.Array) else zero.as_py():
        raise RowFailure("division by zero")


def floor(value: Value) -> Value:
    """Return `floor(value)` of doubles as bigint, which saturates as in Java."""
    return _rounded(value, np.floor)


def ceil(value: Value) -> Value:
    """Return `ceil(value)` of doubles as bigint, which saturates as in Java."""
    return _rounded(value, np.ceil)


def _rounded(value: Value, round_: Callable[[Any], Any]) -> pa.Array:
    (values,) = arrays(value)
    numbers = round_(np.asarray(values.fill_null(0).to_numpy(zero_copy_only=False), dtype=np.float64))
    return pa.array(saturated(numbers, np.int64), pa.int64(), mask=nulls_of(values))


def saturated(numbers: Any, kind: Any) -> Any:
    """Return whole doubles as integers, as Java does: NaN is 0, and values out of range are the nearest bound."""
    bounds = np.iinfo(kind)
    high, low = numbers >= float(bounds.max), numbers <= float(bounds.min)
    inside = np.where(high | low | np.isnan(numbers), 0.0, numbers)
    return np.where(high, bounds.max, np.where(low, bounds.min, inside.astype(kind)))


def greatest(*values: Value) -> Value:
    """Return the greatest value that is not null."""
    return _best(less, values)


def least(*values: Value) -> Value:
    """Return the smallest value that is not null."""
    return _best(greater, values)


def _best(is_worse: Callable[[Value, Value], Value], values: tuple[Value, ...]) -> Value:
    best, *others = arrays(*values)
    for value in others:
        better = pc.fill_null(pc.or_kleene(best.is_null(), is_worse(best, value)), False)
        # A null replaces only a null.
        best = pc.if_else(better, value, best)
    return best


def is_in(value: Value, *options: Any) -> Value:
    """Return `value IN (options)`: null if the value is null, or if it equals no option and an option is null.

    Values of its type are equal if and only if their bytes are.
    """
    wanted = pa.array([option for option in options if option is not None], value.type)
    inside = pc.is_in(value, value_set=wanted)
    if any(option is None for option in options):
        inside = pc.if_else(inside, inside, pa.scalar(None, pa.bool_()))
    return pc.if_else(pc.is_valid(value), inside, pa.scalar(None, pa.bool_()))


def nulls_of(values: pa.Array) -> Any:
    """Return flags of nulls, for the mask of an array."""
    return np.asarray(values.is_null().to_numpy(zero_copy_only=False))

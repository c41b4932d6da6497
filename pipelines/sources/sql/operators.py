"""Operators, with operand and result types as in Spark's ANSI mode (`AnsiTypeCoercion`, `DecimalPrecision`)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from tidegate.pipelines.sources.sql import moments, numbers, rounding, times
from tidegate.pipelines.sources.sql.casts import DIGITS, cast
from tidegate.pipelines.sources.sql.program import Call, Constant, Node
from tidegate.pipelines.sources.sql.reading import Misfit, Unproven
from tidegate.windowing.type_names import name_of

_PRECISION = 38
"""Largest number of digits of a decimal."""
_LEAST_SCALE = 6
"""Decimal places that Spark keeps of a quotient with too many digits."""


def is_number(kind: pa.DataType) -> bool:
    """Return True for integers, float, double and decimals."""
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def is_ordered(kind: pa.DataType) -> bool:
    """Return True for a type whose comparison is proven."""
    scalar = (pa.bool_(), pa.string(), pa.date32(), times.UTC, pa.timestamp("us"))
    return is_number(kind) or kind in scalar


def common_type(nodes: Sequence[Node], with_literals: bool = False) -> pa.DataType:
    """Return the common type of several values.

    With `with_literals`, as for operators, an integer literal next to a decimal counts as a decimal of just its digits.
    """
    kind: pa.DataType = pa.null()
    for node in nodes:
        kind = _wider(kind, _kind(node, with_literals))
    return kind


def _kind(node: Node, with_literals: bool) -> pa.DataType | Constant:
    return node if with_literals and isinstance(node, Constant) and node.is_literal else node.type


def _wider(left: pa.DataType | Constant, right: pa.DataType | Constant) -> pa.DataType:
    plain = [side.type if isinstance(side, Constant) else side for side in (left, right)]
    if plain[0] == plain[1] or pa.types.is_null(plain[1]):
        return plain[0]
    if pa.types.is_null(plain[0]):
        return plain[1]
    if all(pa.types.is_integer(kind) for kind in plain):
        return max(plain, key=lambda kind: kind.bit_width)
    if all(map(is_number, plain)):
        if any(pa.types.is_floating(kind) for kind in plain):
            return pa.float64()
        return _wider_decimal(*(decimal_of(side) for side in (left, right)))
    if set(plain) == {pa.date32(), times.UTC}:
        return times.UTC
    raise Unproven(f"{name_of(plain[0])} with {name_of(plain[1])} is not proven")


def decimal_of(value: pa.DataType | Constant) -> pa.DataType:
    """Return the decimal type to which Spark converts an integer, or the decimal type itself."""
    if isinstance(value, Constant):
        return pa.decimal128(len(str(abs(value.value))), 0)
    return pa.decimal128(DIGITS[value], 0) if pa.types.is_integer(value) else value


def _wider_decimal(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    scale = max(left.scale, right.scale)
    return decimal(max(left.precision - left.scale, right.precision - right.scale) + scale, scale)


def decimal(precision: int, scale: int) -> pa.DataType:
    """Return a decimal type. Raise Unproven if it has too many digits, so that Spark would drop some."""
    if precision > _PRECISION:
        raise Unproven(f"a decimal of {precision} digits, some of which Spark drops, is not proven")
    return pa.decimal128(precision, scale)


def together(left: Node, right: Node) -> tuple[Node, Node]:
    """Convert two operands of an operator to their common type."""
    kind = common_type((left, right), with_literals=True)
    if isinstance(left, Constant) and isinstance(right, Constant) and pa.types.is_decimal(kind):
        raise Unproven("an operator on two literals is not proven: write the result")
    literals = [node for node in (left, right) if isinstance(node, Constant) and node.value is not None]
    if pa.types.is_decimal(kind) and literals:
        kind = _wider_decimal(*(decimal_of(_kind(node, True)) for node in (left, right)))
    return cast(left, kind), cast(right, kind)


def compared(left: Node, right: Node) -> tuple[Node, Node]:
    """Convert two operands of a comparison to their common type. A string literal becomes a date or a time."""
    for node, other in ((left, right), (right, left)):
        if isinstance(node, Constant) and isinstance(node.value, str) and other.type in (pa.date32(), times.UTC):
            moment = moment_of(node.value, other.type)
            return (moment, right) if node is left else (left, moment)
        if pa.types.is_integer(other.type) and _is_beyond_bigint(node):
            # Spark takes `column < 1e19BD` as true, even where the column is null.
            raise Unproven("a comparison of an integer with a literal beyond bigint is not proven")
    for node, other in ((left, right), (right, left)):
        if pa.types.is_temporal(node.type) and is_number(other.type):
            raise Misfit(
                f"compares {name_of(node.type)} with {name_of(other.type)}: give a time, such as timestamp '2024-03-01'"
            )
    left, right = together(left, right)
    if not is_ordered(left.type):
        raise Unproven(f"a comparison of {name_of(left.type)} is not proven")
    return left, right


def _is_beyond_bigint(node: Node) -> bool:
    if not isinstance(node, Constant) or not isinstance(node.value, Decimal):
        return False
    return not -(1 << 63) <= node.value < 1 << 63


def moment_of(text: str, kind: pa.DataType) -> Constant:
    """Return the literal of a date or a time. Raise Unproven if the string is neither."""
    try:
        number = moments.read_date(text) if pa.types.is_date(kind) else moments.read_moment(text)
    except ValueError as error:
        raise Unproven(f"{text!r} is not a valid {name_of(kind)}") from error
    return Constant(number, kind)


def number_literal(text: str) -> Constant:
    """Return a numeric literal: an int, bigint or decimal, or a double if it has an exponent."""
    if "e" in text.lower():
        return Constant(finite(text), pa.float64())
    if text.lstrip("-").isdigit():
        value = int(text)
        for kind, bits in ((pa.int32(), 31), (pa.int64(), 63)):
            if -(1 << bits) <= value < 1 << bits:
                return Constant(value, kind, is_literal=True)
    number = Decimal(text)
    exponent = number.as_tuple().exponent
    scale = -exponent if isinstance(exponent, int) else 0
    if scale < 0:
        raise Unproven(f"the literal {text} is not proven")
    return Constant(number, decimal(max(len(number.as_tuple().digits), scale), scale))


def finite(text: str) -> float:
    """Return a literal as a double. Raise Unproven if it is out of range for doubles, which Spark refuses."""
    number = float(text)
    if not math.isfinite(number):
        raise Unproven(f"the literal {text} is out of range")
    return number


_COMBINING: dict[type[exp.Expr], Callable[..., Any]] = {
    exp.Add: pc.add_checked,
    exp.Sub: pc.subtract_checked,
    exp.Mul: pc.multiply_checked,
}


def arithmetic(node: exp.Expr, left: Node, right: Node) -> Node:
    """Return the program of an operator between two numbers."""
    if is_null(left) or is_null(right):
        return _of_null(node, left, right)
    need_number(left)
    need_number(right)
    if isinstance(node, exp.Div):
        if _are_decimals(left, right):
            return _divided_decimals(left, right)
        if pa.types.is_decimal(left.type) or pa.types.is_decimal(right.type):
            left, right = together(left, right)
        arguments = (cast(left, pa.float64()), cast(right, pa.float64()))
        return Call(numbers.divide, arguments, pa.float64(), fails=True, right_first=True)
    if isinstance(node, exp.IntDiv):
        if not (pa.types.is_integer(left.type) and pa.types.is_integer(right.type)):
            raise Unproven("div is proven for integers only")
        arguments = (cast(left, pa.int64()), cast(right, pa.int64()))
        return Call(pc.divide_checked, arguments, pa.int64(), fails=True, right_first=True)
    if isinstance(node, exp.Mod):
        left, right = together(left, right)
        if pa.types.is_decimal(left.type):
            raise Unproven("a remainder of decimals is not proven")
        return Call(numbers.remainder, (left, right), left.type, fails=True, right_first=True)
    return _combined(node, left, right)


def is_null(node: Node) -> bool:
    """Return True for NULL, with or without a type."""
    return isinstance(node, Constant) and node.value is None


def _of_null(node: exp.Expr, left: Node, right: Node) -> Node:
    """Return the null that an operator gives for NULL. Like Spark, it does not evaluate the other operand."""
    kind = common_type((left, right))
    if pa.types.is_null(kind) or pa.types.is_decimal(kind):
        raise Unproven(f"arithmetic of NULL with {name_of(kind)} is not proven")
    need_number(Constant(None, kind))
    if isinstance(node, exp.Div):
        kind = pa.float64()
    elif isinstance(node, exp.IntDiv):
        kind = pa.int64()
    return Constant(None, kind)


def _are_decimals(left: Node, right: Node) -> bool:
    """Return True for two decimals, or a decimal and an integer, so that the result is a decimal."""
    kinds = [side.type for side in (left, right)]
    return any(map(pa.types.is_decimal, kinds)) and not any(map(pa.types.is_floating, kinds))


def _divided_decimals(left: Node, right: Node) -> Node:
    """Return the quotient of decimals, with Spark's precision and scale of the result."""
    if isinstance(left, Constant) and isinstance(right, Constant):
        raise Unproven("an operator on two literals is not proven: write the result")
    first, second = (decimal_of(_kind(side, with_literals=True)) for side in (left, right))
    whole, scale = first.precision - first.scale + second.scale, max(6, first.scale + second.precision + 1)
    if whole + scale > _PRECISION:
        scale = max(_PRECISION - whole, min(scale, _LEAST_SCALE))
    kind = pa.decimal128(min(whole + scale, _PRECISION), scale)
    operands = (cast(left, first), cast(right, second))
    return Call(rounding.divide, operands, kind, fails=True, options=(kind,), right_first=True)


def need_number(node: Node) -> None:
    """Raise Unproven for an operand that is not a number."""
    if pa.types.is_boolean(node.type):
        raise Misfit("does arithmetic with a boolean: use CASE WHEN ... THEN 1 ELSE 0 END as a number")
    if not is_number(node.type):
        raise Unproven(f"arithmetic of {name_of(node.type)} is not proven")


def _combined(node: exp.Expr, left: Node, right: Node) -> Node:
    """Return the sum, difference or product of two operands."""
    kernel = _COMBINING[type(node)]
    if _are_decimals(left, right):
        return _combined_decimals(kernel, left, right)
    left, right = together(left, right)
    return Call(kernel, (left, right), left.type, fails=pa.types.is_integer(left.type))


def _combined_decimals(kernel: Callable[..., Any], left: Node, right: Node) -> Node:
    """Return the sum, difference or product of decimals, with Spark's precision and scale of the result."""
    if isinstance(left, Constant) and isinstance(right, Constant):
        raise Unproven("an operator on two literals is not proven: write the result")
    first, second = (decimal_of(_kind(side, with_literals=True)) for side in (left, right))
    if kernel is pc.multiply_checked:
        kind = decimal(first.precision + second.precision + 1, first.scale + second.scale)
    else:
        scale = max(first.scale, second.scale)
        kind = decimal(max(first.precision - first.scale, second.precision - second.scale) + scale + 1, scale)
    return Call(kernel, (cast(left, first), cast(right, second)), kind)


_UNITS = {**times.UNITS, "week": 7 * moments.DAY}
_MONTHS = {"month": 1, "year": 12}


def shifted(node: exp.Expr, moment: Node, interval: exp.Interval) -> Node:
    """Return the program of a date or a time plus or minus a literal interval of one unit."""
    unit = interval.args.get("unit")
    count, name = interval.this, "" if not isinstance(unit, exp.Var) else unit.name.lower().removesuffix("s")
    number = count.name.strip() if isinstance(count, exp.Literal) else ""
    if name not in (*_UNITS, *_MONTHS) or name == "dd" or not re.fullmatch(r"-?\d{1,6}", number, re.A):
        raise Unproven(
            f"{interval.sql('spark')} is not proven: write a whole number and one unit, as in INTERVAL 2 DAY"
        )
    size = -int(number) if isinstance(node, exp.Sub) else int(number)
    is_date = pa.types.is_date(moment.type)
    if not is_date and moment.type != times.UTC:
        raise Unproven(f"an interval with {name_of(moment.type)} is not proven")
    if name in _MONTHS:
        return Call(times.add_months, (moment,), moment.type, fails=True, options=(size * _MONTHS[name],))
    if is_date and name in ("day", "week"):
        return Call(times.add_whole_days, (moment,), moment.type, options=(size * _UNITS[name] // moments.DAY,))
    return Call(times.add_micros, (cast(moment, times.UTC),), times.UTC, fails=True, options=(size * _UNITS[name],))

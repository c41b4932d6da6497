"""Arithmetic of Spark SQL: the types of results, and the kernels that give Spark's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from sqlglot import exp

from tidegate.pipelines.sources.sql import numbers
from tidegate.pipelines.sources.sql.casts import cast
from tidegate.pipelines.sources.sql.program import Call, Constant, Node
from tidegate.pipelines.sources.sql.reading import Misfit, Unproven
from tidegate.pipelines.sources.sql.types import decimal, decimal_of, is_number, together
from tidegate.windowing.type_names import name_of

_COMBINING: dict[type[exp.Expr], Callable[..., Any]] = {
    exp.Add: numbers.add,
    exp.Sub: numbers.subtract,
    exp.Mul: numbers.multiply,
}


def arithmetic(node: exp.Expr, left: Node, right: Node) -> Node:
    """Return the program of an operator between two numbers.

    Raises:
        Unproven: an operand is no number, or the operator is not proven for its types.
    """
    need_number(left)
    need_number(right)
    if isinstance(node, exp.Div):
        if pa.types.is_decimal(left.type) and pa.types.is_decimal(right.type):
            raise Unproven("a quotient of decimals is not proven")
        if pa.types.is_decimal(left.type) or pa.types.is_decimal(right.type):
            left, right = together(left, right)
            if not pa.types.is_floating(left.type):
                raise Unproven("a quotient of decimals is not proven")
        arguments = (cast(left, pa.float64()), cast(right, pa.float64()))
        return Call(numbers.divide, arguments, pa.float64(), fails=True, right_first=True)
    if isinstance(node, exp.IntDiv):
        if not (pa.types.is_integer(left.type) and pa.types.is_integer(right.type)):
            raise Unproven("div is proven for integers only")
        arguments = (cast(left, pa.int64()), cast(right, pa.int64()))
        return Call(numbers.divide_whole, arguments, pa.int64(), fails=True, right_first=True)
    if isinstance(node, exp.Mod):
        left, right = together(left, right)
        if pa.types.is_decimal(left.type):
            raise Unproven("a remainder of decimals is not proven")
        return Call(numbers.remainder, (left, right), left.type, fails=True, right_first=True)
    return _combined(node, left, right)


def need_number(node: Node) -> None:
    """Refuse an operand that is no number.

    Raises:
        Unproven: it is none.
    """
    if pa.types.is_boolean(node.type):
        raise Misfit("does arithmetic with a boolean: write CASE WHEN ... THEN 1 ELSE 0 END for its number")
    if not is_number(node.type):
        raise Unproven(f"arithmetic of {name_of(node.type)} is not proven")


def _combined(node: exp.Expr, left: Node, right: Node) -> Node:
    """Return the sum, difference or product of two operands."""
    kernel = _COMBINING[type(node)]
    is_decimal = any(pa.types.is_decimal(side.type) for side in (left, right))
    if is_decimal and not any(pa.types.is_floating(side.type) for side in (left, right)):
        return _combined_decimals(kernel, left, right)
    left, right = together(left, right)
    return Call(kernel, (left, right), left.type, fails=pa.types.is_integer(left.type))


def _combined_decimals(kernel: Callable[..., Any], left: Node, right: Node) -> Node:
    """Return the sum, difference or product of decimals, with Spark's precision and scale of the result."""
    if isinstance(left, Constant) and isinstance(right, Constant):
        raise Unproven("an operator of two literals is not proven: write its value")
    first, second = (
        decimal_of(side if isinstance(side, Constant) and pa.types.is_integer(side.type) else side.type)
        for side in (left, right)
    )
    if kernel is numbers.multiply:
        kind = decimal(first.precision + second.precision + 1, first.scale + second.scale)
    else:
        scale = max(first.scale, second.scale)
        kind = decimal(max(first.precision - first.scale, second.precision - second.scale) + scale + 1, scale)
    return Call(kernel, (cast(left, first), cast(right, second)), kind)

"""Programs of Arrow kernels: the compiled form of an expression, which is pickled and runs in the tasks.

A program gives the values that Spark's `eval` of the expression gives for each row. An operand that may fail is
therefore evaluated only for the rows for which Spark evaluates it: a branch of CASE for the rows that take it, the
right side of AND for the rows whose left side is not false, and a later operand of an operator for the rows whose
earlier operands are not null. Each node's `evaluate` returns its values for the rows of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Value: TypeAlias = "pa.Array | pa.Scalar"
"""Values of the rows; a scalar stands for the same value in all rows."""
_BOOLEAN = pa.bool_()


class RowFailure(ValueError):
    """An expression fails for a row, as in Spark's ANSI mode."""


class OnlyBySpark(RowFailure):
    """A value for which Spark's result depends on its version, or on that of Java."""


@dataclass(frozen=True, slots=True)
class Field:
    """The values of a column, or of a field of a struct column."""

    name: str
    type: pa.DataType
    path: tuple[str, ...] = ()

    def evaluate(self, rows: pa.RecordBatch) -> Value:
        return field_of(rows.column(rows.schema.get_field_index(self.name)), *self.path)


@dataclass(frozen=True, slots=True)
class Constant:
    """A value that is the same in all rows.

    `is_literal` is True for a number as it is written, without a cast and not through a derived column. Next to a
    decimal, Spark gives such an integer only as many digits as it has.
    """

    value: Any
    type: pa.DataType
    is_literal: bool = False

    def evaluate(self, rows: pa.RecordBatch) -> Value:
        return pa.scalar(self.value, self.type)


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel over the values of other programs.

    Args:
        kernel: function of Arrow or of this package; it gets a value for each argument, at least one of them an array.
        arguments: the operands.
        type: type of the result.
        fails: True if the kernel itself may raise an error for a row.
        options: further arguments of the kernel.
        strict: True if Spark does not evaluate an operand for a row if an earlier operand is null.
        right_first: True if Spark evaluates the last operand first.
    """

    kernel: Callable[..., Value]
    arguments: tuple[Node, ...]
    type: pa.DataType
    fails: bool = False
    options: tuple[Any, ...] = ()
    strict: bool = True
    right_first: bool = False

    def evaluate(self, rows: pa.RecordBatch) -> Value:
        ordered = list(reversed(self.arguments)) if self.right_first else list(self.arguments)
        values: list[Value] = []
        for argument in ordered:
            if can_fail(argument) and self.strict and values:
                values.append(evaluate_where(argument, rows, _all_valid(values, rows.num_rows)))
            else:
                values.append(argument.evaluate(rows))
        if self.right_first:
            values.reverse()
        if not any(isinstance(value, pa.Array) for value in values):
            values[0] = pa.repeat(values[0], rows.num_rows)
        result = self.kernel(*values, *self.options)
        return result if result.type == self.type else result.cast(self.type)


@dataclass(frozen=True, slots=True)
class Logic:
    """AND or OR of two conditions, in three-valued logic.

    The second is evaluated for the rows that the first does not decide.
    """

    left: Node
    right: Node
    is_and: bool
    type: pa.DataType = _BOOLEAN

    def evaluate(self, rows: pa.RecordBatch) -> Value:
        left = self.left.evaluate(rows)
        if can_fail(self.right):
            undecided = pc.fill_null(left if self.is_and else pc.invert(left), True)
            right = evaluate_where(self.right, rows, as_array(undecided, rows.num_rows))
        else:
            right = self.right.evaluate(rows)
        return pc.and_kleene(left, right) if self.is_and else pc.or_kleene(left, right)


@dataclass(frozen=True, slots=True)
class Choice:
    """CASE: the value of the first branch whose condition is true."""

    branches: tuple[tuple[Node, Node], ...]
    otherwise: Node
    type: pa.DataType

    def evaluate(self, rows: pa.RecordBatch) -> Value:
        count = rows.num_rows
        if not can_fail(self):
            result = as_array(self.otherwise.evaluate(rows), count)
            for condition, value in reversed(self.branches):
                taken = pc.fill_null(as_array(condition.evaluate(rows), count), False)
                result = pc.if_else(taken, value.evaluate(rows), result)
            return result
        open_rows = pa.repeat(pa.scalar(True), count)
        result = pa.nulls(count, self.type)
        for condition, value in self.branches:
            met = as_array(evaluate_where(condition, rows, open_rows), count)
            taken = pc.and_(open_rows, pc.fill_null(met, False))
            result = pc.if_else(taken, evaluate_where(value, rows, taken), result)
            open_rows = pc.and_(open_rows, pc.invert(taken))
        return pc.if_else(open_rows, evaluate_where(self.otherwise, rows, open_rows), result)


@dataclass(frozen=True, slots=True)
class FirstValid:
    """COALESCE: the first value that is not null."""

    arguments: tuple[Node, ...]
    type: pa.DataType

    def evaluate(self, rows: pa.RecordBatch) -> Value:
        result = as_array(self.arguments[0].evaluate(rows), rows.num_rows)
        for argument in self.arguments[1:]:
            missing = result.is_null()
            value = evaluate_where(argument, rows, missing) if can_fail(argument) else argument.evaluate(rows)
            result = pc.if_else(missing, value, result)
        return result


Node: TypeAlias = Field | Constant | Call | Logic | Choice | FirstValid


def _operands(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Logic):
        return (node.left, node.right)
    if isinstance(node, Choice):
        return (*(part for branch in node.branches for part in branch), node.otherwise)
    return node.arguments if isinstance(node, Call | FirstValid) else ()


def can_fail(node: Node) -> bool:
    """Return True if the evaluation of a program may raise an error for a row."""
    return (isinstance(node, Call) and node.fails) or any(map(can_fail, _operands(node)))


def without_literal(node: Node) -> Node:
    """Return a program whose value is not a literal for Spark, such as that of a cast or a derived column."""
    return replace(node, is_literal=False) if isinstance(node, Constant) else node


def columns_read(node: Node) -> frozenset[str]:
    """Return the columns that a program reads."""
    own = {node.name} if isinstance(node, Field) else ()
    return frozenset(own).union(*map(columns_read, _operands(node)))


def evaluate_where(node: Node, rows: pa.RecordBatch, wanted: pa.Array) -> Value:
    """Return the values of rows, evaluated only where `wanted` is true; the other rows are null."""
    if not can_fail(node) or wanted.true_count == len(wanted):
        return node.evaluate(rows)
    inside = rows.filter(wanted)
    values = as_array(node.evaluate(inside), inside.num_rows)
    # Row n of the result takes the value whose index is the number of wanted rows before n.
    places = pc.subtract(pc.cumulative_sum(wanted.cast(pa.int64())), 1)
    return values.take(pc.if_else(wanted, places, pa.scalar(None, pa.int64())))


def field_of(values: Value, *path: str) -> Value:
    """Return a field of structs, null where a containing struct is null."""
    for name in path:
        values = pc.struct_field(values, [values.type.get_field_index(name)])
    return values


def as_array(value: Value, rows: int) -> pa.Array:
    """Return a value as an array."""
    return pa.repeat(value, rows) if isinstance(value, pa.Scalar) else value


def _all_valid(values: Sequence[Value], rows: int) -> pa.Array:
    valid = pa.repeat(pa.scalar(True), rows)
    for value in values:
        valid = pc.and_(valid, pa.scalar(value.is_valid) if isinstance(value, pa.Scalar) else value.is_valid())
    return valid

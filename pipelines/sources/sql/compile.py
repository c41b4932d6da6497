"""Compiler of Spark SQL expressions: from text and the types of columns to a program of Arrow kernels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from tidegate.pipelines.sources.sql import numbers, texts, times
from tidegate.pipelines.sources.sql.casts import cast
from tidegate.pipelines.sources.sql.functions import FUNCTIONS, TYPES, built, choose, concat, is_missing, lacks_function
from tidegate.pipelines.sources.sql.operators import (
    arithmetic,
    compared,
    decimal,
    finite,
    is_null,
    is_number,
    moment_of,
    need_number,
    number_literal,
    shifted,
)
from tidegate.pipelines.sources.sql.program import Call, Constant, Field, Logic, Node, field_of, without_literal
from tidegate.pipelines.sources.sql.reading import COMPARISONS, Misfit, Unproven, parse
from tidegate.windowing.type_names import name_of

_LONGEST_LIST = 10
"""Number of literals in a list from which Spark compares doubles by their bits."""

_NULL_CONDITION = Constant(None, pa.bool_())

_COMPARING: dict[type[exp.Expr], Callable[..., Any]] = {
    exp.EQ: numbers.equal,
    exp.NEQ: numbers.not_equal,
    exp.LT: numbers.less,
    exp.LTE: numbers.less_equal,
    exp.GT: numbers.greater,
    exp.GTE: numbers.greater_equal,
}

_TYPES = {
    **{getattr(exp.DType, name.upper()): kind for name, kind in TYPES.items() if name not in ("string", "timestamp")},
    exp.DType.TEXT: TYPES["string"],
    exp.DType.TIMESTAMPTZ: TYPES["timestamp"],
}


def compile_expression(text: str, columns: pa.Schema | Mapping[str, Node]) -> Node:
    """Return the program of an expression.

    `columns` are those that it may name, with their programs if they are derived.

    Raises:
        Unproven: the program is not proven to give Spark's values; the message is the reason.
    """
    if isinstance(columns, pa.Schema):
        columns = columns_of(columns)
    node = _Compiler(columns).compile(parse(text))
    if pa.types.is_null(node.type):
        raise Unproven("it is NULL without a type")
    return without_literal(node)


def columns_of(schema: pa.Schema) -> dict[str, Node]:
    """Return the programs that read the columns of a source."""
    return {field.name: Field(field.name, field.type) for field in schema}


class _Compiler:
    def __init__(self, columns: Mapping[str, Node]) -> None:
        self._columns = columns

    def compile(self, node: exp.Expr) -> Node:
        """Return the program of a tree."""
        if isinstance(node, exp.Paren):
            return self.compile(node.this)
        if isinstance(node, COMPARISONS):
            return self._comparison(node)
        build = _BUILDERS.get(type(node))
        if build is None:
            raise Unproven(f"{type(node).__name__} ({node.sql('spark')[:60]}) is not proven")
        return build(self, node)

    def _all(self, nodes: Sequence[exp.Expr]) -> list[Node]:
        return [self.compile(node) for node in nodes]

    def _column(self, node: exp.Column) -> Node:
        return _named([part.name for part in node.parts], self._columns)

    def _comparison(self, node: exp.Expr) -> Node:
        left, right = compared(self.compile(node.this), self.compile(node.expression))
        if isinstance(node, exp.NullSafeEQ):
            return _same(left, right)
        if is_null(left) or is_null(right):
            return _NULL_CONDITION
        return Call(_COMPARING[type(node)], (left, right), pa.bool_())

    def _logic(self, node: exp.Expr) -> Node:
        left, right = self._condition(node.this), self._condition(node.expression)
        return Logic(left, right, isinstance(node, exp.And))

    def _condition(self, node: exp.Expr) -> Node:
        return as_condition(self.compile(node))

    def _not(self, node: exp.Expr) -> Node:
        return _negated(self._condition(node.this))

    def _negative(self, node: exp.Expr) -> Node:
        if isinstance(node.this, exp.Literal) and not node.this.is_string:
            return number_literal(f"-{node.this.this}")
        value = self.compile(node.this)
        need_number(value)
        if isinstance(value, Constant):
            if pa.types.is_integer(value.type) and -value.value >= 1 << (value.type.bit_width - 1):
                raise Unproven(f"the literal {-value.value} is out of range for {name_of(value.type)}")
            return Constant(-value.value, value.type, value.is_literal and isinstance(node.this, exp.Cast))
        return Call(pc.negate_checked, (value,), value.type, fails=pa.types.is_integer(value.type))

    def _arithmetic(self, node: exp.Expr) -> Node:
        if isinstance(node, exp.Add | exp.Sub) and isinstance(node.expression, exp.Interval):
            return shifted(node, self.compile(node.this), node.expression)
        if isinstance(node, exp.Add) and isinstance(node.this, exp.Interval):
            return shifted(node, self.compile(node.expression), node.this)
        return arithmetic(node, self.compile(node.this), self.compile(node.expression))

    def _between(self, node: exp.Expr) -> Node:
        if node.args.get("symmetric") is not None:
            raise Unproven("BETWEEN SYMMETRIC is not proven")
        value, low, high = (self.compile(node.args[name]) for name in ("this", "low", "high"))
        bounds = (compared(value, low), compared(value, high))
        _no_null(*(side for pair in bounds for side in pair))
        above, below = (
            Call(kernel, pair, pa.bool_())
            for kernel, pair in zip((numbers.greater_equal, numbers.less_equal), bounds, strict=True)
        )
        return Logic(above, below, is_and=True)

    def _in(self, node: exp.Expr) -> Node:
        if node.args.get("query") is not None or not node.expressions:
            raise Unproven("IN of a query is not proven")
        value, options = self.compile(node.this), self._all(node.expressions)
        if not all(isinstance(option, Constant) for option in options):
            raise Unproven("IN is proven for literals only")
        pairs = [compared(value, option) for option in options if not pa.types.is_null(option.type)]
        kinds = {left.type for left, _ in pairs}
        if len(kinds) != 1 or pa.types.is_decimal(kind := kinds.pop()):
            raise Unproven("IN of several types, or of decimals, is not proven")
        literals = [cast(right, kind) for _, right in pairs]
        if not all(isinstance(literal, Constant) for literal in literals):
            raise Unproven("IN with a literal that is converted is not proven")
        has_null = len(pairs) < len(options)
        if pa.types.is_floating(kind):
            if len(options) > _LONGEST_LIST or has_null:
                raise Unproven("IN of doubles with a long list or NULL is not proven")
            tree: Node = Call(numbers.equal, pairs[0], pa.bool_())
            for pair in pairs[1:]:
                tree = Logic(tree, Call(numbers.equal, pair, pa.bool_()), is_and=False)
            return tree
        values = (*(literal.value for literal in literals if isinstance(literal, Constant)),)
        return Call(numbers.is_in, (pairs[0][0],), pa.bool_(), options=(*values, *([None] if has_null else [])))

    def _is(self, node: exp.Expr) -> Node:
        value, asked = self.compile(node.this), node.expression
        if isinstance(asked, exp.Null):
            return is_missing(value)
        if isinstance(asked, exp.Boolean):
            return Call(
                numbers.same, (as_condition(value), Constant(bool(asked.this), pa.bool_())), pa.bool_(), strict=False
            )
        raise Unproven(f"IS {asked.sql('spark')} is not proven")

    def _distinct(self, node: exp.Expr) -> Node:
        return _negated(_same(*compared(self.compile(node.this), self.compile(node.expression))))

    def _like(self, node: exp.Expr) -> Node:
        escape = "\\"
        like = node
        if isinstance(node, exp.Escape):
            sign = node.expression
            if not isinstance(sign, exp.Literal) or len(sign.this) != 1 or sign.this in "_%":
                raise Unproven(f"ESCAPE {sign.sql('spark')} is not proven")
            escape, like = sign.this, node.this
        result = self._matching(like, lambda pattern: texts.like_pattern(pattern, escape))
        return _negated(result) if like.args.get("negate") else result

    def _rlike(self, node: exp.Expr) -> Node:
        result = self._matching(node, texts.regex_pattern)
        return _negated(result) if node.args.get("negate") else result

    def _matching(self, node: exp.Expr, to_re2: Callable[[str], str]) -> Node:
        value, pattern = self.compile(node.this), node.expression
        if not isinstance(pattern, exp.Literal) or not pattern.is_string or not pa.types.is_string(value.type):
            raise Unproven("it is proven for text and a literal pattern only")
        return Call(pc.match_substring_regex, (value,), pa.bool_(), options=(to_re2(pattern.this),))

    def _case(self, node: exp.Expr) -> Node:
        subject = node.args.get("this")
        branches = []
        for branch in node.args["ifs"]:
            condition = self.compile(branch.this)
            if subject is not None:
                pair = compared(self.compile(subject), condition)
                _no_null(*pair)
                condition = Call(numbers.equal, pair, pa.bool_())
            elif pa.types.is_null(condition.type):
                raise Unproven("WHEN NULL is not proven")
            branches.append((condition, self.compile(branch.args["true"])))
        default = node.args.get("default")
        return choose(branches, Constant(None, pa.null()) if default is None else self.compile(default))

    def _if(self, node: exp.Expr) -> Node:
        otherwise = node.args.get("false")
        if otherwise is None:
            raise Unproven("IF without a third argument is not proven")
        return choose([(self.compile(node.this), self.compile(node.args["true"]))], self.compile(otherwise))

    def _call(self, node: exp.Expr) -> Node:
        name = str(node.this)
        build = None if lacks_function(name.lower()) else FUNCTIONS.get(name.lower())
        if build is None:
            raise Unproven(f"the function {name} is not proven")
        try:
            return built(build, self._all(node.expressions))
        except Unproven as error:
            if str(error).startswith(f"{name}: ") or "the function " in str(error):
                raise
            raise Unproven(f"{name}: {error}") from error

    def _cast(self, node: exp.Expr) -> Node:
        if node.args.get("format") is not None or node.args.get("action") is not None:
            raise Unproven("CAST with a format is not proven")
        kind = _type_of(node.args["to"])
        quiet = bool(node.args.get("safe"))
        if isinstance(node.this, exp.Literal) and not quiet:
            # sqlglot parses 1L as a cast that has none of the other arguments of CAST.
            literal = _literal_of(node.this, kind, is_suffix="safe" not in node.args)
            if literal is not None:
                return literal
        return cast(self.compile(node.this), kind, quiet)

    def _concat(self, node: exp.Expr) -> Node:
        return concat(self.compile(node.this), self.compile(node.expression))


def _named(names: Sequence[str], columns: Mapping[str, Node]) -> Node:
    """Return the program of a column or of a field of a struct; Spark's names are case-insensitive."""
    text = ".".join(names)

    def only(candidates: Sequence[str], name: str) -> str:
        matching = [candidate for candidate in candidates if candidate.lower() == name.lower()]
        if len(matching) != 1:
            raise Unproven(f"{text!r} names {'several columns' if matching else 'no column'}")
        return matching[0]

    node = columns[only(list(columns), names[0])]
    kind, path = node.type, []
    for name in names[1:]:
        if not pa.types.is_struct(kind):
            raise Unproven(f"{text!r} is not a field of a struct")
        path.append(only([field.name for field in kind], name))
        kind = kind.field(path[-1]).type
    if not path:
        return node
    if isinstance(node, Field):
        return Field(node.name, kind, (*node.path, *path))
    return Call(field_of, (node,), kind, options=tuple(path))


def as_condition(node: Node) -> Node:
    """Return a condition unchanged after checking its type.

    Raises:
        Misfit: it is a number or a time.
        Unproven: it is of any other type than boolean.
    """
    if pa.types.is_null(node.type):
        return _NULL_CONDITION
    if is_number(node.type) or pa.types.is_temporal(node.type):
        raise Misfit(f"has a condition of type {name_of(node.type)}, but a condition must be boolean: compare it")
    if not pa.types.is_boolean(node.type):
        raise Unproven(f"a condition of type {name_of(node.type)} is not proven")
    return node


def _negated(node: Node) -> Node:
    return Call(pc.invert, (node,), pa.bool_())


def _same(left: Node, right: Node) -> Node:
    for node, other in ((left, right), (right, left)):
        if is_null(node):
            return is_missing(other)
    return Call(numbers.same, (left, right), pa.bool_(), strict=False)


def _no_null(*nodes: Node) -> None:
    if any(map(is_null, nodes)):
        raise Unproven("a comparison with NULL is not proven")


def _type_of(kind: exp.Expr) -> pa.DataType:
    if kind.this == exp.DType.DECIMAL:
        sizes = [int(size.name) for size in kind.expressions] or [10]
        return decimal(sizes[0], sizes[1] if len(sizes) > 1 else 0)
    if kind.this not in _TYPES or kind.expressions:
        raise Unproven(f"the type {kind.sql('spark')} is not proven")
    return _TYPES[kind.this]


def _literal_of(node: exp.Expr, kind: pa.DataType, is_suffix: bool) -> Constant | None:
    """Return the literal in a cast, such as DATE '2026-01-31', or with a suffix, such as 1L."""
    if node.is_string:
        if kind in (pa.date32(), times.UTC):
            return moment_of(node.this, kind)
        if pa.types.is_decimal(kind) and re.fullmatch(r"\d+(\.\d+)?", node.this):
            literal = number_literal(node.this)
            wide = literal if pa.types.is_decimal(literal.type) else None
            if wide is not None and wide.type == kind:
                return wide
        raise Unproven(f"the literal {node.sql('spark')} as {name_of(kind)} is not proven")
    literal = number_literal(node.this)
    if pa.types.is_integer(kind) and pa.types.is_integer(literal.type):
        if literal.value < 1 << (kind.bit_width - 1):
            return Constant(literal.value, kind, is_literal=is_suffix)
        raise Unproven(f"the literal {node.this} is out of range for {name_of(kind)}")
    if pa.types.is_float64(kind):
        return Constant(finite(node.this), kind)
    if pa.types.is_float32(kind) and abs(finite(node.this)) > float(np.finfo(np.float32).max):
        raise Unproven(f"the literal {node.this} is out of range")
    if pa.types.is_float32(kind) and float(np.float32(node.this)) == float(node.this):
        return Constant(float(node.this), kind)
    return None


def _literal(compiler: _Compiler, node: exp.Expr) -> Node:
    return Constant(node.this, pa.string()) if node.is_string else number_literal(node.this)


_BUILDERS: dict[type[exp.Expr], Callable[[_Compiler, Any], Node]] = {
    exp.Column: _Compiler._column,
    exp.Literal: _literal,
    exp.Boolean: lambda _, node: Constant(bool(node.this), pa.bool_()),
    exp.Null: lambda _, node: Constant(None, pa.null()),
    exp.And: _Compiler._logic,
    exp.Or: _Compiler._logic,
    exp.Not: _Compiler._not,
    exp.Neg: _Compiler._negative,
    **dict.fromkeys((exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod, exp.IntDiv), _Compiler._arithmetic),
    exp.DPipe: _Compiler._concat,
    exp.Between: _Compiler._between,
    exp.In: _Compiler._in,
    exp.Is: _Compiler._is,
    exp.NullSafeNEQ: _Compiler._distinct,
    exp.Like: _Compiler._like,
    exp.Escape: _Compiler._like,
    exp.RegexpLike: _Compiler._rlike,
    exp.Case: _Compiler._case,
    exp.If: _Compiler._if,
    exp.Anonymous: _Compiler._call,
    exp.Cast: _Compiler._cast,
    exp.TryCast: _Compiler._cast,
}
"""Method for each kind of node."""

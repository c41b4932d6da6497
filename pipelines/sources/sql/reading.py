"""Parse a Spark SQL expression with sqlglot, and refuse it if sqlglot may understand it differently from Spark.

sqlglot and Spark give some operators different precedences: for Spark, `a || b + c` is `(a || b) + c`. A tree of binary
and prefix operators is the only possible one for its text if each operand binds at least as tightly as the grammar
requires. So each operand is checked against Spark's grammar (`SqlBaseParser.g4`), and parentheses are kept in the tree.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import Token, TokenType


class Unproven(Exception):
    """The reason why an expression does not run as Arrow compute."""


class Unparsed(Unproven):
    """The reason why an expression can't be read here."""


class Misfit(Unproven):
    """The reason why no run can evaluate an expression: types don't fit, and Spark converts neither."""


class _PlainSpark(Spark):
    """Spark's dialect without sqlglot's own functions: each call keeps its name and its arguments."""

    class Parser(SparkParser):
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: parse for name, parse in SparkParser.FUNCTION_PARSERS.items() if name in ("CAST", "TRY_CAST")
        }
        NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
        # sqlglot drops the sign +. For Spark it is the function `positive`, and the number after it is not a literal.
        UNARY_PARSERS: ClassVar[dict[Any, Any]] = {
            **SparkParser.UNARY_PARSERS,
            TokenType.PLUS: lambda self: exp.Anonymous(this="positive", expressions=[self._parse_unary()]),
        }


# A word that sqlglot takes as a command makes it log a warning; such a tree is refused anyway.
logging.getLogger("sqlglot").setLevel(logging.ERROR)

_REFUSED = {
    **dict.fromkeys(("CHAR", "CHARACTER", "VARCHAR"), "the types CHAR and VARCHAR are not proven"),
    # sqlglot drops the word, even where it is the name of a column.
    "ALL": "the word ALL is not proven",
}
"""Reasons for refusing an expression, by the word that it contains."""
_BEFORE_GROUPS = ("AND", "OR", "NOT", "WHEN", "THEN", "ELSE", "CASE", "BETWEEN", "LIKE", "RLIKE", "FROM", "DIV")
"""Words after which a parenthesis groups. After any other word, it begins the arguments of a call or a list."""

_OR, _AND, _NOT, _PREDICATE, _COMPARISON, _SUM, _PRODUCT, _UNARY, _PRIMARY = range(9)

COMPARISONS = (exp.EQ, exp.NEQ, exp.NullSafeEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)

_LEVELS: tuple[tuple[tuple[type[exp.Expr], ...], int, tuple[int, int]], ...] = (
    ((exp.Or,), _OR, (_OR, _AND)),
    ((exp.And,), _AND, (_AND, _NOT)),
    ((exp.Not,), _NOT, (_NOT, _NOT)),
    (
        (exp.Between, exp.In, exp.Like, exp.RegexpLike, exp.Is, exp.NullSafeNEQ),
        _PREDICATE,
        (_COMPARISON, _COMPARISON),
    ),
    (COMPARISONS, _COMPARISON, (_COMPARISON, _SUM)),
    ((exp.Add, exp.Sub, exp.DPipe), _SUM, (_SUM, _PRODUCT)),
    ((exp.Mul, exp.Div, exp.Mod, exp.IntDiv), _PRODUCT, (_PRODUCT, _UNARY)),
    ((exp.Neg,), _UNARY, (_UNARY, _UNARY)),
)
"""Precedence of operators: each has its own level, the lowest level of its first operand, and that of the others."""

_ATOMS = (
    exp.Column,
    exp.Literal,
    exp.Boolean,
    exp.Null,
    exp.Paren,
    exp.Anonymous,
    exp.Cast,
    exp.Case,
    exp.If,
    exp.Escape,
    exp.HexString,
    exp.RawString,
    exp.Identifier,
    exp.DataType,
    exp.DataTypeParam,
    exp.Interval,
    exp.Var,
)
"""Nodes that are not operators."""


def tokens_of(text: str) -> list[Token]:
    """Return the words and symbols of an expression. Raise SqlglotError for an unknown symbol."""
    return list(_PlainSpark().tokenize(text))


def parse(text: str) -> exp.Expr:
    """Return the tree of an expression.

    Raises:
        Unproven: sqlglot does not know the expression, or may understand it differently from Spark.
    """
    if "\\" in text:
        raise Unproven("it has a backslash, whose meaning depends on Spark's settings")
    if "${" in text:
        raise Unproven("it has ${, where Spark inserts the value of a variable, even inside a string")
    try:
        tokens = tokens_of(text)
        if any(token.token_type == TokenType.DCOLON and text[token.start : token.end + 1] == "::" for token in tokens):
            raise Unproven("it has the operator ::, use CAST(... AS ...)")
        tree = sqlglot.parse_one(text, dialect=_PlainSpark, into=exp.Condition)
    except (SqlglotError, RecursionError) as error:
        raise Unparsed("it can't be parsed here; if Spark can't parse it either, the run fails") from error
    for token in tokens:
        if token.token_type == TokenType.VAR and not token.text.isascii():
            raise Unproven(f"Spark reads the name {token.text} only in backticks")
        if token.token_type != TokenType.STRING and (reason := _REFUSED.get(token.text.upper())) is not None:
            raise Unproven(reason)
    if any(one.token_type == other.token_type == TokenType.STRING for one, other in pairwise(tokens)):
        raise Unproven('it has two strings side by side; write a string with a quote as "O\'Brien"')
    if sum(isinstance(node, exp.Paren) for node in tree.walk()) != _groups(tokens):
        raise Unproven("parentheses are needed to tell in which order Spark reads its operators")
    for node in tree.walk():
        _check(node)
    return tree


def columns_named(text: str) -> list[str]:
    """Return the names of the columns in an expression, each once.

    Raises:
        Unproven: as for `parse`.
    """
    return list(dict.fromkeys(column.name for column in parse(text).find_all(exp.Column)))


def _groups(tokens: Sequence[Token]) -> int:
    """Return the number of pairs of grouping parentheses. sqlglot's tree may add its own."""
    before = ["", *(token.text.upper() for token in tokens)]
    return sum(
        token.token_type == TokenType.L_PAREN and (before[place] in _BEFORE_GROUPS or not _is_word(before[place]))
        for place, token in enumerate(tokens)
    )


def _is_word(text: str) -> bool:
    return text[:1].isalnum() or text[:1] in ("_", "`")


def _check(node: exp.Expr) -> None:
    if isinstance(node, exp.Escape) and not isinstance(node.this, exp.Like):
        raise Unproven("it has ESCAPE without LIKE")
    for kinds, _, (first, others) in _LEVELS:
        if isinstance(node, kinds):
            operands = list(node.iter_expressions())
            for operand in operands:
                least = first if operand is node.this else others
                if isinstance(node, exp.In) and operand is not node.this:
                    continue
                if _level(operand) < least:
                    raise Unproven(f"parentheses are needed to tell how Spark reads {operand.sql('spark')!r}")
            return
    if not isinstance(node, _ATOMS):
        raise Unproven(f"{_words(node)} is not proven")


def _level(node: exp.Expr) -> int:
    if isinstance(node, exp.Escape):
        return _PREDICATE
    return next((level for kinds, level, _ in _LEVELS if isinstance(node, kinds)), _PRIMARY)


def _words(node: exp.Expr) -> str:
    return f"{type(node).__name__} ({node.sql('spark')[:60]})"

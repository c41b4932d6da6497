"""Faults of a Spark SQL expression that can be told without Spark: it can't be parsed, or a column is missing.

Spark has the last word in a run. So an expression has a fault only if sqlglot's whole dialect of Spark can't parse it,
or if it names a column that neither the source nor an earlier column of `columns` has.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from tidegate.pipelines.definition.bound_input import near_names
from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.sql.reading import tokens_of

_BARE = frozenset({"current_catalog", "current_database", "current_schema", "current_user", "session_user", "user"})
"""Functions that need no parentheses and look like columns."""
_HIDDEN = "_metadata"
"""Column that Spark adds to the files that it reads."""


def check_expressions(pipeline: Pipeline, input_: Input, names: Sequence[str]) -> None:
    """Refuse an expression of an input that no run could evaluate, as far as this is known without Spark.

    Args:
        pipeline: the pipeline.
        input_: one of its inputs.
        names: columns of its source.

    Raises:
        Refused: an expression can't be parsed, or names a column that is missing.
    """
    side = "" if input_ == pipeline.inputs[0] else "right."
    fields = {f"columns[{name!r}]": (name, text) for name, text in input_.columns.items()}
    if input_.where is not None:
        fields["where"] = ("", input_.where)
    columns = list(names)
    for field, (name, text) in fields.items():
        if (fault := _fault(text, columns)) is not None:
            raise Refused(f"{side}{field} of pipeline {pipeline.name!r}: {text!r} {fault}")
        if name not in columns:
            columns.append(name)


def _fault(text: str, columns: Sequence[str]) -> str | None:
    """Return the fault of an expression over these columns; None if none is known."""
    names = {name.lower() for name in columns}
    try:
        tree = sqlglot.parse_one(text, dialect="spark", into=exp.Condition)
    except SqlglotError:
        return None if _has_word_of_grammar(text, names) else "can't be parsed as an expression of Spark SQL"
    for column in tree.find_all(exp.Column):
        name = column.parts[0].name
        if name.lower() not in names | _BARE | {_HIDDEN} and name != "*":
            return f"names no column {name!r}; {near_names(name, columns)}"
    return None


def _has_word_of_grammar(text: str, names: set[str]) -> bool:
    """Return True if a column is named like a word of the grammar: Spark takes most of them as names, sqlglot few."""
    words = (TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING)
    try:
        return any(token.token_type not in words and token.text.lower() in names for token in tokens_of(text))
    except SqlglotError:
        return False

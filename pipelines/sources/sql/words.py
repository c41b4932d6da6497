"""Words of a Spark SQL expression, proven or not: the columns that it may name, and the calls that change its value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import Token, TokenType

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.sql.reading import tokens_of

_CLOCKS = frozenset(
    {
        "current_date",
        "current_time",
        "current_timestamp",
        "curdate",
        "localtime",
        "localtimestamp",
        "now",
    }
)
"""Functions that read the clock of the run. Spark counts them as deterministic."""
_BARE_CLOCKS = frozenset({"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"})
"""Clocks that need no parentheses; a column of that name goes first."""
_DRAWS = frozenset(
    {
        "input_file_name",
        "monotonically_increasing_id",
        "rand",
        "randn",
        "random",
        "shuffle",
        "spark_partition_id",
        "uuid",
    }
)
"""Functions whose value depends on the run in another way. Spark finds these, and others, after its start."""
_MOMENTS = frozenset({"now", "today", "tomorrow", "yesterday"})
"""Texts of a literal, as in `timestamp 'now'`, that read the clock."""
_ALL_COLUMNS = ("", "(", ",", ".")
"""Texts before a star that stands for all columns."""


def columns_in(expressions: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the columns that expressions may name, and perhaps some more."""
    words: set[str] = set()
    for text in expressions:
        try:
            tokens = tokens_of(text)
        except SqlglotError:
            return list(names)
        before = ["", *(token.text for token in tokens)]
        if any(token.text == "*" and before[place] in _ALL_COLUMNS for place, token in enumerate(tokens)):
            return list(names)
        words.update(token.text.lower() for token in tokens)
    return [name for name in names if name.lower() in words]


def changing_call(text: str, columns: Iterable[str]) -> str | None:
    """Return the words of an expression that read the clock of the run, or draw a value; None if there are none."""
    try:
        tokens = tokens_of(text)
    except SqlglotError:
        return None
    named = {name.lower() for name in columns}
    for place, token in enumerate(tokens):
        word, following = token.text.lower(), tokens[place + 1 : place + 3]
        if token.token_type == TokenType.STRING:
            if word.strip().split(" ")[0] in _MOMENTS and place and _names_type(tokens[place - 1]):
                return f"{tokens[place - 1].text} '{token.text}'"
            continue
        if token.token_type == TokenType.IDENTIFIER or (place and tokens[place - 1].text == "."):
            continue
        is_call = [part.text for part in following[:1]] == ["("]
        if (is_call and word in _CLOCKS | _DRAWS) or (not is_call and word in _BARE_CLOCKS - named):
            return f"{word}()"
        if word == "unix_timestamp" and [part.text for part in following] == ["(", ")"]:
            return "unix_timestamp()"
    return None


def changing_value(field: str, pipeline: str, text: str, call: str) -> Refused:
    """Return the error for an expression with a value that changes between runs.

    Args:
        field: its place in the pipeline.
        pipeline: name of the pipeline.
        text: the expression.
        call: the words in it that change its value.
    """
    return Refused(
        f"{field} of pipeline {pipeline!r}, {text!r}, has {call} that gives another value each time it is read, such "
        "as rand(), uuid() or now(): a run that is repeated would not be the same. Write such values into the source "
        "table"
    )


def _names_type(token: Token) -> bool:
    return token.text.lower() in ("date", "time", "timestamp", "timestamp_ltz", "timestamp_ntz")

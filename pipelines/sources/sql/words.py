"""The words of a Spark SQL expression: columns that it may name, calls that change its value, and errors.

Spark makes the final decision in a run. So an expression is only faulty if not even sqlglot's full Spark dialect can
parse it, if it names a column that neither the source nor an earlier column of `columns` has, or if it calls a function
that the installed Spark does not have.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from itertools import pairwise

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.tokenizer_core import TokenType

from tidegate.pipelines.definition.bound_input import near_names
from tidegate.pipelines.definition.pipeline import Input, Pipeline
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
"""Clock functions that need no parentheses. A column of that name takes precedence."""
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
"""Functions whose value depends on the run in another way. Spark itself detects these, and others, once it has started.
"""
_MOMENTS = frozenset({"now", "today", "tomorrow", "yesterday"})
"""Literals, as in `timestamp 'now'`, that read the clock."""
_MOMENT_TYPES = ("date", "time", "timestamp", "timestamp_ltz", "timestamp_ntz")
_ALL_COLUMNS = ("", "(", ",", ".")
"""Tokens before a star that stands for all columns."""


def columns_in(expressions: Iterable[str], names: Sequence[str]) -> list[str]:
    """Return the columns that expressions may name, and possibly some more."""
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
    """Return the words of an expression that read the clock or use random values, or None if there are none."""
    try:
        tokens = tokens_of(text)
    except SqlglotError:
        return None
    named = {name.lower() for name in columns}
    for place, token in enumerate(tokens):
        word, following = token.text.lower(), tokens[place + 1 : place + 3]
        if token.token_type == TokenType.STRING:
            if word.strip().split(" ")[0] in _MOMENTS and place and tokens[place - 1].text.lower() in _MOMENT_TYPES:
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
    """Return the error for an expression with a value that changes between runs."""
    return Refused(
        f"{field} of pipeline {pipeline!r}, {text!r}, has {call}, which gives a different value each time it is "
        "evaluated, such as rand(), uuid() or now(): repeating a run would not give the same result. Write such values "
        "into the source table"
    )


_BARE = frozenset({"current_catalog", "current_database", "current_schema", "current_user", "session_user", "user"})
"""Functions that need no parentheses and look like columns."""
_HIDDEN = "_metadata"
"""Column that Spark adds to files that it reads."""


def check_expressions(
    pipeline: Pipeline, input_: Input, names: Sequence[str], functions: Collection[str] | None = None
) -> None:
    """Refuse an expression of an input if it is already clear without Spark that no run could evaluate it."""
    side = "" if input_ == pipeline.inputs[0] else "right."
    fields = {f"columns[{name!r}]": (name, text) for name, text in input_.columns.items()}
    if input_.where is not None:
        fields["where"] = ("", input_.where)
    columns = list(names)
    for field, (name, text) in fields.items():
        if (fault := _fault(text, columns, functions)) is not None:
            raise Refused(f"{side}{field} of pipeline {pipeline.name!r}: {text!r} {fault}")
        if name not in columns:
            columns.append(name)


def _fault(text: str, columns: Sequence[str], functions: Collection[str] | None) -> str | None:
    """Return the error in an expression over these columns, or None if no error is known."""
    names = {name.lower() for name in columns}
    try:
        tree = sqlglot.parse_one(text, dialect="spark", into=exp.Condition)
    except SqlglotError as error:
        if _has_word_of_grammar(text, names):
            return None
        return f"can't be parsed as an expression of Spark SQL{_place_of(error, text)}"
    except IndexError:
        # sqlglot builds the trees of some functions, such as map(), assuming that arguments are given.
        return None
    for column in tree.find_all(exp.Column):
        name = column.parts[0].name
        if name.lower() not in names | _BARE | {_HIDDEN} and name != "*":
            return f"names a missing column {name!r}; {near_names(name, columns)}"
    return None if functions is None else _unknown_function(text, functions)


_CLOSED = re.compile(r"""(?:[^'"`]|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|`[^`]*`)*""", re.DOTALL)
"""The beginning of an expression up to an unclosed quote."""


def _place_of(error: SqlglotError, text: str) -> str:
    """Return where an expression can't be parsed, with the position marked in its line, or "" if that is unknown."""
    found = error.errors[0] if isinstance(error, ParseError) and error.errors else None
    if found is not None:
        # sqlglot counts columns from 1, up to the end of the word.
        line, word, said = int(found["line"]), str(found["highlight"]), str(found["description"])
        if "\n" in word:
            return f" at line {line}, near {word!r}"
        column = int(found["col"]) - len(word) + 1
        reason = (
            said[0].lower() + said[1:]
            if said.startswith("Expect")
            else f"{word!r} is not expected there"
            if said.startswith("Invalid")
            else f"something is missing after {word!r}"
        )
    elif (begin := _CLOSED.match(text)) is not None and begin.end() < len(text):
        before = text[: begin.end()].split("\n")
        line, column, word = len(before), len(before[-1]) + 1, text[begin.end()]
        reason = f"the {word} is not closed"
    else:
        return ""
    of_line, begins = text.split("\n")[line - 1], column - 1
    marked = f"{of_line[:begins]}>>>{word}<<<{of_line[begins + len(word) :]}"
    return f" at line {line}, column {column}, marked in {marked.strip()!r}: {reason}"


def _unknown_function(text: str, functions: Collection[str]) -> str | None:
    """Return an error if the expression calls a function that Spark does not have, otherwise None."""
    tokens = tokens_of(text)
    before = ["", *(token.text for token in tokens)]
    for place, (token, following) in enumerate(pairwise(tokens)):
        name = token.text.lower()
        # Words of the grammar have their own token types, and a name after a dot belongs to a catalog.
        if token.token_type != TokenType.VAR or following.token_type != TokenType.L_PAREN or before[place] == ".":
            continue
        if name not in functions:
            close = get_close_matches(name, functions, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            return f"calls the function {token.text!r}, which Spark does not have{hint}"
    return None


def _has_word_of_grammar(text: str, names: set[str]) -> bool:
    """Return True if a column is named like a keyword: Spark accepts most of them as names, sqlglot only a few."""
    words = (TokenType.VAR, TokenType.IDENTIFIER, TokenType.STRING)
    try:
        return any(token.token_type not in words and token.text.lower() in names for token in tokens_of(text))
    except SqlglotError:
        return False

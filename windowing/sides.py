"""The two inputs of a join or a co-process function, by name."""

from __future__ import annotations

from tidegate.windowing.errors import IllegalArgument

LEFT = "left"
RIGHT = "right"
SIDES = (LEFT, RIGHT)


def checked_side(side: str | None) -> str:
    """Return `side` if it names an input; otherwise raise IllegalArgument."""
    if side not in SIDES:
        raise IllegalArgument("side", side, f"give the input: {LEFT!r} or {RIGHT!r}")
    return side


def value_column(side: str, name: str) -> str:
    """Return the name of an input's column in a table of both; Spark would read a dot as access to a field.

    >>> value_column("left", "amount")
    'left:amount'
    """
    return f"{side}:{name}"


def side_of_column(name: str) -> tuple[str, str]:
    """Return the input and column whose `value_column` has this name."""
    side, _, column = name.partition(":")
    return side, column

"""Checks that values of user code fit the Arrow types that are declared for them.

A value of state, of an accumulator or of a result is checked where user code provides it, and becomes the value that a
restore from a snapshot would read. So user code sees the same value whether or not an epoch ended in between. A value
that does not fit its type is refused:

    2.5 in int64                               refused: give an int
    datetime(2024, 5, 1, 12) in date32         refused: it would lose the time of day
    0.1 in float32                             0.10000000149011612, at once
    {"n": 1} in struct<n: int64, of: string>   {"n": 1, "of": None}

An int in a timestamp column of a result is epoch milliseconds, as everywhere in this library.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidegate.windowing.converters import Convert, Unfit, converter, key_converter
from tidegate.windowing.errors import IllegalArgument


def fitting(value: Any, kind: pa.DataType, state: str, owner: object = None) -> Any:
    """Return a value of user code's state as a snapshot would return it; None is null.

    Raises:
        IllegalArgument: the value does not fit; the error names function, state, value and declared type.
    """
    if value is None:
        return None
    try:
        return converter(kind, False)(value)
    except Unfit as unfit:
        raise _refused(unfit, kind, f"state {state!r}", owner) from None


def fitting_key(key: Any, kind: pa.DataType, state: str, owner: object) -> Any:
    """Return a key of a map in state, as `fitting` does. It is neither None nor NaN."""
    try:
        return key_converter(kind, False)(key)
    except Unfit as unfit:
        raise _refused(unfit, kind, f"state {state!r}'s key", owner) from None


def key_to_find(key: Any, kind: pa.DataType) -> Any:
    """Return the key under which `fitting_key` stores an entry; a key that doesn't fit is returned unchanged."""
    try:
        return key_converter(kind, False)(key)
    except Unfit:
        return key


def checker(kind: pa.DataType | None, name: str, owner: object, *, takes_millis: bool = False) -> Convert:
    """Return `fitting` for many values of a type; the type None accepts every value unchanged.

    Args:
        kind: the type that the user declared.
        name: what has the type, for errors.
        owner: the function that gives the values, for errors.
        takes_millis: True accepts an int of epoch milliseconds for a timestamp, and converts it to a datetime. State
            refuses it, because user code would read back a datetime.
    """
    if kind is None:
        return _unchanged
    convert = converter(kind, takes_millis)

    def fit(value: Any) -> Any:
        try:
            return None if value is None else convert(value)
        except Unfit as unfit:
            raise _refused(unfit, kind, name, owner) from None

    return fit


def row_checker(kind: pa.DataType | None, owner: object, title: str = "result") -> Convert:
    """Return the function that checks and converts results; errors name each column of a struct."""
    if not isinstance(kind, pa.StructType):
        return checker(kind, title, owner, takes_millis=True)
    convert = converter(kind, True)

    def fit(value: Any) -> Any:
        try:
            return convert(value)
        except Unfit as unfit:
            if not unfit.steps:
                raise IllegalArgument(f"{_prefix(owner)}{title}", value, unfit.why) from None
            column = unfit.steps[0].removeprefix(".")
            part = Unfit(unfit.value, unfit.why, unfit.steps[1:])
            raise _refused(part, kind.field(column).type, f"{title} column {column!r}", owner) from None

    return fit


def _prefix(owner: object) -> str:
    if owner is None:
        return ""
    return f"{getattr(owner, '__name__', type(owner).__name__)}: "


def _refused(unfit: Unfit, kind: pa.DataType, name: str, owner: object) -> IllegalArgument:
    return IllegalArgument(
        f"{_prefix(owner)}{name}{''.join(unfit.steps)}", unfit.value, f"its declared type is {kind}: {unfit.why}"
    )


def _unchanged(value: Any) -> Any:
    return value

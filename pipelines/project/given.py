"""Times, sizes and keys as callers give them: Python values in code, and strings on the command line.

The command line makes options of the types that are declared here. Importing this module loads no table libraries.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from tidegate.pipelines.errors import UsageError

if TYPE_CHECKING:
    from dateutil.relativedelta import relativedelta

    from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class Bound:
    """The smallest number that an argument may be, which the command line checks.

    Args:
        least: the number.
        exclusive: True if the argument must be above it.
    """

    least: float
    exclusive: bool = False


Count: TypeAlias = Annotated[int, Bound(1)]
"""A whole number above zero."""
Number: TypeAlias = Annotated[int, Bound(0)]
"""A whole number, or zero."""
Seconds: TypeAlias = Annotated[float, Bound(0)]
"""A length of time in seconds."""
Moment: TypeAlias = datetime | date | str
"""A time. Without a zone, it is in the pipeline's `timezone`."""
Length: TypeAlias = timedelta | str
"""A length of time; as a string, such as `5s` or `1min`."""
if TYPE_CHECKING:
    Slice: TypeAlias = timedelta | relativedelta | str
    """The length of a slice, which may be calendar months; as a string, such as `6h`, `1d` or `1mo`."""
else:
    Slice = Length

View: TypeAlias = Literal["final", "latest", "windows", "all"]
"""The rows of a pipeline's results that a call returns."""
Format: TypeAlias = Literal["csv", "jsonl", "parquet", "arrow"]
"""A format in which rows are written."""

_SIZE = re.compile(r"([0-9]+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_POWERS = ("", "k", "m", "g", "t")
_ZERO, _MILLISECOND = timedelta(), timedelta(milliseconds=1)


def moment_of(value: Moment, field: str, zone: tzinfo) -> datetime:
    """Return a time with its zone, which is the given one if it has none.

    Raises:
        UsageError: the string is not a time, or the value is something else.
    """
    if isinstance(value, str):
        from tidegate.pipelines.run.intervals import parse_moment

        return parse_moment(value, field, zone)
    if not isinstance(value, date):
        raise UsageError(f"{field} {value!r}: give a datetime, a date, or a string such as 2013-01-31T06:00")
    if not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day, tzinfo=zone)
    return value.replace(tzinfo=zone) if value.tzinfo is None else value


def millis_of(value: Moment | None, field: str, zone: tzinfo) -> Millis | None:
    """Return a time as int64 epoch milliseconds; see `moment_of` for the zone and the errors."""
    from tidegate.windowing.time import to_millis

    return None if value is None else to_millis(moment_of(value, field, zone))


def slice_of(value: Slice | None) -> relativedelta | None:
    """Return the length of a slice, which may be calendar months: `1mo`.

    Raises:
        UsageError: the length is not above zero, or the value is something else.
    """
    from dateutil.relativedelta import relativedelta

    if value is None:
        return None
    if isinstance(value, str):
        from tidegate.pipelines.run.intervals import parse_slice

        return parse_slice(value)
    if not isinstance(value, timedelta | relativedelta):
        raise UsageError(f"--slice {value!r}: give a timedelta, a relativedelta, or a string such as 1d or 1mo")
    start = datetime(2000, 1, 1)
    if start + value <= start:
        raise UsageError(f"--slice {value!r}: give a length above zero")
    return value if isinstance(value, relativedelta) else relativedelta(microseconds=value // timedelta(microseconds=1))


def length_of(value: Length, field: str, or_zero: bool = False) -> timedelta:
    """Return a length of time.

    Raises:
        UsageError: it is below zero, it is zero without `or_zero`, or it is something else.
    """
    if isinstance(value, str):
        from tidegate.pipelines.run.intervals import parse_duration

        return parse_duration(value, field, or_zero)
    if not isinstance(value, timedelta):
        raise UsageError(f"{field} {value!r}: give a timedelta, or a string such as 5s or 1min")
    if value < _ZERO or (value == _ZERO and not or_zero):
        raise UsageError(f"{field} {value}: give a length above zero{', or zero' if or_zero else ''}")
    return value


def lengths_of(values: Iterable[Length], field: str, or_zero: bool = False) -> tuple[Millis, ...]:
    """Return lengths of time in milliseconds. The text `0` needs no unit.

    Raises:
        UsageError: one is not a whole number of milliseconds, or `length_of` refuses it.
    """
    if isinstance(values, str | timedelta):
        values = (values,)
    return tuple(_whole_millis(value, field, or_zero) for value in values)


def _whole_millis(value: Length, field: str, or_zero: bool) -> Millis:
    length = length_of("0s" if or_zero and value == "0" else value, field, or_zero)
    whole, rest = divmod(length, _MILLISECOND)
    if rest:
        raise UsageError(f"{field} {value}: give a whole number of milliseconds")
    return whole


def share_of(value: float | str, field: str) -> float:
    """Return a share, above 0 and at most 1, from a number or a string such as `1%` or `all`.

    Raises:
        UsageError: the value is something else.
    """
    try:
        text = str(value).strip()
        share = 1.0 if text == "all" else float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise UsageError(f"{field} {value!r}: give a share such as 1%, or all")
    return share


def size_of(value: int | str | None, field: str) -> int | None:
    """Return a number of bytes from a string such as `1048576`, `64m` or `1g`. Units are powers of 1024.

    Raises:
        UsageError: the value is something else, or is not above zero.
    """
    if value is None:
        return None
    match = _SIZE.fullmatch(str(value).strip())
    if match is None or int(match[1]) == 0:
        raise UsageError(
            f"{field} {value!r}: give a number of bytes above zero, optionally with a unit k, m, g or t: 512m"
        )
    return int(match[1]) << 10 * _POWERS.index(match[2].lower())


class KeyText(tuple[str, ...]):
    r"""A key as written on the command line, where `\N` is a null."""

    __slots__ = ()


KeyGiven: TypeAlias = Sequence[object] | KeyText
"""The values of the key columns, in order. A single string is the key of a single column."""


def key_text(key: KeyGiven | None) -> tuple[str, ...] | None:
    r"""Return a key's values as strings, as written on the command line, or None for no key.

    >>> key_text(("ann", None, 7))
    ('ann', '\\N', '7')
    """
    if key is None or isinstance(key, KeyText):
        return key
    from tidegate.pipelines.ledger.tables.keys import text_of_value

    return tuple(map(text_of_value, (key,) if isinstance(key, str | bytes) else key))

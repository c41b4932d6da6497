"""Partition values, which are text in the log and are not stored in the files. Text is parsed as Spark parses it.

A null is null or an empty string in the log, for every type (Delta's protocol, "Partition Value Serialization").
OPTIMIZE rewrites both as null. Spark reads other invalid text as null; here it is an error, because rows would silently
go to another key.
"""

from __future__ import annotations

import re
from decimal import Decimal, DecimalException

import pyarrow as pa

from tidegate.pipelines.sources.sql.moments import read_date, read_moment

_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_NUMBERS = (
    (pa.types.is_signed_integer, re.compile(r"[+-]?[0-9]+"), int),
    (pa.types.is_floating, re.compile(rf"[+-]?(?:nan|inf|infinity)|{_NUMBER}", re.I), float),
    # Arrow refuses a value that loses digits at the scale of the type.
    (pa.types.is_decimal, re.compile(_NUMBER), Decimal),
)
"""Types of numbers, each with the shape of its text and the function that parses it."""
_ZONE = re.compile(r":.*[A-Za-z+-]")
"""A zone after a time."""
_BOOLEANS = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}


def scalar_of(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return a partition value in the type of its column. Raise ValueError if the text is not such a value."""
    if not text:
        return pa.scalar(None, kind)
    is_text = pa.types.is_string(kind) or pa.types.is_binary(kind)
    try:
        return pa.scalar(text).cast(kind) if is_text else _parsed(text.strip(), kind)
    except (ValueError, OverflowError, DecimalException, pa.ArrowException) as error:
        raise ValueError(f"{text!r} is not a valid {kind}") from error


def _parsed(text: str, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_date32(kind):
        return pa.scalar(read_date(text), pa.int32()).cast(kind)
    if pa.types.is_timestamp(kind) and (kind.tz is not None or not _ZONE.search(text)):
        # An instant without a zone is in UTC, the zone of Tidegate's Spark sessions.
        return pa.scalar(read_moment(text), pa.int64()).cast(kind)
    if pa.types.is_boolean(kind) and text.lower() in _BOOLEANS:
        return pa.scalar(_BOOLEANS[text.lower()])
    for is_kind, shape, value_of in _NUMBERS:
        if is_kind(kind) and shape.fullmatch(text):
            return pa.scalar(value_of(text), kind)
    raise ValueError(text)

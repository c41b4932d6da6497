"""Partition values: the log has them as text, and the files don't have them. Text is parsed as Spark parses it.

A null is null in the log, or an empty string if the type is not a string. Spark reads other invalid text as null; here
it is an error, because rows would silently go to another key.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, DecimalException
from typing import Any

import pyarrow as pa

from tidegate.pipelines.sources.sql.moments import read_date, read_moment

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_ZONE = re.compile(r":.*[A-Za-z+-]")
"""A zone after a time."""
_SPECIAL = {"nan": math.nan, "infinity": math.inf, "inf": math.inf}
_TRUE, _FALSE = frozenset({"true", "t", "yes", "y", "1"}), frozenset({"false", "f", "no", "n", "0"})


def scalar_of(text: str | None, kind: pa.DataType) -> pa.Scalar:
    """Return a partition value in the type of its column. Raise ValueError if the text is not such a value."""
    if text is None or (text == "" and not _is_text(kind)):
        return pa.scalar(None, kind)
    if (reader := _reader_of(kind)) is None:
        raise ValueError(f"a partition column can't be of type {kind}")
    try:
        value = reader(text.strip() if not _is_text(kind) else text)
        return value if isinstance(value, pa.Scalar) else pa.scalar(value, kind)
    except (ValueError, OverflowError, DecimalException, pa.ArrowException) as error:
        raise ValueError(f"{text!r} is not a valid {kind}") from error


def _reader_of(kind: pa.DataType) -> Callable[[str], Any] | None:
    """Return the function that parses values of a type, or None for a type that can't be a partition column."""
    if pa.types.is_decimal(kind):
        return lambda text: _decimal(text, kind)
    if pa.types.is_timestamp(kind):
        return lambda text: pa.scalar(_micros(text, kind.tz is not None), pa.int64()).cast(kind)
    return next((reader for is_kind, reader in _READERS.items() if is_kind(kind)), None)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _integer(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _double(text: str) -> float:
    sign, name = (-1.0, text[1:]) if text[:1] == "-" else (1.0, text.removeprefix("+"))
    if name.lower() in _SPECIAL:
        return sign * _SPECIAL[name.lower()]
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    return float(text)


def _boolean(text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        raise ValueError(text)
    return text.lower() in _TRUE


def _decimal(text: str, kind: pa.DataType) -> Decimal:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    # Arrow refuses a value that loses digits at the scale of the type.
    return Decimal(text)


def _date(text: str) -> pa.Scalar:
    return pa.scalar(read_date(text), pa.int32()).cast(pa.date32())


def _micros(text: str, is_instant: bool) -> int:
    """Return microseconds since 1970. An instant without a zone is in UTC, the zone of Tidegate's Spark sessions."""
    if not is_instant and _ZONE.search(text):
        raise ValueError(text)
    return read_moment(text)


_READERS: Mapping[Callable[[pa.DataType], bool], Callable[[str], Any]] = {
    pa.types.is_string: lambda text: text,
    pa.types.is_binary: lambda text: text.encode(),
    pa.types.is_boolean: _boolean,
    pa.types.is_signed_integer: _integer,
    pa.types.is_float32: _double,
    pa.types.is_float64: _double,
    pa.types.is_date32: _date,
}

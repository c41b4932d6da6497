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

from tidegate.pipelines.sources.sql.moments import DAY, day_number

_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_DAY = re.compile(r"([+-]?)([0-9]{4,6})-([0-9]{1,2})-([0-9]{1,2})")
_TIME = re.compile(r"[ T]([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?:\.([0-9]{1,9}))?")
_ZONE = re.compile(r"(?:Z|UTC|([+-])([0-9]{1,2}):?([0-9]{2}))")
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
    if not (match := _DAY.fullmatch(text)):
        raise ValueError(text)
    return pa.scalar(_days(match), pa.int32()).cast(pa.date32())


def _micros(text: str, is_instant: bool) -> int:
    """Return microseconds since 1970. An instant without a zone is in UTC, the zone of Tidegate's Spark sessions."""
    if not (day := _DAY.match(text)):
        raise ValueError(text)
    micros, rest = _days(day) * DAY, text[day.end() :]
    if rest and (time := _TIME.match(rest)):
        hours, minutes, seconds = (int(time[group]) for group in (1, 2, 3))
        if hours > 23 or minutes > 59 or seconds > 59:
            raise ValueError(text)
        micros += (hours * 3_600 + minutes * 60 + seconds) * 1_000_000 + int((time[4] or "").ljust(6, "0")[:6])
        rest = rest[time.end() :]
    if not rest:
        return micros
    if not is_instant or not (zone := _ZONE.fullmatch(rest.strip())):
        raise ValueError(text)
    if zone[1] is None:
        return micros
    ahead = (int(zone[2]) * 60 + int(zone[3])) * 60_000_000
    return micros - ahead if zone[1] == "+" else micros + ahead


def _days(match: re.Match[str]) -> int:
    """Return the days since 1970 of a date in the proleptic Gregorian calendar; Python's own ends at 9999."""
    return day_number(int(match[2]) * (-1 if match[1] == "-" else 1), int(match[3]), int(match[4]))


_READERS: Mapping[Callable[[pa.DataType], bool], Callable[[str], Any]] = {
    pa.types.is_string: lambda text: text,
    pa.types.is_binary: lambda text: text.encode(),
    pa.types.is_boolean: _boolean,
    pa.types.is_signed_integer: _integer,
    pa.types.is_float32: _double,
    pa.types.is_float64: _double,
    pa.types.is_date32: _date,
}

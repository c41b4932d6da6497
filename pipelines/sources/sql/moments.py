"""Text of dates and times, read and written as in Spark's ANSI mode with a session in UTC.

The parsing rules are those of `SparkDateTimeUtils.stringToDate` and `parseTimestampString`: the month and the day may
have one digit, years may have a sign and more than four, and a zone may follow the time. With `fails`, other text is an
error; without it, the result is null.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.sources.sql.program import OnlyBySpark, RowFailure, Value
from tidegate.pipelines.sources.zones import NotAZone, OfJavaOnly, first_sure_second, offsets_of_walls, zone_of

DAY = 86_400_000_000
"""Microseconds of a day."""
_BOUNDS, _DAYS = np.iinfo(np.int64), np.iinfo(np.int32)
_BLANKS = "".join(map(chr, range(33))) + "\x7f"
"""Characters that Spark removes at both ends of text before it reads it."""

_DATE = r"^\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$"
USUAL_DATE = r"(?:000[1-9]|00[1-9]\d|0[1-9]\d\d|[1-9]\d{3})-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])"
"""Regular expression of dates that Arrow reads; it also matches days that don't exist, which then fail."""
USUAL_TIME = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d"
"""Regular expression of times of day without fractional seconds."""
_TIME = r"([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?"
_MOMENT = rf"^\d{{4}}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])([T ]{_TIME})?$"
_ZONED = rf"^\d{{4}}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])[T ]{_TIME}(Z|[+-](0\d|1[0-7]):?[0-5]\d)$"
_CLOCK = r"(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?!\d)(?:\.(\d*))?(.*))?)?"
"""Hour, minute, second, fraction and zone."""
_WHOLE = re.compile(rf"([+-]?)(\d{{4,6}})(?:-(\d{{1,2}})(?:-(\d{{1,2}})(?:[ T]{_CLOCK})?)?)?", re.A | re.S)
_TIME_ONLY = re.compile(rf"(?:T|(?=\d+:)){_CLOCK}", re.A | re.S)


class NotATimestamp(ValueError):
    """Text that is not a date or time for Spark."""


def day_number(year: int, month: int, day: int) -> int:
    """Return the days since 1970 of a proleptic Gregorian date. Raise NotATimestamp if there is no such date."""
    try:
        return int(np.datetime64(f"{year:05}-{month:02}-{day:02}", "D").astype(np.int64))
    except ValueError as error:
        raise NotATimestamp from error


def read_date(text: str) -> int:
    """Return the days since 1970 of text, as `CAST(text AS DATE)` reads it. Raise NotATimestamp if it has no date."""
    shape = re.fullmatch(r"([+-]?)(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", text.strip(_BLANKS), re.S | re.A)
    if shape is None:
        raise NotATimestamp
    sign, year, month, day = shape.groups()
    days = day_number(int(sign + year), int(month or 1), int(day or 1))
    if not _DAYS.min <= days <= _DAYS.max:
        raise NotATimestamp
    return days


def read_moment(text: str) -> int:
    """Return the microseconds since 1970 of text, as `CAST(text AS TIMESTAMP)` reads it.

    Raises:
        NotATimestamp: Spark finds no time in it.
        RowFailure: Spark may read a time, but in a way that depends on its version or on the current date.
    """
    shown = text.strip(_BLANKS)
    if (shape := _WHOLE.fullmatch(shown)) is not None:
        (sign, year, *parts), is_time_only = shape.groups(), False
    elif (shape := _TIME_ONLY.fullmatch(text.rstrip(_BLANKS) if shown.startswith("T") else shown)) is not None:
        (sign, year, *parts), is_time_only = ("", "1", None, None, *shape.groups()), True
    else:
        raise NotATimestamp
    *numbers, fraction, zone = parts
    month, day, hour, minute, second = (
        int(number or least) for number, least in zip(numbers, (1, 1, 0, 0, 0), strict=True)
    )
    if hour > 23 or minute > 59 or second > 59:
        raise NotATimestamp
    clock, micros = _zone((zone or "UTC").strip(_BLANKS), text), int((fraction or "")[:6].ljust(6, "0"))
    if is_time_only:
        raise OnlyBySpark(
            f"the value {text!r} is a time without a date, which Spark reads as that time of the current day"
        )
    moment = (
        day_number(int(f"{sign}{year}"), month, day) * DAY + (hour * 3600 + minute * 60 + second) * 1_000_000 + micros
    )
    if isinstance(clock, int):
        moment -= clock * 1_000_000
    elif _BOUNDS.min <= moment <= _BOUNDS.max:
        moment = int(shifted(np.array([moment]), np.array([False]), clock, offsets_of_walls, -1)[0])
    if not _BOUNDS.min <= moment <= _BOUNDS.max:
        raise NotATimestamp
    return moment


def _zone(name: str, text: str) -> int | str:
    try:
        return zone_of(name)
    except NotAZone as error:
        raise NotATimestamp from error
    except OfJavaOnly as error:
        raise OnlyBySpark(
            f"the value {text!r} has the zone {name!r}, which only Spark reads. With a format, such as "
            "try_to_timestamp(text, 'yyyy-MM-dd HH:mm:ss'), it is null"
        ) from error


def shifted(micros: Any, nulls: Any, zone: int | str, offsets_of: Callable[..., Any], sign: int) -> Any:
    """Return times of one clock as times of another one, both int64 microseconds.

    `offsets_of` returns the offsets of a zone at the given times, which are subtracted if `sign` is -1.
    """
    seconds = np.floor_divide(micros, 1_000_000)
    sure = first_sure_second(zone)
    if sure is not None and (unsure := (seconds < sure) & ~nulls).any():
        raise OnlyBySpark(
            f"the time {np.datetime64(int(seconds[unsure][0]), 's')} is so early that its offset in {zone} depends on "
            "the version of the time zone database"
        )
    shifts = sign * offsets_of(seconds, zone) * 1_000_000
    result = micros + shifts
    if (((result > micros) != (shifts > 0)) & (shifts != 0)).any():
        raise RowFailure("a time is out of range")
    return result


def to_date(value: Value, fails: bool) -> Value:
    """Return text as dates."""
    return _parsed(value, pa.date32(), [(_DATE, pa.date32())], read_date, fails)


def to_timestamp(value: Value, fails: bool) -> Value:
    """Return text as timestamps."""
    kinds = [(_MOMENT, pa.timestamp("us")), (_ZONED, pa.timestamp("us", "UTC"))]
    return _parsed(value, pa.timestamp("us", "UTC"), kinds, read_moment, fails)


def to_timestamp_by(value: Value, pattern: str, usual: str | None, fails: bool) -> Value:
    """Return text of a fixed format as timestamps.

    The groups of the pattern are y, M, d, H, m, s and S. Arrow reads `usual` text in the same way.
    """
    shape = re.compile(pattern, re.A)

    def read(text: str) -> int:
        match = shape.fullmatch(text)
        if match is None:
            raise NotATimestamp
        groups = {name: match.groupdict().get(name) or "" for name in "yMdHmsS"}
        hour, minute, second = (int(groups[name] or 0) for name in "Hms")
        if hour > 23 or minute > 59 or second > 59:
            raise NotATimestamp
        day = day_number(int(groups["y"]), int(groups["M"]), int(groups["d"]))
        moment = day * DAY + (hour * 3600 + minute * 60 + second) * 1_000_000 + int(groups["S"][:6].ljust(6, "0"))
        if not _BOUNDS.min <= moment <= _BOUNDS.max:
            raise RowFailure(f"the value {text!r} is out of range for a timestamp")
        return moment

    fast = [] if usual is None else [(usual, pa.timestamp("us"))]
    return _parsed(value, pa.timestamp("us", "UTC"), fast, read, fails)


def _parsed(
    value: Value,
    kind: pa.DataType,
    fast: list[tuple[str, pa.DataType]],
    read: Callable[[str], int],
    fails: bool,
) -> Value:
    """Read text with Arrow if it has one of the usual forms, otherwise value by value."""
    texts = value if isinstance(value, pa.Array) else pa.array([value.as_py()], pa.string())
    numbers = pa.nulls(len(texts), _whole(kind))
    left = texts.is_valid()
    for shape, as_kind in fast:
        usual = pc.and_(left, pc.fill_null(pc.match_substring_regex(texts, pattern=shape), False))
        if not usual.true_count:
            continue
        try:
            read_by_arrow = texts.filter(usual).cast(as_kind)
        except pa.ArrowInvalid:  # a day such as 30 February
            continue
        numbers = pc.replace_with_mask(numbers, usual, read_by_arrow.cast(_whole(kind)))
        left = pc.and_(left, pc.invert(usual))
    if left.true_count:
        rest = texts.filter(left).dictionary_encode()
        values = pa.array([_one_by_one(text, read, kind, fails) for text in rest.dictionary.to_pylist()], _whole(kind))
        numbers = pc.replace_with_mask(numbers, left, values.take(rest.indices))
    return numbers.cast(kind)


def _one_by_one(text: str, read: Callable[[str], int], kind: pa.DataType, fails: bool) -> int | None:
    try:
        return read(text)
    except NotATimestamp as error:
        if fails:
            name = "DATE" if pa.types.is_date(kind) else "TIMESTAMP"
            raise RowFailure(f"the value {text!r} is not a valid {name}") from error
        return None


def _whole(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_date(kind) else pa.int64()


def date_text(value: Value) -> Value:
    """Return dates as text."""
    return written(value, _date_text)


def timestamp_text(value: Value) -> Value:
    """Return timestamps as text, without trailing zeros in the fraction."""

    def write(micros: int) -> str:
        days, rest = divmod(micros, DAY)
        seconds, fraction = divmod(rest, 1_000_000)
        text = f"{_date_text(days)} {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        return f"{text}.{fraction:06}".rstrip("0") if fraction else text

    return written(value, write)


def written(value: Value, write: Callable[[int], str]) -> pa.Array:
    """Return dates or timestamps as text; `write` gets days or microseconds since 1970."""
    values = value if isinstance(value, pa.Array) else pa.array([value.as_py()], value.type)
    encoded = values.cast(_whole(values.type)).dictionary_encode()
    return pa.array([write(number) for number in encoded.dictionary.to_pylist()], pa.string()).take(encoded.indices)


def _date_text(days: int) -> str:
    """Return a date as yyyy-MM-dd; years after 9999 have a plus sign, and those before 0 a minus sign."""
    year, month, day = calendar_day(days)
    sign = "+" if year > 9999 else "-" if year < 0 else ""
    return f"{sign}{abs(year):04}-{month:02}-{day:02}"


def calendar_day(days: int) -> tuple[int, int, int]:
    """Return the year, month and day of a date that is given as days since 1970."""
    months = np.datetime64(days, "D").astype("datetime64[M]")
    year, month = divmod(int(months.astype(np.int64)), 12)
    return year + 1970, month + 1, days - int(months.astype("datetime64[D]").astype(np.int64)) + 1

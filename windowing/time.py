"""Arithmetic with times. Inside `windowing`, every time is int64 milliseconds since the epoch, in UTC.

Every time of a row, a window and a timer lies in one range, and every duration has one limit. Each is checked where it
enters: a row when it is read, a duration when the pipeline is created, a window or timer of user code when the operator
gets it. So each time that a table or a manifest holds is a valid `datetime` and TIMESTAMP, in every time zone.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum
from math import isfinite
from operator import index
from typing import Any, TypeAlias

from tidegate.windowing.errors import IllegalArgument

Millis: TypeAlias = int
Duration: TypeAlias = timedelta | int

MIN_TIMESTAMP: Millis = -(2**63)
"""Watermark of a stream without events so far (Java's `Long.MIN_VALUE`)."""

MAX_TIMESTAMP: Millis = 2**63 - 1
"""Watermark at the end of input, and last timestamp of the global window (Java's `Long.MAX_VALUE`)."""

FIRST_TIME: Millis = -62_135_510_400_000
LAST_TIME: Millis = 253_402_214_400_000
"""Range of times: from 2 January of the year 1 to the end of 30 December 9999 in UTC, the end exclusive.

A Python datetime and Delta's TIMESTAMP also have the day before and the day after. So a time of the range is a valid
local time in every time zone.
"""

LONGEST_DURATION: Millis = 365_000 * 86_400_000
"""Longest duration: 365,000 days, almost 1,000 years. A present time plus several durations stays in the range."""

_MILLISECOND = timedelta(milliseconds=1)
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))


def millis(value: Duration, field: str) -> Millis:
    """Return a duration in milliseconds.

    Args:
        value: a `timedelta`, or an int of milliseconds.
        field: name of the value in the error.

    Raises:
        IllegalArgument: `value` has another type, is longer than `LONGEST_DURATION`, or has a part below one
            millisecond.
    """
    if isinstance(value, bool) or not isinstance(value, timedelta | int):
        raise IllegalArgument(field, value, "give a datetime.timedelta, or an int of milliseconds")
    whole, rest = divmod(value, _MILLISECOND) if isinstance(value, timedelta) else (value, None)
    if abs(whole) > LONGEST_DURATION:
        raise IllegalArgument(field, value, f"a duration is at most {show_duration(LONGEST_DURATION)}")
    if rest:
        raise IllegalArgument(field, value, "give a whole number of milliseconds")
    return whole


def in_range(timestamp: Millis) -> bool:
    """Return True if a time is in the range of times, which begins at `FIRST_TIME` and ends before `LAST_TIME`."""
    return FIRST_TIME <= timestamp < LAST_TIME


def checked_time(value: Any, field: str) -> Millis:
    """Return a time of user code as int64 epoch milliseconds.

    `MAX_TIMESTAMP`, the end of input, is allowed too.

    Args:
        value: the time: an int, or a NumPy integer.
        field: name of the value in the error.

    Raises:
        IllegalArgument: `value` is not a whole number, or lies outside the range of times.
    """
    if type(value) is not int:
        try:
            if isinstance(value, bool):
                raise TypeError
            value = index(value)
        except TypeError:
            raise IllegalArgument(field, value, f"give epoch milliseconds as an int{_as_millis(value)}") from None
    if not FIRST_TIME <= value < LAST_TIME and value != MAX_TIMESTAMP:
        raise IllegalArgument(
            field,
            value,
            f"give epoch milliseconds from {show_millis(FIRST_TIME)} to {show_millis(LAST_TIME - 1)} "
            f"({FIRST_TIME} to {LAST_TIME - 1}), or MAX_TIMESTAMP for the end of input",
        )
    return value  # type: ignore[no-any-return]


def checked_watermark(value: Any) -> Millis:
    """Return a watermark that a generator emitted. One before the range of times becomes `MIN_TIMESTAMP`.

    Raises:
        IllegalArgument: `value` is not a whole number, or lies after the range of times.
    """
    if type(value) is int and value < FIRST_TIME:
        return MIN_TIMESTAMP
    return checked_time(value, "watermark of a generator")


def _as_millis(value: Any) -> str:
    """Return advice on converting a value to epoch milliseconds; empty for most values."""
    if isinstance(value, datetime):
        return f": to_millis of tidegate.windowing.time returns {to_millis(value)} for this one"
    if isinstance(value, float) and isfinite(value):
        return f", such as {round(value)}"
    return ""


def positive_millis(value: Duration, field: str) -> Millis:
    """Return a duration in milliseconds, as `millis` does, and refuse zero and negative durations."""
    result = millis(value, field)
    if result <= 0:
        raise IllegalArgument(field, value, "give a duration greater than zero")
    return result


def non_negative_millis(value: Duration, field: str) -> Millis:
    """Return a duration in milliseconds, as `millis` does, and refuse negative durations."""
    result = millis(value, field)
    if result < 0:
        raise IllegalArgument(field, value, "give a duration of zero or more")
    return result


def saturating_add(timestamp: Millis, duration: Millis) -> Millis:
    """Return `timestamp + duration`, or `MIN_TIMESTAMP` or `MAX_TIMESTAMP` if the sum is outside the range of times.

    A watermark before the range fires nothing and makes no element late, as if there were none. A timer after the range
    fires at the end of input.
    """
    total = timestamp + duration
    return total if FIRST_TIME <= total < LAST_TIME else MIN_TIMESTAMP if total < FIRST_TIME else MAX_TIMESTAMP


def window_start(timestamp: Millis, offset: Millis, size: Millis) -> Millis:
    """Return the start of the window of `size` that contains `timestamp`. Negative times round down.

    Source: Flink's `TimeWindow.getWindowStartWithOffset`.
    """
    return timestamp - (timestamp - offset) % size


def aligned_before(timestamp: Millis, interval: Millis) -> Millis:
    """Return `timestamp` rounded towards zero to a multiple of `interval`.

    Flink's continuous triggers align their firings in this way: in Java, the remainder has the sign of the dividend,
    so a negative time rounds up.
    """
    return timestamp - timestamp % interval if timestamp >= 0 else timestamp + -timestamp % interval


def to_millis(moment: datetime) -> Millis:
    """Return a datetime as epoch milliseconds, rounded down. A datetime without a zone is in UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // _MILLISECOND


def from_millis(timestamp: Millis) -> datetime:
    """Return epoch milliseconds as a datetime in UTC.

    Raises:
        OverflowError: the time lies outside the years 1 to 9999.
    """
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp)


def show_millis(timestamp: Millis | None) -> str:
    """Return a timestamp as text: as `show_time` in UTC, `-` for None, or `end of input`.

    >>> show_millis(1_709_272_800_000)
    '2024-03-01T06:00:00Z'
    """
    if timestamp is None or timestamp == MIN_TIMESTAMP:
        return "-"
    if timestamp >= MAX_TIMESTAMP:
        return "end of input"
    try:
        return show_time(from_millis(timestamp))
    except OverflowError:
        return str(timestamp)


def show_time(moment: datetime) -> str:
    """Return a time in ISO 8601 with its offset, so that it means the same wherever it is pasted.

    Fractions of a second are shown only if there are any. A wall-clock time, which has no zone, has no offset either.

    >>> show_time(datetime(2024, 3, 1, 6, tzinfo=UTC)), show_time(datetime(2024, 3, 1, 6, 0, 0, 5000))
    ('2024-03-01T06:00:00Z', '2024-03-01T06:00:00.005')
    """
    fraction = "microseconds" if moment.microsecond % 1000 else "milliseconds" if moment.microsecond else "seconds"
    return moment.isoformat(timespec=fraction).replace("+00:00", "Z")


def show_watermark(watermark: Millis | None) -> str:
    """Return a watermark as readable text: `before` the time up to which everything has arrived.

    A watermark is the last millisecond that has passed, and a backfill of sessions stays two milliseconds short of the
    end of its interval, so 23:59:59.999 and 23:59:59.998 are both shown as `before` the next day.
    """
    if watermark is None or not MIN_TIMESTAMP < watermark < MAX_TIMESTAMP:
        return show_millis(watermark)
    reached = watermark + 1
    return f"before {show_millis(reached + 1 if reached % 1000 == 999 else reached)}"


def unit_of(duration: float) -> tuple[str, Millis]:
    """Return name and length of the largest unit that fits into a duration in milliseconds."""
    return next(((name, unit) for name, unit in _UNITS if abs(duration) >= unit), _UNITS[-1])


def show_duration(duration: float | None) -> str:
    """Return a duration in milliseconds as text in the largest unit that fits, such as `2.5 d`; `-` for None."""
    if duration is None:
        return "-"
    name, unit = unit_of(duration)
    number = duration / unit
    return f"{number:.3g} {name}" if abs(number) < 999.5 else f"{number:,.0f} {name}"


def show_length(duration: Millis) -> str:
    """Return a duration without rounding, in the largest unit that divides it.

    >>> show_length(5_400_000), show_length(86_400_000), show_length(1500), show_length(0)
    ('90 min', '1 d', '1500 ms', '0 ms')
    """
    name, unit = next((each for each in _UNITS if duration and duration % each[1] == 0), _UNITS[-1])
    return f"{duration // unit} {name}"


class TimeDomain(Enum):
    """A time domain: event time follows the watermark, processing time follows the clock."""

    EVENT_TIME = "event"
    PROCESSING_TIME = "processing"


EVENT_TIME, PROCESSING_TIME = TimeDomain

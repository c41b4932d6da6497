"""Arithmetic with times. Inside `windowing`, every time is int64 milliseconds since the epoch, in UTC.

Python integers are unbounded. So this module defines the smallest and the largest int64, and clamps sums that could
exceed them. In Flink, those sums overflow.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import TypeAlias

from tidegate.windowing.errors import IllegalArgument

Millis: TypeAlias = int
Duration: TypeAlias = timedelta | int

MIN_TIMESTAMP: Millis = -(2**63)
"""Watermark of a stream without events so far (Java's `Long.MIN_VALUE`)."""

MAX_TIMESTAMP: Millis = 2**63 - 1
"""Watermark at the end of input, and last timestamp of the global window (Java's `Long.MAX_VALUE`)."""

_MILLISECOND = timedelta(milliseconds=1)
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))


def millis(value: Duration, field: str) -> Millis:
    """Return a duration in milliseconds.

    Args:
        value: a `timedelta`, or an int of milliseconds.
        field: name of the value in the error.

    Raises:
        IllegalArgument: `value` has another type, or a part below one millisecond.
    """
    if isinstance(value, timedelta):
        whole, rest = divmod(value, _MILLISECOND)
        if rest:
            raise IllegalArgument(field, value, "give a whole number of milliseconds")
        return whole
    if isinstance(value, bool) or not isinstance(value, int):
        raise IllegalArgument(field, value, "give a datetime.timedelta, or an int of milliseconds")
    return value


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
    """Return `timestamp + duration`, clamped to int64."""
    return max(MIN_TIMESTAMP, min(MAX_TIMESTAMP, timestamp + duration))


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
    """Return a timestamp as readable text: ISO format in UTC, `-` for None, or `end of input`."""
    if timestamp is None or timestamp == MIN_TIMESTAMP:
        return "-"
    if timestamp >= MAX_TIMESTAMP:
        return "end of input"
    try:
        return (
            from_millis(timestamp)
            .isoformat(sep=" ", timespec="milliseconds")
            .removesuffix("+00:00")
            .removesuffix(".000")
        )
    except OverflowError:
        return str(timestamp)


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


class TimeDomain(Enum):
    """A time domain: event time follows the watermark, processing time follows the clock."""

    EVENT_TIME = "event"
    PROCESSING_TIME = "processing"


EVENT_TIME, PROCESSING_TIME = TimeDomain

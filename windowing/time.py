"""Time arithmetic: int64 milliseconds since the epoch, UTC, everywhere inside `windowing`.

Python integers do not wrap, so the two ends of int64 are named here and sums that could pass
them are clamped, where Flink's would overflow.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypeAlias

from tidegate.windowing.errors import IllegalArgument

Millis: TypeAlias = int
Duration: TypeAlias = timedelta | int

MIN_TIMESTAMP: Millis = -(2**63)
"""Watermark before any other: nothing is known yet (Java's `Long.MIN_VALUE`)."""

MAX_TIMESTAMP: Millis = 2**63 - 1
"""Watermark at the end of input, and the end of the global window (Java's `Long.MAX_VALUE`)."""

_MILLISECOND = timedelta(milliseconds=1)


def millis(value: Duration, field: str) -> Millis:
    """A duration in milliseconds.

    Args:
        value: a `timedelta`, or an int of milliseconds.
        field: the name to use in the error.

    Raises:
        IllegalArgument: if `value` is neither, or has a part below one millisecond.
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
    """As `millis`, and greater than zero."""
    result = millis(value, field)
    if result <= 0:
        raise IllegalArgument(field, value, "give a duration greater than zero")
    return result


def non_negative_millis(value: Duration, field: str) -> Millis:
    """As `millis`, and zero or greater."""
    result = millis(value, field)
    if result < 0:
        raise IllegalArgument(field, value, "give a duration of zero or more")
    return result


def saturating_add(timestamp: Millis, duration: Millis) -> Millis:
    """`timestamp + duration`, held inside int64."""
    return max(MIN_TIMESTAMP, min(MAX_TIMESTAMP, timestamp + duration))


def window_start(timestamp: Millis, offset: Millis, size: Millis) -> Millis:
    """Start of the window of `size` that holds `timestamp`; floored for negative times.

    Source: Flink's `TimeWindow.getWindowStartWithOffset`.
    """
    return timestamp - (timestamp - offset) % size


def aligned_before(timestamp: Millis, interval: Millis) -> Millis:
    """The multiple of `interval` at `timestamp` or next to it on the side of zero.

    Continuous triggers align this way: Java's remainder takes the sign of the dividend, so a
    negative time rounds up.
    """
    return timestamp - timestamp % interval if timestamp >= 0 else timestamp + -timestamp % interval


def to_millis(moment: datetime) -> Millis:
    """Epoch milliseconds of a datetime; one without a zone is taken as UTC. Floors microseconds."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // _MILLISECOND


def from_millis(timestamp: Millis) -> datetime:
    """The UTC datetime of an epoch millisecond.

    Raises:
        OverflowError: outside the years 1 to 9999.
    """
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=timestamp)


def show_millis(timestamp: Millis | None) -> str:
    """A timestamp as people read it: ISO text in UTC, or the name of a limit."""
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

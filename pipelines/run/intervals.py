"""Intervals of event time: parsed from options, cut into the slices of a backfill, and shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, time, timedelta, tzinfo
from itertools import pairwise

from dateutil.relativedelta import relativedelta

from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.manifest import Interval
from tidegate.windowing.time import Millis, from_millis, show_millis, to_millis

_UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days", "w": "weeks", "mo": "months"}
_SLICE = re.compile(r"(\d+)(s|min|h|d|w|mo)")
_DURATION = re.compile(r"(\d+)(ms|s|min|h|d|w)")


def parse_slice(text: str) -> relativedelta:
    """Parse the length of a slice: a number and a unit, such as `1d`, `6h` or `1mo` (a calendar month).

    Raises:
        UsageError: the text is not such a length, or is zero.
    """
    match = _SLICE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise UsageError(
            f"--slice {text!r}: give a number and a unit of {', '.join(_UNITS)}, such as 1d or 1mo{_minutes(text)}"
        )
    return relativedelta(**{_UNITS[match[2]]: int(match[1])})  # type: ignore[arg-type]


def parse_duration(text: str, field: str, or_zero: bool = False) -> timedelta:
    """Parse a length of time such as `200ms`, `5s` or `1min`. Months are refused: they have no fixed length.

    Raises:
        UsageError: the text is not such a length, is longer than a timedelta can be, or is zero without `or_zero`.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is not None and (or_zero or int(match[1])):
        with suppress(OverflowError):
            return timedelta(**{(_UNITS | {"ms": "milliseconds"})[match[2]]: int(match[1])})
    number = "a number" if or_zero else "a number above zero"
    raise UsageError(f"{field} {text!r}: give {number} and a unit of ms, s, min, h, d, w, such as 5s{_minutes(text)}")


def _minutes(text: str) -> str:
    """Return a hint for a number of minutes written as in other programs, otherwise an empty string."""
    match = re.fullmatch(r"(\d+) *(?:m|mins|minutes?)", text.strip())
    return f"; for minutes, {match[1]}min" if match else ""


def cut(start: datetime, end: datetime, length: relativedelta | None) -> Iterator[Interval]:
    """Cut `[start, end)` into slices; the last one may be shorter. Without a length, there is a single slice.

    Days, weeks and months are those of the calendar in the start's zone, so a day may have 23 or 25 hours. Other
    lengths are exact.

    Raises:
        UsageError: start is not before end.
    """
    begin, last, number = to_millis(start), to_millis(end), 0
    if begin >= last:
        raise UsageError(
            f"--start {show(start)} is not before --end {show(end)}: an interval includes its start, but not its end"
        )
    if length is not None and not _is_of_calendar(length):
        start = start.astimezone(UTC)
    while begin < last:
        number += 1
        # Times with one zone are compared by the wall clock, so they are compared as numbers.
        stop = last if length is None else min(last, to_millis(_shifted(start, length * number)))
        yield Interval(start=begin, end=stop)
        begin = stop


def _is_of_calendar(length: relativedelta) -> bool:
    return not (length.hours or length.minutes or length.seconds or length.microseconds)


def cut_gap(since: Millis, first: Interval, length: relativedelta | None, zone: tzinfo = UTC) -> list[Interval]:
    """Cut the time from `since` to an interval into slices like that interval; the first one may be shorter.

    Args:
        since: end of the intervals that were run, int64 epoch milliseconds.
        first: the interval after the gap.
        length: length of the slices; None for the interval's own length.
        zone: time zone of the calendar.
    """
    length = length or _length_of(first, zone)
    start, begin = _moment(first.start, length, zone), from_millis(since)
    ends = [start]
    while ends[-1] > begin:
        ends.append(max(begin, _shifted(start, -length * len(ends))))
    return [Interval(start=to_millis(low), end=to_millis(high)) for high, low in pairwise(ends)][::-1]


def interval_after(interval: Interval, start: Millis, zone: tzinfo = UTC) -> Interval:
    """Return the interval that begins at `start` (int64 epoch milliseconds) and is as long as another one.

    It is shorter if it would leave the years 1 to 9999.
    """
    length = _length_of(interval, zone)
    return Interval(start=start, end=to_millis(_shifted(_moment(start, length, zone), length)))


def _shifted(moment: datetime, length: relativedelta) -> datetime:
    """Return `moment + length`, or the first or last datetime if the sum has none."""
    try:
        return moment + length
    except (OverflowError, ValueError):
        # relativedelta is normalized, so its largest unit has the sign of the whole.
        parts = (length.years, length.months, length.days, length.hours, length.minutes, length.seconds)
        before = next((part for part in parts if part), 0) < 0
        return (datetime.min if before else datetime.max).replace(tzinfo=moment.tzinfo)


def _length_of(interval: Interval, zone: tzinfo) -> relativedelta:
    """Return the length of an interval: whole months or days of the zone's calendar if it covers them."""
    start, end = (from_millis(moment).astimezone(zone) for moment in (interval.start, interval.end))
    if start.time() == end.time() == time():
        months = relativedelta(end, start)
        is_whole = start.day == 1 and start + relativedelta(months=12 * months.years + months.months) == end
        return months if is_whole else relativedelta(days=(end.date() - start.date()).days)
    return relativedelta(microseconds=(interval.end - interval.start) * 1000)


def _moment(moment: Millis, length: relativedelta, zone: tzinfo) -> datetime:
    """Return a time to which lengths can be added: in the zone of the calendar, or in UTC if the length is exact."""
    return from_millis(moment).astimezone(zone if _is_of_calendar(length) else UTC)


def show(moment: datetime) -> str:
    """Return a time as text: as `show_time` in UTC."""
    return show_millis(to_millis(moment))


def describe(interval: Interval, zone: tzinfo | None = None) -> str:
    """Return an interval as text.

    Args:
        interval: the interval.
        zone: time zone of the pipeline's calendar. Whole days in it are shown as dates, which options such as `--start`
            read in that zone. None shows times in every case.
    """
    if zone is not None:
        start, end = (from_millis(moment).astimezone(zone) for moment in (interval.start, interval.end))
        if start.time() == end.time() == time():
            is_day = end.date() - start.date() == timedelta(days=1)
            return f"{start:%Y-%m-%d}" if is_day else f"{start:%Y-%m-%d} to {end:%Y-%m-%d}"
    return f"{show_millis(interval.start)} to {show_millis(interval.end)}"


def parse_moment(text: str, field: str, zone: tzinfo) -> datetime:
    """Parse a date or date-time in ISO format. Without a zone of its own, it is in the given one.

    Raises:
        UsageError: the text is neither.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(
            f"{field} {text!r}: give a date or date-time such as 2013-01-31 or 2013-01-31T06:00"
        ) from error
    return moment.replace(tzinfo=zone) if moment.tzinfo is None else moment

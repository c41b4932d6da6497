"""Calendar windows: days, weeks and months in a time zone.

A window begins and ends at local midnight, so a day on which the clocks change has 23 or 25 hours. If a day has no
midnight, its window begins at the first instant of the day. If a day has two midnights, its window begins at the first,
and if the clocks go back across midnight, the repeated evening belongs to the window that has already begun.

>>> from tidegate.windowing.assigners import CalendarEventTimeWindows
>>> from tidegate.windowing.time import show_millis, to_millis
>>> from datetime import datetime, timezone
>>> noon = to_millis(datetime(2024, 3, 31, 12, tzinfo=timezone.utc))
>>> day = CalendarEventTimeWindows.days("Europe/Berlin").assign_windows(None, noon, None)[0]
>>> show_millis(day.start), show_millis(day.end)
('2024-03-30T23:00:00Z', '2024-03-31T22:00:00Z')
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from enum import Enum
from functools import lru_cache
from typing import Any, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from tidegate.windowing.aggregates.vectorised import Int64s
from tidegate.windowing.assigners.arrays import Assigned, Assignment
from tidegate.windowing.assigners.base import AssignerContext, InTimeDomain
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.time import EVENT_TIME, LONGEST_DURATION, PROCESSING_TIME, Millis, from_millis, to_millis
from tidegate.windowing.windows import TimeWindow

_DAY = 86_400_000

_CYCLE = 146_097
"""Days of 400 years, after which months and weeks fall on the same days again."""

# Days are counted as in `date.toordinal`, with a margin for the offsets of zones.
_EPOCH_DAY, _EARLIEST, _LATEST = (date(*day).toordinal() for day in ((1970, 1, 1), (2, 1, 1), (9998, 12, 31)))
_FIRST, _END = (1 - _EPOCH_DAY) * _DAY, (date.max.toordinal() + 1 - _EPOCH_DAY) * _DAY
"""Bounds of the instants that have a calendar window, int64 epoch milliseconds."""


class CalendarUnit(Enum):
    """Unit of a calendar window, which holds one or more units."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


_DAYS_OF = {CalendarUnit.DAY: 1, CalendarUnit.WEEK: 7, CalendarUnit.MONTH: 31}
"""Largest number of days of each unit."""
_SHIFT = 2 * _DAY
"""Longer than any change of a zone's offset: zones have skipped and repeated whole days."""


@dataclass(frozen=True, slots=True)
class Calendar:
    """Periods of whole days, weeks or months in a time zone.

    Args:
        unit: day, week or month.
        zone: time zone, such as "Europe/Berlin".
        count: number of units in a period. Periods are counted from 1 January of year 1, so 3 months are a quarter and
            12 are a year.
        first_day: first day of a week, from 0 (Monday) to 6 (Sunday).

    Raises:
        IllegalArgument: the zone is unknown, the count is below 1, or the first day is not a day of the week.
    """

    unit: CalendarUnit
    zone: str
    count: int = 1
    first_day: int = 0

    def __post_init__(self) -> None:
        try:
            ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
            raise IllegalArgument("zone", self.zone, "give a time zone such as 'Europe/Berlin'") from error
        if isinstance(self.count, bool) or not isinstance(self.count, int) or self.count < 1:
            raise IllegalArgument("count", self.count, "give a whole number of units, 1 or more")
        if self.longest > LONGEST_DURATION:
            most = (LONGEST_DURATION - _SHIFT) // (_DAYS_OF[self.unit] * _DAY)
            raise IllegalArgument("count", self.count, f"give at most {most} {self.unit.value}s")
        if self.first_day not in range(7):
            raise IllegalArgument("first_day", self.first_day, "give 0 (Monday) to 6 (Sunday)")

    @property
    def longest(self) -> Millis:
        """An upper bound of the length of a period, milliseconds."""
        return self.count * _DAYS_OF[self.unit] * _DAY + _SHIFT

    def window_at(self, timestamp: Millis) -> TimeWindow:
        """Return the period that contains an instant, int64 epoch milliseconds.

        Raises:
            IllegalArgument: the instant is outside the years 1 to 9999.
        """
        if not _FIRST <= timestamp < _END:
            raise IllegalArgument("timestamp", timestamp, "calendar windows need a time in years 1 to 9999")
        window = _period(self, _local_day(timestamp, self.zone))
        while timestamp >= window.end:
            window = _period(self, _local_day(window.end, self.zone))
        return window

    def assign(self, timestamps: Int64s) -> Assigned:
        """Return the periods of many instants, int64 epoch milliseconds.

        Raises:
            IllegalArgument: as in `window_at`.
        """
        # A period lasts at least one local day, so a UTC day overlaps only a few windows, and they are consecutive.
        windows = set()
        for day in np.unique(timestamps // _DAY).tolist():
            window = self.window_at(day * _DAY)
            windows.add(window)
            while window.end < min((day + 1) * _DAY, _END):
                window = self.window_at(window.end)
                windows.add(window)
        bounds = np.array(sorted(windows), np.int64).reshape(-1, 2)
        places = np.searchsorted(bounds[:, 0], timestamps, side="right") - 1
        return Assigned(rows=np.arange(len(timestamps)), starts=bounds[places, 0], ends=bounds[places, 1])


@lru_cache(maxsize=4096)
def _period(calendar: Calendar, day: int) -> TimeWindow:
    """Return the period that contains a local day. It ends when the next period begins."""
    if calendar.unit is CalendarUnit.MONTH:
        date_, days = _in_years(day)
        month = date_.year * 12 + date_.month - 1 + days // _CYCLE * 4_800
        first = month - (month - 12) % calendar.count
        starts = [_first_of_month(first), _first_of_month(first + calendar.count)]
    else:
        days, shift = (7, calendar.first_day) if calendar.unit is CalendarUnit.WEEK else (1, 0)
        length = days * calendar.count
        # 1 January of year 1 is day 1, and a Monday.
        first = day - (day - 1 - shift) % length
        starts = [first, first + length]
    start, end = (_first_instant(start, calendar.zone) for start in starts)
    return TimeWindow(start, end)


def _first_of_month(month: int) -> int:
    """Return the first day of a month; months are counted from January of year 0."""
    cycles = (month - 24) // 4_800
    month -= cycles * 4_800
    return date(month // 12, month % 12 + 1, 1).toordinal() + cycles * _CYCLE


def _first_instant(day: int, zone: str) -> Millis:
    """Return the first instant at which the local day is this one or a later one."""
    date_, days = _in_years(day)
    midnight = datetime.combine(date_, time(0), ZoneInfo(zone))
    start = to_millis(midnight)
    if _wall_clock(start, zone) != midnight.replace(tzinfo=None):
        # The clocks skip this midnight: the first instant is the end of the skipped time.
        skipped = range(to_millis(midnight.replace(fold=1)), start)
        start = skipped.start + bisect_left(skipped, date_, key=lambda instant: _wall_clock(instant, zone).date())
    return start + days * _DAY


def _local_day(timestamp: Millis, zone: str) -> int:
    _, days = _in_years(timestamp // _DAY + _EPOCH_DAY)
    return _wall_clock(timestamp - days * _DAY, zone).toordinal() + days


def _wall_clock(timestamp: Millis, zone: str) -> datetime:
    return from_millis(timestamp).astimezone(ZoneInfo(zone)).replace(tzinfo=None)


def _in_years(day: int) -> tuple[date, int]:
    """Return an equivalent day that Python supports, and how many days (whole cycles of 400 years) lie between."""
    cycles = (day - _EARLIEST) // _CYCLE if day < _EARLIEST else max(0, (day - _LATEST) // _CYCLE + 1)
    return date.fromordinal(day - cycles * _CYCLE), cycles * _CYCLE


@dataclass(frozen=True, slots=True)
class CalendarWindows(InTimeDomain):
    """Calendar windows of a time domain.

    Raises:
        IllegalArgument: as in `Calendar`.
    """

    calendar: Calendar

    def __post_init__(self) -> None:
        if not isinstance(self.calendar, Calendar):
            raise IllegalArgument("calendar", self.calendar, "use days(zone), weeks(zone) or months(zone)")

    @classmethod
    def days(cls, zone: str, count: int = 1) -> Self:
        """Create windows of `count` days, from midnight to midnight."""
        return cls(Calendar(CalendarUnit.DAY, zone, count))

    @classmethod
    def weeks(cls, zone: str, count: int = 1, first_day: int = 0) -> Self:
        """Create windows of `count` weeks, each from midnight at the start of `first_day` (0 is Monday)."""
        return cls(Calendar(CalendarUnit.WEEK, zone, count, first_day))

    @classmethod
    def months(cls, zone: str, count: int = 1) -> Self:
        """Create windows of `count` months, each from midnight at a month's start: 3 for quarters, 12 for years."""
        return cls(Calendar(CalendarUnit.MONTH, zone, count))

    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[TimeWindow]:
        time = self.time_of(timestamp, ctx)
        return (self.calendar.window_at(time),)

    @property
    def longest_window(self) -> Millis:
        return self.calendar.longest

    @property
    def array_assignment(self) -> Assignment | None:
        return self.calendar.assign if self.domain is EVENT_TIME else None


class CalendarEventTimeWindows(CalendarWindows):
    """Calendar windows of event time."""

    domain = EVENT_TIME


class CalendarProcessingTimeWindows(CalendarWindows):
    """Calendar windows of processing time."""

    domain = PROCESSING_TIME

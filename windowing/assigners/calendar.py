"""Windows by the calendar of a time zone: days, weeks and months as people there count them.

A window runs from local midnight to local midnight, so a day has 23 or 25 hours where the clocks
change. Where midnight does not exist the day begins with its first instant, where it happens twice
with the first of the two.

>>> from tidegate.windowing.assigners import CalendarEventTimeWindows
>>> from tidegate.windowing.time import show_millis, to_millis
>>> from datetime import datetime, timezone
>>> noon = to_millis(datetime(2024, 3, 31, 12, tzinfo=timezone.utc))
>>> day = CalendarEventTimeWindows.days("Europe/Berlin").assign_windows(None, noon, None)[0]
>>> show_millis(day.start), show_millis(day.end)
('2024-03-30 23:00:00', '2024-03-31 22:00:00')
"""

from __future__ import annotations

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
from tidegate.windowing.assigners.base import AssignerContext, InTimeDomain, WindowAssigner
from tidegate.windowing.errors import IllegalArgument, MissingTimestamp
from tidegate.windowing.time import Millis, from_millis, to_millis
from tidegate.windowing.time_domain import EVENT_TIME, PROCESSING_TIME
from tidegate.windowing.windows import TimeWindow

_DAY = 86_400_000


class CalendarUnit(Enum):
    """The unit of which a calendar window holds a number."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"


@dataclass(frozen=True, slots=True)
class Calendar:
    """Periods of whole days, weeks or months in a time zone.

    Args:
        unit: day, week or month.
        zone: time zone such as "Europe/Berlin".
        count: units in a period, counted from 1 January of year 1: 3 months are quarters, 12 are years.
        first_day: day on which a week begins, 0 for Monday to 6 for Sunday.

    Raises:
        IllegalArgument: an unknown zone, a count below 1, a first day that is no day of the week.
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
        if self.first_day not in range(7):
            raise IllegalArgument("first_day", self.first_day, "give 0 (Monday) to 6 (Sunday)")

    def window_at(self, timestamp: Millis) -> TimeWindow:
        """The period that holds an instant, int64 epoch milliseconds.

        Raises:
            IllegalArgument: the instant lies outside the years that a calendar has, 1 to 9999.
        """
        try:
            return _period(self, from_millis(timestamp).astimezone(ZoneInfo(self.zone)).date())
        except (OverflowError, ValueError) as error:
            raise IllegalArgument("timestamp", timestamp, "calendar windows need a time in years 1 to 9999") from error

    def assign(self, timestamps: Int64s) -> Assigned:
        """The periods of many instants, int64 epoch milliseconds.

        Raises:
            IllegalArgument: as `window_at`.
        """
        # A period is at least a local day, so the windows of an UTC day are few, and one after the other.
        windows = set()
        for day in np.unique(timestamps // _DAY).tolist():
            window = self.window_at(day * _DAY)
            windows.add(window)
            while window.end < (day + 1) * _DAY:
                window = self.window_at(window.end)
                windows.add(window)
        bounds = np.array(sorted(windows), np.int64).reshape(-1, 2)
        places = np.searchsorted(bounds[:, 0], timestamps, side="right") - 1
        return Assigned(rows=np.arange(len(timestamps)), starts=bounds[places, 0], ends=bounds[places, 1])


@lru_cache(maxsize=4096)
def _period(calendar: Calendar, day: date) -> TimeWindow:
    """The period that holds a local day; the ends of neighbours are the same instant by construction."""
    if calendar.unit is CalendarUnit.MONTH:
        month = day.year * 12 + day.month - 1
        first = month - (month - 12) % calendar.count
        starts = [date(month // 12, month % 12 + 1, 1) for month in (first, first + calendar.count)]
    else:
        days, shift = (7, calendar.first_day) if calendar.unit is CalendarUnit.WEEK else (1, 0)
        length = days * calendar.count
        # 1 January of year 1 is day 1, and a Monday.
        first = day.toordinal() - (day.toordinal() - 1 - shift) % length
        starts = [date.fromordinal(first), date.fromordinal(first + length)]
    zone = ZoneInfo(calendar.zone)
    start, end = (to_millis(datetime.combine(start, time(0), zone)) for start in starts)
    return TimeWindow(start, end)


@dataclass(frozen=True, slots=True)
class CalendarWindows(InTimeDomain, WindowAssigner):
    """Days, weeks or months of a time domain.

    Raises:
        IllegalArgument: see `Calendar`.
    """

    calendar: Calendar

    def __post_init__(self) -> None:
        if not isinstance(self.calendar, Calendar):
            raise IllegalArgument("calendar", self.calendar, "use days(zone), weeks(zone) or months(zone)")

    @classmethod
    def days(cls, zone: str, count: int = 1) -> Self:
        """From midnight to midnight."""
        return cls(Calendar(CalendarUnit.DAY, zone, count))

    @classmethod
    def weeks(cls, zone: str, count: int = 1, first_day: int = 0) -> Self:
        """From the midnight that begins `first_day` (0 is Monday)."""
        return cls(Calendar(CalendarUnit.WEEK, zone, count, first_day))

    @classmethod
    def months(cls, zone: str, count: int = 1) -> Self:
        """From the midnight that begins the first; 3 are quarters, 12 are years."""
        return cls(Calendar(CalendarUnit.MONTH, zone, count))

    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[TimeWindow]:
        time = timestamp if self.domain is EVENT_TIME else ctx.current_processing_time
        if time is None:
            raise MissingTimestamp
        return (self.calendar.window_at(time),)

    @property
    def needs_rows(self) -> None:
        return None

    @property
    def array_assignment(self) -> Assignment | None:
        return self.calendar.assign if self.domain is EVENT_TIME else None


class CalendarEventTimeWindows(CalendarWindows):
    """`CalendarWindows` of event time."""

    __slots__ = ()

    domain = EVENT_TIME


class CalendarProcessingTimeWindows(CalendarWindows):
    """`CalendarWindows` of processing time."""

    __slots__ = ()

    domain = PROCESSING_TIME

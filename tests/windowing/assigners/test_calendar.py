"""Calendar windows: local midnights, whatever the clocks do."""

from __future__ import annotations

from bisect import bisect_left
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, available_timezones

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing import CalendarEventTimeWindows, Sum, Windows
from tidegate.windowing.assigners import Calendar, CalendarUnit, WindowAssigner
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.testing import window_harness
from tidegate.windowing.time import Millis, from_millis, to_millis
from tidegate.windowing.windows import TimeWindow

HOUR = 3_600_000
START_OF_YEARS, END_OF_YEARS = -62_135_596_800_000, 253_402_300_800_000


class At:
    """An assigner's context with nothing but a clock."""

    def __init__(self, clock: Millis = 0) -> None:
        self.current_processing_time = clock


def at(text: str, zone: str) -> Millis:
    return to_millis(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)))


def window(assigner: WindowAssigner, timestamp: Millis) -> TimeWindow:
    (only,) = assigner.assign_windows(None, timestamp, At())
    assert isinstance(only, TimeWindow)
    return only


@pytest.mark.parametrize(
    ("day", "hours"), [("2024-03-30", 24), ("2024-03-31", 23), ("2024-10-27", 25), ("2024-10-28", 24)]
)
def test_a_day_has_the_hours_that_the_clocks_give_it(day: str, hours: int) -> None:
    days = CalendarEventTimeWindows.days("Europe/Berlin")
    start = at(day, "Europe/Berlin")
    assert window(days, at(f"{day}T15:00", "Europe/Berlin")) == (start, start + hours * HOUR)


@pytest.mark.parametrize(
    ("zone", "begins", "hours"),
    [
        pytest.param("Asia/Beirut", datetime(2024, 3, 30, 22), 23, id="from 2024-03-31 00:00 to 01:00"),
        pytest.param("America/Havana", datetime(2024, 11, 3, 4), 25, id="from 2024-11-03 01:00 back to 00:00"),
        pytest.param("America/St_Johns", datetime(2007, 11, 4, 2, 30), 25, id="from 2007-11-04 00:01 back to 23:01"),
        pytest.param("America/Toronto", datetime(1919, 3, 31, 4, 30), 23.5, id="from 1919-03-30 23:30 to 00:30"),
    ],
)
def test_a_day_begins_once_where_the_clocks_move_around_its_midnight(zone: str, begins: datetime, hours: float) -> None:
    days = CalendarEventTimeWindows.days(zone)
    first = to_millis(begins.replace(tzinfo=UTC))
    assert window(days, first) == window(days, first + HOUR) == (first, first + hours * HOUR)
    assert window(days, first - 1).end == first


def test_a_week_begins_on_its_first_day() -> None:
    wednesday = at("2024-05-15T12:00", "Europe/Berlin")
    monday, sunday = at("2024-05-13", "Europe/Berlin"), at("2024-05-12", "Europe/Berlin")
    assert window(CalendarEventTimeWindows.weeks("Europe/Berlin"), wednesday).start == monday
    assert window(CalendarEventTimeWindows.weeks("Europe/Berlin", first_day=6), wednesday).start == sunday


@pytest.mark.parametrize(
    ("count", "start", "end"),
    [(1, "2024-02-01", "2024-03-01"), (3, "2024-01-01", "2024-04-01"), (12, "2024-01-01", "2025-01-01")],
)
def test_months_make_quarters_and_years(count: int, start: str, end: str) -> None:
    zone = "America/New_York"
    months = CalendarEventTimeWindows.months(zone, count)
    assert window(months, at("2024-02-29T23:59:59.999", zone)) == (at(start, zone), at(end, zone))


AT_NIGHT = [
    "America/Goose_Bay",
    "America/Havana",
    "America/Moncton",
    "America/St_Johns",
    "America/Toronto",
    "Antarctica/Casey",
    "Asia/Beirut",
    "Pacific/Apia",
]
"""Zones whose clocks change at midnight or a few minutes after it."""


def changes_of(zone: str, year: int) -> list[Millis]:
    """Return the instants of a year at which the clocks of a zone change, and the start of the year."""

    def offset(instant: Millis) -> timedelta | None:
        return from_millis(instant).astimezone(ZoneInfo(zone)).utcoffset()

    start = to_millis(datetime(year, 1, 1, tzinfo=UTC))
    days = [range(start + day * 24 * HOUR, start + (day + 7) * 24 * HOUR) for day in range(0, 366, 7)]
    moved = [day for day in days if offset(day.start) != offset(day.stop)]

    def change(day: range) -> Millis:
        return day.start + bisect_left(day, True, key=lambda instant: offset(instant) != offset(day.start))

    return [start, *map(change, moved)]


@given(st.data())
def test_windows_tile_time_and_hold_what_they_are_given(data: st.DataObject) -> None:
    zone = data.draw(st.sampled_from(AT_NIGHT) | st.sampled_from(sorted(available_timezones())))
    change = data.draw(st.sampled_from(changes_of(zone, data.draw(st.integers(1890, 2100)))))
    minutes = data.draw(st.integers(-180, 180) | st.integers(-500_000, 500_000))
    timestamp = change + minutes * 60_000 + data.draw(st.sampled_from([-1, 0, 1]))
    calendar = Calendar(data.draw(st.sampled_from(CalendarUnit)), zone, data.draw(st.integers(1, 5)))
    here = calendar.window_at(timestamp)
    assert here.start <= timestamp < here.end
    assert calendar.window_at(here.start) == here == calendar.window_at(here.end - 1)
    assert calendar.window_at(here.end).start == here.end
    assert calendar.window_at(here.start - 1).end == here.start
    instants = np.array([timestamp, here.start, here.end - 1, here.end, timestamp + 24 * HOUR], np.int64)
    columnar = calendar.assign(instants)
    expected = [calendar.window_at(instant) for instant in instants.tolist()]
    assert list(zip(columnar.starts.tolist(), columnar.ends.tolist(), strict=True)) == expected


def test_days_go_through_the_operator() -> None:
    run = window_harness(Windows(CalendarEventTimeWindows.days("Europe/Berlin"), aggregate={"sum": Sum("x")}))
    midnight = at("2024-03-31", "Europe/Berlin")
    for hour in range(-1, 24):
        run.element("a", {"x": 1}, midnight + hour * HOUR)
    run.watermark(midnight + 48 * HOUR)
    assert [result.value["sum"] for result in run.results()] == [1, 23, 1]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize("unit", CalendarUnit)
@pytest.mark.parametrize("count", [1, 7])
def test_a_period_may_end_after_the_year_9999_and_begin_before_the_year_1(
    zone: str, unit: CalendarUnit, count: int
) -> None:
    calendar = Calendar(unit, zone, count)
    for instant in (END_OF_YEARS - 1, END_OF_YEARS - 24 * HOUR, START_OF_YEARS, START_OF_YEARS + 24 * HOUR):
        here = calendar.window_at(instant)
        assert here.start <= instant < here.end
        columnar = calendar.assign(np.array([instant], np.int64))
        assert (columnar.starts[0], columnar.ends[0]) == here
    assert Calendar(CalendarUnit.MONTH, "UTC").window_at(END_OF_YEARS - 1) == (
        END_OF_YEARS - 31 * 24 * HOUR,
        END_OF_YEARS,
    )


@pytest.mark.parametrize("instant", [END_OF_YEARS, START_OF_YEARS - 1])
def test_an_instant_without_a_calendar_date_is_refused(instant: Millis) -> None:
    days = CalendarEventTimeWindows.days("UTC")
    with pytest.raises(IllegalArgument, match="years 1 to 9999"):
        window(days, instant)
    with pytest.raises(IllegalArgument, match="years 1 to 9999"):
        days.calendar.assign(np.array([instant], np.int64))

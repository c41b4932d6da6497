"""Calendar windows: local midnights, whatever the clocks do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing import CalendarEventTimeWindows, CalendarProcessingTimeWindows, Sum, Windows
from tidegate.windowing.assigners import Calendar, CalendarUnit, WindowAssigner
from tidegate.windowing.errors import IllegalArgument, MissingTimestamp
from tidegate.windowing.testing import window_harness
from tidegate.windowing.time import Millis, from_millis, to_millis
from tidegate.windowing.windows import TimeWindow

HOUR = 3_600_000


class At:
    """An assigner's context: only a clock."""

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


def test_a_day_whose_midnight_does_not_exist_begins_with_its_first_instant() -> None:
    # In Beirut the clocks went from 2024-03-31 00:00 to 01:00.
    days = CalendarEventTimeWindows.days("Asia/Beirut")
    first = to_millis(datetime(2024, 3, 30, 22, tzinfo=UTC))
    assert window(days, first) == (first, first + 23 * HOUR)
    assert window(days, first - 1).end == first


def test_a_day_whose_midnight_happens_twice_begins_with_the_first() -> None:
    # In Havana the clocks went from 2024-11-03 01:00 back to 00:00.
    days = CalendarEventTimeWindows.days("America/Havana")
    first = to_millis(datetime(2024, 11, 3, 4, tzinfo=UTC))
    assert window(days, first) == (first, first + 25 * HOUR)
    assert window(days, first + HOUR) == (first, first + 25 * HOUR)


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


@given(
    st.integers(to_millis(datetime(1890, 1, 1, tzinfo=UTC)), to_millis(datetime(2100, 1, 1, tzinfo=UTC))),
    st.sampled_from(["Europe/Berlin", "America/Havana", "Asia/Beirut", "Pacific/Apia", "Australia/Lord_Howe", "UTC"]),
    st.sampled_from(CalendarUnit),
    st.integers(1, 5),
)
def test_windows_tile_time_and_hold_what_they_are_given(
    timestamp: Millis, zone: str, unit: CalendarUnit, count: int
) -> None:
    calendar = Calendar(unit, zone, count)
    here = calendar.window_at(timestamp)
    assert here.start <= timestamp < here.end
    assert calendar.window_at(here.start) == here == calendar.window_at(here.end - 1)
    assert calendar.window_at(here.end).start == here.end
    assert calendar.window_at(here.start - 1).end == here.start


def test_processing_time_windows_go_by_the_clock() -> None:
    clock = at("2024-03-31T15:00", "Europe/Berlin")
    (only,) = CalendarProcessingTimeWindows.days("Europe/Berlin").assign_windows(None, None, At(clock))
    assert only.end - only.start == 23 * HOUR


def test_days_go_through_the_operator() -> None:
    run = window_harness(Windows(CalendarEventTimeWindows.days("Europe/Berlin"), aggregate={"sum": Sum("x")}))
    midnight = at("2024-03-31", "Europe/Berlin")
    for hour in range(-1, 24):
        run.element("a", {"x": 1}, midnight + hour * HOUR)
    run.watermark(midnight + 48 * HOUR)
    assert [result.value["sum"] for result in run.results()] == [1, 23, 1]


def test_an_instant_without_a_calendar_date_is_refused() -> None:
    with pytest.raises(IllegalArgument, match="years 1 to 9999"):
        window(CalendarEventTimeWindows.days("UTC"), to_millis(datetime(9999, 12, 31, 12, tzinfo=UTC)))


def test_an_element_without_a_timestamp_is_refused() -> None:
    with pytest.raises(MissingTimestamp):
        CalendarEventTimeWindows.days("UTC").assign_windows(None, None, At())


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: CalendarEventTimeWindows.days("Europe/Atlantis"), "zone"),
        (lambda: CalendarEventTimeWindows.months("UTC", 0), "count"),
        (lambda: CalendarEventTimeWindows.weeks("UTC", first_day=7), "first_day"),
        (lambda: CalendarProcessingTimeWindows("days"), "calendar"),
    ],
)
def test_bad_settings_are_refused_with_their_field(make: object, field: str) -> None:
    with pytest.raises(IllegalArgument) as raised:
        make()  # type: ignore[operator]
    assert raised.value.field == field


def test_equal_settings_make_equal_assigners() -> None:
    assert CalendarEventTimeWindows.days("UTC") == CalendarEventTimeWindows.days("UTC")
    assert hash(CalendarEventTimeWindows.days("UTC")) == hash(CalendarEventTimeWindows.days("UTC"))
    assert CalendarEventTimeWindows.days("UTC") != CalendarEventTimeWindows.weeks("UTC")
    assert from_millis(window(CalendarEventTimeWindows.days("UTC"), 5).end) - from_millis(0) == timedelta(days=1)

"""Times, durations and sizes as users write them. A cron expression ticks in a stream as in Airflow, by croniter."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from croniter import CroniterError, croniter

from tidegate.pipelines.definition.config.cron import check_cron, has_tick
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.manifest import Interval
from tidegate.pipelines.project.given import size_of
from tidegate.pipelines.run.intervals import (
    cut,
    cut_gap,
    describe,
    interval_after,
    parse_duration,
    parse_moment,
    parse_slice,
)
from tidegate.windowing.time import to_millis

MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")

WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")

PRESETS = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@quarterly", "@yearly", "@annually")


def field(draw: random.Random, low: int, high: int, names: tuple[str, ...] = ()) -> str:
    def number() -> str:
        value = draw.randint(low, high)
        return draw.choice([str(value), *([names[value - low]] if names else [])])

    step, first = draw.randint(2, 9), draw.randint(low, high)
    # croniter has its own reading of a range as long as its field, such as 5-4 or 5-5.
    last = low + (first - low + draw.randint(1, 3)) % (high - low + 1)
    texts = ["*", "*", f"*/{step}", f"{number()}/{step}", number(), f"{number()},{number()}", f"{first}-{last}"]
    return draw.choice(texts)


def expression(draw: random.Random) -> str:
    if draw.random() < 0.1:
        return draw.choice(PRESETS)
    of_month = draw.choice([field(draw, 1, 28), "?", "l"])
    of_week = draw.choice(
        [*[field(draw, 0, 6, WEEKDAYS)] * 4, f"{draw.randint(0, 6)}#{draw.randint(1, 4)}", "l5", "5-7"]
    )
    fields = [field(draw, 0, 59), field(draw, 0, 23), of_month, field(draw, 1, 12, MONTHS), of_week]
    return " ".join([*fields, *([str(draw.randint(0, 59))] if draw.random() < 0.1 else [])])


@pytest.mark.parametrize("seed", range(10))
def test_the_next_tick_is_that_of_croniter(seed: int) -> None:
    draw, compared = random.Random(seed), 0
    while compared < 60:
        value = check_cron(expression(draw))
        now = datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=draw.randrange(366 * 86_400))
        try:
            tick = croniter(value, now).get_next(datetime)
        except CroniterError:
            continue
        compared += 1
        if tick - now > timedelta(days=1):
            assert not has_tick(value, to_millis(now), to_millis(now + timedelta(days=1))), (value, now, tick)
        else:
            assert not has_tick(value, to_millis(now), to_millis(tick) - 1), (value, now, tick)
            assert has_tick(value, to_millis(now), to_millis(tick)), (value, now, tick)


def test_a_tick_is_in_its_time_zone_also_after_the_clocks_changed() -> None:
    for day, hour in ((datetime(2024, 3, 30, tzinfo=UTC), 3), (datetime(2024, 4, 1, tzinfo=UTC), 2)):
        tick = to_millis(day + timedelta(hours=hour))
        assert has_tick("0 4 * * *", tick - 1000, tick, "Europe/Berlin")
        assert not has_tick("0 4 * * *", tick, tick + 3_000_000, "Europe/Berlin")


def test_a_tick_counts_once() -> None:
    tick = to_millis(datetime(2024, 3, 1, 4, tzinfo=UTC))
    assert has_tick("0 4 * * *", tick - 1000, tick)
    assert not has_tick("0 4 * * *", tick, tick + 1000)
    assert not has_tick("0 4 * * *", tick, tick)


def day(month: int, number: int, hour: int = 0) -> datetime:
    return datetime(2013, month, number, hour, tzinfo=UTC)


def span(start: datetime, end: datetime) -> Interval:
    return Interval(start=to_millis(start), end=to_millis(end))


def test_without_a_length_the_whole_is_one_interval() -> None:
    assert list(cut(day(1, 1), day(3, 1), None)) == [span(day(1, 1), day(3, 1))]


def test_slices_touch_and_the_last_one_is_cut_short() -> None:
    assert list(cut(day(1, 1), day(1, 2, 6), parse_slice("12h"))) == [
        span(day(1, 1), day(1, 1, 12)),
        span(day(1, 1, 12), day(1, 2)),
        span(day(1, 2), day(1, 2, 6)),
    ]


def test_months_are_calendar_months_also_from_the_31st() -> None:
    assert list(cut(day(1, 31), day(4, 30), parse_slice("1mo"))) == [
        span(day(1, 31), day(2, 28)),
        span(day(2, 28), day(3, 31)),
        span(day(3, 31), day(4, 30)),
    ]


@pytest.mark.parametrize(
    ("date", "length", "hours"),
    [((2024, 3, 31), "1h", [1] * 23), ((2024, 10, 27), "1h", [1] * 25), ((2024, 3, 30), "1d", [24, 23, 24])],
)
def test_hours_are_exact_and_days_are_those_of_the_zone_when_summer_time_begins_or_ends(
    date: tuple[int, int, int], length: str, hours: list[int]
) -> None:
    start = datetime(*date, tzinfo=ZoneInfo("Europe/Berlin"))
    slices = list(cut(start, start + timedelta(days=3 if length == "1d" else 1), parse_slice(length)))
    assert [(each.end - each.start) // 3_600_000 for each in slices] == hours
    assert all(before.end == after.start for before, after in pairwise(slices))


@pytest.mark.parametrize(
    ("since", "first", "length", "starts"),
    [
        (day(1, 1), (day(1, 4), day(1, 5)), None, [day(1, 1), day(1, 2), day(1, 3)]),
        (day(1, 1, 6), (day(1, 3), day(1, 4)), None, [day(1, 1, 6), day(1, 2)]),
        (day(1, 1), (day(4, 1), day(5, 1)), None, [day(1, 1), day(2, 1), day(3, 1)]),
        (day(1, 20), (day(4, 1), day(7, 1)), None, [day(1, 20)]),
        (day(1, 1), (day(1, 2), day(1, 2, 1)), "12h", [day(1, 1), day(1, 1, 12)]),
        (day(1, 4), (day(1, 4), day(1, 5)), None, []),
        (day(1, 5), (day(1, 4), day(1, 5)), None, []),
    ],
)
def test_a_gap_is_cut_into_intervals_like_the_one_after_it(
    since: datetime, first: tuple[datetime, datetime], length: str | None, starts: list[datetime]
) -> None:
    slices = cut_gap(to_millis(since), span(*first), None if length is None else parse_slice(length))
    assert slices == [span(start, end) for start, end in pairwise([*starts, first[0]])]


BERLIN = ZoneInfo("Europe/Berlin")


def local(month: int, number: int, hour: int = 0) -> datetime:
    return datetime(2024, month, number, hour, tzinfo=BERLIN)


@pytest.mark.parametrize(
    ("since", "first", "length", "starts"),
    [
        (local(3, 29), (local(4, 1), local(4, 2)), None, [local(3, 29), local(3, 30), local(3, 31)]),
        (local(10, 25), (local(10, 27), local(10, 28)), None, [local(10, 25), local(10, 26)]),
        (local(10, 25), (local(10, 29), local(10, 30)), "1d", [local(10, each) for each in (25, 26, 27, 28)]),
        (local(2, 1), (local(4, 1), local(5, 1)), None, [local(2, 1), local(3, 1)]),
        (local(10, 26, 22), (local(10, 27, 5), local(10, 27, 6)), "6h", [local(10, 26, 22), local(10, 27)]),
    ],
)
def test_a_gap_is_cut_into_days_and_months_of_the_pipelines_calendar(
    since: datetime, first: tuple[datetime, datetime], length: str | None, starts: list[datetime]
) -> None:
    slices = cut_gap(to_millis(since), span(*first), None if length is None else parse_slice(length), BERLIN)
    assert slices == [span(start, end) for start, end in pairwise([*starts, first[0]])]


def test_the_interval_after_a_short_day_is_a_whole_day() -> None:
    following = interval_after(span(local(3, 31), local(4, 1)), to_millis(local(4, 1)), BERLIN)
    assert following == span(local(4, 1), local(4, 2))
    hour = interval_after(span(local(10, 27, 1), local(10, 27, 2)), to_millis(local(10, 27, 2)), BERLIN)
    assert hour.end - hour.start == 3_600_000


@pytest.mark.parametrize("text", ["", "1", "d", "0d", "-1d", "1.5d", "1y", "1 day", "1M", "1d1h"])
def test_a_slice_is_a_number_and_a_unit(text: str) -> None:
    with pytest.raises(UsageError, match="--slice"):
        parse_slice(text)


@pytest.mark.parametrize("end", [day(1, 2), day(1, 1)])
def test_a_start_that_is_not_before_the_end_is_refused_with_both(end: datetime) -> None:
    with pytest.raises(UsageError, match=r"--start 2013-01-02T00:00:00Z is not before --end 2013-01-0"):
        list(cut(day(1, 2), end, None))


def test_a_moment_without_a_zone_is_in_the_given_one_and_one_with_a_zone_keeps_its_instant() -> None:
    assert parse_moment("2024-04-01", "--start", BERLIN) == local(4, 1)
    assert parse_moment("2024-04-01T00:00Z", "--start", BERLIN) == datetime(2024, 4, 1, tzinfo=UTC)
    assert parse_moment("2013-01-31", "--start", UTC) == day(1, 31)
    assert parse_moment("2013-01-31T07:00+01:00", "--start", UTC) == day(1, 31, 6)


def test_a_duration_in_minutes_that_is_written_as_elsewhere_is_refused_with_its_spelling() -> None:
    with pytest.raises(UsageError, match=r"--bound '5m': .*; for minutes, 5min$"):
        parse_duration("5m", "--bound")
    with pytest.raises(UsageError, match=r"--slice '90 minutes': .*; for minutes, 90min$"):
        parse_slice("90 minutes")
    assert (parse_duration("5min", "--bound"), parse_slice("90min")) == (
        timedelta(minutes=5),
        parse_slice("1h") + parse_slice("30min"),
    )


@pytest.mark.parametrize("text", ["", "tomorrow", "31.01.2013", "2013-02-30", "2013-01-31T25:00"])
def test_a_bad_date_is_refused_with_the_option_named(text: str) -> None:
    with pytest.raises(UsageError, match=r"--end .*give a date or date-time"):
        parse_moment(text, "--end", UTC)


def test_an_interval_is_described_as_briefly_as_it_can_be() -> None:
    assert describe(span(day(1, 1), day(1, 2)), UTC) == "2013-01-01"
    assert describe(span(day(1, 1), day(1, 8)), UTC) == "2013-01-01 to 2013-01-08"
    assert describe(span(day(1, 1), day(1, 2)), BERLIN) == "2013-01-01T00:00:00Z to 2013-01-02T00:00:00Z"
    assert describe(span(local(3, 31), local(4, 1)), BERLIN) == "2024-03-31"
    assert describe(span(day(1, 1, 6), day(1, 1, 12))) == "2013-01-01T06:00:00Z to 2013-01-01T12:00:00Z"


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("1k", 1024), ("64M", 64 * 1024**2), ("2 GiB", 2 * 1024**3), ("1tb", 1024**4)]
)
def test_a_size_is_a_number_with_a_unit_of_1024(text: str, size: int) -> None:
    assert size_of(text, "--max-bytes-per-epoch") == size


@pytest.mark.parametrize("text", ["", "0", "0m", "much", "1.5g", "-1", "1x", "g"])
def test_what_is_no_size_is_told_with_the_option_and_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"--max-bytes-per-epoch .*bytes above zero.*512m"):
        size_of(text, "--max-bytes-per-epoch")

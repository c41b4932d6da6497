from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import pytest

from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.manifest import Interval
from tidegate.pipelines.run.intervals import cut, cut_gap, describe, parse_moment, parse_slice
from tidegate.windowing.time import to_millis


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


@pytest.mark.parametrize("text", ["", "1", "d", "0d", "-1d", "1.5d", "1y", "1 day", "1M", "1d1h"])
def test_a_slice_is_a_number_and_a_unit(text: str) -> None:
    with pytest.raises(UsageError, match="--slice"):
        parse_slice(text)


@pytest.mark.parametrize("end", [day(1, 2), day(1, 1)])
def test_a_start_that_is_not_before_the_end_is_refused_with_both(end: datetime) -> None:
    with pytest.raises(UsageError, match=r"--start 2013-01-02 .* is not before --end 2013-01-0"):
        list(cut(day(1, 2), end, None))


def test_a_moment_without_a_zone_is_utc_and_one_with_a_zone_keeps_its_instant() -> None:
    assert parse_moment("2013-01-31", "--start") == day(1, 31)
    assert parse_moment("2013-01-31T07:00+01:00", "--start") == day(1, 31, 6)


@pytest.mark.parametrize("text", ["", "tomorrow", "31.01.2013", "2013-02-30", "2013-01-31T25:00"])
def test_a_bad_date_is_refused_with_the_option_named(text: str) -> None:
    with pytest.raises(UsageError, match=r"--end .*give a date or date-time"):
        parse_moment(text, "--end")


def test_an_interval_is_described_as_briefly_as_it_can_be() -> None:
    assert describe(span(day(1, 1), day(1, 2))) == "2013-01-01"
    assert describe(span(day(1, 1), day(1, 8))) == "2013-01-01 to 2013-01-08"
    assert describe(span(day(1, 1, 6), day(1, 1, 12))) == "2013-01-01 06:00:00 to 2013-01-01 12:00:00"

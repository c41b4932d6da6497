"""A time that a command prints means the same when it is given to a command, whatever the pipeline's time zone is."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lake import Lake, at
from tests.pipelines.project.cli.project import TOML, Project
from tidegate.pipelines.project.given import moment_of
from tidegate.windowing.time import FIRST_TIME, LAST_TIME, show_length, show_millis, show_time, to_millis

BERLIN = ZoneInfo("Europe/Berlin")
TIME = r"\d{4}-\d\d-\d\d(?:T\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d))?"


@given(st.integers(FIRST_TIME, LAST_TIME - 1), st.sampled_from((UTC, BERLIN, ZoneInfo("Asia/Kathmandu"))))
def test_a_printed_time_is_read_as_the_same_time_in_every_zone(time: int, zone: ZoneInfo) -> None:
    assert to_millis(moment_of(show_millis(time), "--start", zone)) == time


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=st.timezones()))
def test_a_time_with_an_offset_is_read_as_the_same_time(moment: datetime) -> None:
    # Python compares no two times of different zones as equal if a clock shows one of them twice.
    assert moment_of(show_time(moment), "--start", BERLIN).astimezone(UTC) == moment.astimezone(UTC)


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime(2024, 3, 1, 6, tzinfo=UTC), "2024-03-01T06:00:00Z"),
        (datetime(2024, 3, 1, 6, 0, 0, 5000, tzinfo=UTC), "2024-03-01T06:00:00.005Z"),
        (datetime(2024, 3, 1, 6, 0, 0, 5, tzinfo=UTC), "2024-03-01T06:00:00.000005Z"),
        (datetime(2024, 3, 1, 6, tzinfo=timezone(timedelta(hours=1))), "2024-03-01T06:00:00+01:00"),
        (datetime(2024, 3, 1, 6), "2024-03-01T06:00:00"),
    ],
)
def test_a_time_is_printed_with_its_offset(moment: datetime, text: str) -> None:
    assert show_time(moment) == text


@given(st.integers(0, 10**12))
def test_a_length_is_printed_exactly(length: int) -> None:
    number, unit = show_length(length).split()
    assert int(number) * {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}[unit] == length


@pytest.fixture
def in_berlin(project: Project) -> Project:
    """Sessions of the day 2024-03-01 of Berlin, computed in two slices."""
    (project.folder / "tidegate.toml").write_text(TOML.replace("start =", 'timezone = "Europe/Berlin"\nstart ='))
    Lake(project.folder).append(("ann", at("10:00"), 1), ("ann", at("12:00"), 2))
    project.says(0, "2024-03-01 ", "backfill", "sessions", "--start", "2024-03-01", "--end", "2024-03-02")
    return project


def test_times_of_a_pipeline_of_another_zone_are_read_as_they_were_printed(in_berlin: Project) -> None:
    _, printed = in_berlin.tidegate("results", "sessions")
    starts = sorted(re.findall(rf"({TIME}) to", printed))
    assert starts == ["2024-03-01T10:00:00Z", "2024-03-01T12:00:00Z"]
    traced = in_berlin.data("trace", "sessions", "ann", "--window", starts[1])
    assert [element["value"]["value"] for element in traced["elements"]] == [2]
    assert "2024-03-01T12:00:00Z" in in_berlin.tidegate("trace", "sessions", "ann")[1]


def test_an_interval_of_whole_days_is_printed_and_read_in_the_zone_of_the_pipeline(in_berlin: Project) -> None:
    _, printed = in_berlin.tidegate("plan", "sessions", "--start", "2024-03-01", "--end", "2024-03-02")
    assert re.findall(TIME, printed) == ["2024-03-01"]
    assert "unchanged" in printed
    # A day of UTC is no day of Berlin, so its times are printed.
    day = ("--start", "2024-03-01T00:00Z", "--end", "2024-03-02T00:00Z")
    refused = in_berlin.tidegate("plan", "sessions", *day)[1]
    printed = [time for time in re.findall(TIME, refused) if time.startswith("2024-03-0")]
    assert {"2024-03-01T00:00:00Z", "2024-03-02T00:00:00Z"} <= {*printed}
    # Errors print the intervals that were run with their times, which `backfill` reads as the same interval.
    (ran,) = re.findall(rf"intervals that were run: ({TIME}) to ({TIME})", refused.replace("\n", " "))
    in_berlin.says(0, "unchanged", "plan", "sessions", "--start", ran[0], "--end", ran[1])


def test_a_window_without_a_zone_is_in_the_zone_of_the_pipeline(in_berlin: Project) -> None:
    traced = in_berlin.data("trace", "sessions", "ann", "--window", "2024-03-01T13:00")
    assert [element["value"]["value"] for element in traced["elements"]] == [2]

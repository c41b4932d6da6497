"""Wall-clock times become the instants that Spark's `to_utc_timestamp` gave for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.pipelines.sources.source_columns import instants
from tidegate.windowing.time import to_millis

BY_SPARK = """
Africa/Casablanca | 2024-03-10 02:45:00.001 | 2024-03-10 01:45:00.001
Africa/Casablanca | 2024-03-31 04:45:00.001 | 2024-03-31 04:45:00.001
Africa/Monrovia | 1972-01-07 00:30:00.000 | 1972-01-07 01:14:30.000
Africa/Monrovia | 1972-01-07 00:45:00.001 | 1972-01-07 00:45:00.001
America/New_York | 2018-11-04 01:45:00.001 | 2018-11-04 05:45:00.001
America/New_York | 2024-03-10 02:45:00.001 | 2024-03-10 07:45:00.001
America/New_York | 2024-03-31 04:45:00.001 | 2024-03-31 08:45:00.001
America/New_York | 2024-11-03 02:00:00.000 | 2024-11-03 07:00:00.000
America/Sao_Paulo | 2018-11-04 00:45:00.001 | 2018-11-04 03:45:00.001
Australia/Lord_Howe | 2024-04-07 01:45:00.001 | 2024-04-06 14:45:00.001
Australia/Lord_Howe | 2024-04-07 02:00:00.000 | 2024-04-06 15:30:00.000
Australia/Lord_Howe | 2024-10-06 00:00:00.000 | 2024-10-05 13:30:00.000
Australia/Lord_Howe | 2024-10-06 02:15:00.001 | 2024-10-05 15:45:00.001
Europe/Berlin | 2024-03-31 02:45:00.001 | 2024-03-31 01:45:00.001
Europe/Berlin | 2024-03-31 04:45:00.001 | 2024-03-31 02:45:00.001
Europe/Berlin | 2050-03-27 02:45:00.001 | 2050-03-27 01:45:00.001
Europe/Berlin | 2050-10-30 03:00:00.000 | 2050-10-30 02:00:00.000
Europe/Berlin | 2100-10-31 02:45:00.001 | 2100-10-31 00:45:00.001
Europe/Berlin | 2100-10-31 03:00:00.000 | 2100-10-31 02:00:00.000
Europe/Dublin | 2050-10-30 01:45:00.001 | 2050-10-30 00:45:00.001
Europe/Dublin | 2100-10-31 01:45:00.001 | 2100-10-31 00:45:00.001
Europe/London | 2050-03-27 02:00:00.000 | 2050-03-27 01:00:00.000
Europe/London | 2050-10-30 02:00:00.000 | 2050-10-30 02:00:00.000
Europe/London | 2100-10-31 02:00:00.000 | 2100-10-31 02:00:00.000
"""
"""Zone, wall-clock time, and the instant that Spark gave; each near a change of the clocks."""


def millis(wall: datetime) -> int:
    return to_millis(wall.replace(tzinfo=UTC))


@pytest.mark.parametrize("line", BY_SPARK.split("\n")[1:-1])
def test_an_instant_is_that_of_spark(line: str) -> None:
    zone, wall, instant = line.split(" | ")
    given_millis = np.array([millis(datetime.fromisoformat(wall))])
    assert instants(given_millis, zone).tolist() == [millis(datetime.fromisoformat(instant))]


@given(
    st.sampled_from(
        ["America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Africa/Monrovia", "Asia/Kolkata", "UTC"]
    ),
    st.lists(st.datetimes(datetime(1970, 1, 2), datetime(9998, 1, 1)), min_size=1, max_size=20),
)
def test_times_together_are_the_instants_that_python_gives_for_each(zone: str, walls: list[datetime]) -> None:
    expected = [to_millis(wall.replace(tzinfo=ZoneInfo(zone), fold=0).astimezone(UTC)) for wall in walls]
    assert instants(np.array([millis(wall) for wall in walls]), zone).tolist() == expected


def test_a_time_before_1970_or_after_9999_stays_outside() -> None:
    outside = [millis(datetime(1969, 12, 31)) - 10**14, millis(datetime(9999, 12, 31, 23)), 2**62]
    read = instants(np.array(outside), "America/New_York").tolist()
    assert read[0] < 0
    assert min(read[1:]) >= 253_402_300_800_000


@given(st.integers(-400, 400))
def test_every_minute_around_a_change_is_the_first_of_its_instants(minutes: int) -> None:
    wall = datetime(2024, 11, 3, 1) + timedelta(minutes=minutes)
    instant = wall.replace(tzinfo=ZoneInfo("America/New_York")).astimezone(UTC)
    assert instants(np.array([millis(wall)]), "America/New_York").tolist() == [to_millis(instant)]

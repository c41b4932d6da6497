"""Times and durations as text for people."""

from __future__ import annotations

import pytest

from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, show_duration, show_watermark

SECOND, HOUR, DAY = 1000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (7 * SECOND + 400, "7.4 s"),
        (90 * SECOND, "1.5 min"),
        (3 * HOUR, "3 h"),
        (-2 * DAY, "-2 d"),
        (989 * DAY + 23 * HOUR, "990 d"),
        (999 * DAY + 23 * HOUR, "1,000 d"),
        (5_066 * DAY, "5,066 d"),
    ],
)
def test_a_duration_is_shown_in_the_largest_unit_that_fits(duration: int, text: str) -> None:
    assert show_duration(duration) == text


@pytest.mark.parametrize(
    ("watermark", "text"),
    [
        (86_399_999, "before 1970-01-02 00:00:00"),
        (86_399_998, "before 1970-01-02 00:00:00"),
        (86_399_997, "before 1970-01-01 23:59:59.998"),
        (86_400_000, "before 1970-01-02 00:00:00.001"),
        (MIN_TIMESTAMP, "-"),
        (MAX_TIMESTAMP, "end of input"),
        (None, "-"),
    ],
)
def test_a_watermark_is_shown_as_the_time_before_which_all_has_arrived(watermark: int | None, text: str) -> None:
    assert show_watermark(watermark) == text

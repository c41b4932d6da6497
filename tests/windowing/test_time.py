"""Times and durations as text for people."""

from __future__ import annotations

import pytest

from tidegate.windowing.time import show_duration

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

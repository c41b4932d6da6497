"""The rule of lateness is the same for one time and for arrays of times, up to both ends of time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing.lateness import are_late, cleanup_time, cleanup_times, is_late
from tidegate.windowing.time import FIRST_TIME, LAST_TIME, MAX_TIMESTAMP, MIN_TIMESTAMP

TIMES = st.one_of(
    st.integers(FIRST_TIME, LAST_TIME + 10),
    st.integers(LAST_TIME - 10, LAST_TIME + 10),
    st.sampled_from([MAX_TIMESTAMP, MAX_TIMESTAMP - 1]),
)
WATERMARKS = st.one_of(TIMES, st.just(MIN_TIMESTAMP))
LATENESS = st.one_of(st.integers(0, 20), st.integers(0, LAST_TIME))


@given(st.lists(st.tuples(TIMES, WATERMARKS), min_size=1), LATENESS)
def test_arrays_of_times_are_late_as_each_time_is(pairs: list[tuple[int, int]], lateness: int) -> None:
    times, watermarks = (np.array(side, np.int64) for side in zip(*pairs, strict=True))
    assert are_late(times, lateness, watermarks).tolist() == [is_late(time, lateness, at) for time, at in pairs]
    if lateness:
        assert cleanup_times(times, lateness).tolist() == [cleanup_time(time, lateness) for time, _ in pairs]


@given(TIMES, LATENESS)
def test_everything_is_late_at_the_end_of_input(time: int, lateness: int) -> None:
    assert is_late(time, lateness, MAX_TIMESTAMP)


@pytest.mark.parametrize(("watermark", "late"), [(108, False), (109, True), (110, True)])
def test_a_window_is_open_until_the_watermark_reaches_its_last_millisecond_plus_the_lateness(
    watermark: int, late: bool
) -> None:
    assert is_late(99, 10, watermark) is late

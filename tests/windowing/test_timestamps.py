"""Times as tables keep them and as milliseconds: there and back, and whatever is lost is refused or rounded down."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from tidegate.windowing.time import to_millis
from tidegate.windowing.timestamps import TIMESTAMP, epoch_millis, floored_millis, timestamps_of

MOMENTS = [
    datetime(1, 1, 1, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
    datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
    None,
]
MILLIS = [None if moment is None else to_millis(moment) for moment in MOMENTS]


@pytest.mark.parametrize("form", [pa.array, lambda values, kind: pa.chunked_array([values[:2], values[2:]], kind)])
def test_times_come_back_from_milliseconds_as_they_were(form: object) -> None:
    times = form(MOMENTS, TIMESTAMP)  # type: ignore[operator]
    assert epoch_millis(times).to_pylist() == MILLIS
    assert timestamps_of(epoch_millis(times)) == times


def test_a_time_with_microseconds_is_refused_in_a_table_of_ours_and_rounded_down_in_a_source() -> None:
    between = pa.chunked_array([[datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=n) for n in (-1, 1, 1999)]])
    with pytest.raises(pa.ArrowInvalid):
        epoch_millis(between.cast(TIMESTAMP))
    assert floored_millis(between.cast(TIMESTAMP)).tolist() == [-1, 0, 1]

"""Wall-clock times of a zone as instants, as Spark's `to_utc_timestamp` decides.

A time that the clocks skip counts from before the change, so it becomes an hour later in most zones. A time that comes
twice is the first of both. Both follow from the offset before the change, which Python gives for `fold=0`.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import numpy as np

from tidegate.pipelines.sources.rules import Int64s

_DAY = 86_400
_FIRST_DAY, _LAST_DAY = -2, 2_932_895
"""Days since 1970 on which offsets are looked up; all other times are rejected in any zone."""
_EPOCH = datetime(1970, 1, 1)


def instants(wall: Int64s, zone: str) -> Int64s:
    """Return wall-clock times as instants.

    Args:
        wall: wall-clock times, int64 milliseconds since the midnight that began 1970 in the zone.
        zone: name of the time zone.
    """
    if not len(wall):
        return wall
    seconds = np.floor_divide(wall, 1000)
    days = np.unique(np.clip(np.floor_divide(seconds, _DAY), _FIRST_DAY, _LAST_DAY)).tolist()
    steps = [step for day in days for step in _offsets_of(zone, day)]
    begins, offsets = (np.array(column, np.int64) for column in zip(*steps, strict=True))
    places = np.maximum(np.searchsorted(begins, seconds, side="right") - 1, 0)
    instants: Int64s = wall - offsets[places] * 1000
    return instants


@lru_cache(maxsize=100_000)
def _offsets_of(zone: str, day: int) -> tuple[tuple[int, int], ...]:
    """Return the offsets from UTC of a day, each after the second of the wall clock from which it holds."""
    begin, end = day * _DAY, (day + 1) * _DAY
    before, after = _offset(zone, begin), _offset(zone, end)
    if before == after:
        return ((begin, before),)
    first, last = begin, end
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if _offset(zone, middle) == before else (first, middle)
    return (begin, before), (last, after)


def _offset(zone: str, second: int) -> int:
    """Return the offset from UTC at a second of the wall clock; of two, the earlier."""
    offset = (_EPOCH + timedelta(seconds=second)).replace(tzinfo=ZoneInfo(zone)).utcoffset()
    assert offset is not None
    return round(offset.total_seconds())

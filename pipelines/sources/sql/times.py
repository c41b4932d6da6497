"""Kernels of dates and times. The session's zone is UTC, so a day always has 24 hours."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.sources.sql.moments import DAY, shifted
from tidegate.pipelines.sources.sql.numbers import arrays, nulls_of
from tidegate.pipelines.sources.sql.program import RowFailure, Value
from tidegate.pipelines.sources.zones import offsets_of_instants, offsets_of_walls

UTC = pa.timestamp("us", "UTC")

UNITS = {
    "microsecond": 1,
    "millisecond": 1000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": DAY,
    "dd": DAY,
}
"""Levels of `date_trunc` with a fixed length, in microseconds."""
CALENDAR = {
    **dict.fromkeys(("year", "yyyy", "yy"), "year"),
    **dict.fromkeys(("month", "mon", "mm"), "month"),
    "quarter": "quarter",
    "week": "week",
}
"""Levels of `date_trunc` and `trunc` that follow the calendar, by name."""


def _numbers(value: Value) -> tuple[Any, Any]:
    """Return dates or timestamps as int64, and the null flags."""
    (values,) = arrays(value)
    whole = values.cast(pa.int32() if pa.types.is_date(values.type) else pa.int64())
    return np.asarray(whole.fill_null(0).to_numpy(zero_copy_only=False)).astype(np.int64), nulls_of(values)


def _days(value: Value) -> tuple[Any, Any]:
    """Return dates, or the dates of timestamps, as days since 1970, and the null flags."""
    numbers, nulls = _numbers(value)
    return (numbers if pa.types.is_date(value.type) else np.floor_divide(numbers, DAY)), nulls


def _months(days: Any) -> Any:
    return days.astype("datetime64[D]").astype("datetime64[M]").astype(np.int64)


def _first_days(months: Any) -> Any:
    return months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)


def date_of(value: Value) -> Value:
    """Return the dates of timestamps."""
    days, nulls = _days(value)
    return pa.array(days.astype(np.int32), pa.date32(), mask=nulls)


def midnight(value: Value) -> Value:
    """Return dates as timestamps; a time out of range is an error."""
    (dates,) = arrays(value)
    return pc.multiply_checked(dates.cast(pa.int32()).cast(pa.int64()), DAY).cast(UTC)


def part(value: Value, name: str) -> Value:
    """Return a part of dates or timestamps as int."""
    if name in ("hour", "minute", "second"):
        micros, nulls = _numbers(value)
        sizes = {"hour": (UNITS["hour"], 24), "minute": (UNITS["minute"], 60), "second": (UNITS["second"], 60)}
        size, count = sizes[name]
        return pa.array((np.floor_divide(micros, size) % count).astype(np.int32), pa.int32(), mask=nulls)
    days, nulls = _days(value)
    return pa.array(_part_of_days(days, name).astype(np.int32), pa.int32(), mask=nulls)


def _part_of_days(days: Any, name: str) -> Any:
    if name == "dayofweek":
        return (days + 4) % 7 + 1
    if name == "weekday":
        return (days + 3) % 7
    months = _months(days)
    if name == "year":
        return np.floor_divide(months, 12) + 1970
    if name == "month":
        return months % 12 + 1
    if name == "quarter":
        return months % 12 // 3 + 1
    if name == "day":
        return days - _first_days(months) + 1
    return days - _first_days(months - months % 12) + 1  # dayofyear


def truncate(value: Value, level: str) -> Value:
    """Return `date_trunc(level, value)` of timestamps. The level is one of `UNITS` or `CALENDAR`."""
    micros, nulls = _numbers(value)
    result = micros - micros % UNITS[level] if level in UNITS else _start(np.floor_divide(micros, DAY), level) * DAY
    if (result > micros).any():
        raise RowFailure("a time is out of range")
    return pa.array(result, pa.int64(), mask=nulls).cast(UTC)


def truncate_date(value: Value, level: str) -> Value:
    """Return `trunc(value, level)` of dates."""
    days, nulls = _days(value)
    return pa.array(_start(days, level).astype(np.int32), pa.date32(), mask=nulls)


def _start(days: Any, level: str) -> Any:
    """Return the first day of the week, month, quarter or year."""
    if level == "week":
        return days - (days + 3) % 7
    months = _months(days)
    return _first_days(months - months % {"month": 1, "quarter": 3, "year": 12}[level])


def since_epoch(value: Value, unit: int) -> Value:
    """Convert timestamps to whole units since 1970, rounded down, as bigint. A unit is a number of microseconds."""
    micros, nulls = _numbers(value)
    return pa.array(np.floor_divide(micros, unit), pa.int64(), mask=nulls)


def whole_seconds(value: Value) -> Value:
    """Return `unix_timestamp(value)` of timestamps, which truncates fractions: before 1970 that rounds up."""
    micros, nulls = _numbers(value)
    upwards = np.where(micros < 0, 999_999, 0)
    return pa.array(np.floor_divide(micros + upwards, 1_000_000), pa.int64(), mask=nulls)


def from_epoch(value: Value, unit: int) -> Value:
    """Convert whole units since 1970 to timestamps. A time out of range is an error."""
    (numbers,) = arrays(value)
    return pc.multiply_checked(numbers.cast(pa.int64()), unit).cast(UTC)


def saturating_seconds(value: Value) -> Value:
    """Return `CAST(seconds AS TIMESTAMP)`: a time out of range becomes the nearest bound."""
    (numbers,) = arrays(value)
    seconds = np.asarray(numbers.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))
    bounds, most = np.iinfo(np.int64), np.iinfo(np.int64).max // 1_000_000
    micros = np.clip(seconds, -most, most) * 1_000_000
    micros = np.where(seconds > most, bounds.max, np.where(seconds < -most, bounds.min, micros))
    return pa.array(micros, pa.int64(), mask=nulls_of(numbers)).cast(UTC)


def add_days(value: Value, days: Value, sign: int) -> Value:
    """Return dates shifted by `sign` (1 or -1) times some days. A date out of range wraps around, as in Spark."""
    dates, counts = arrays(value, days)
    numbers, _ = _numbers(dates)
    others = np.asarray(counts.fill_null(0).to_numpy(zero_copy_only=False)).astype(np.int64)
    mask = nulls_of(dates) | nulls_of(counts)
    return pa.array((numbers + sign * others).astype(np.int32), pa.date32(), mask=mask)


def days_between(end: Value, start: Value) -> Value:
    """Return `datediff(end, start)` of dates."""
    ends, starts = arrays(end, start)
    days = _numbers(ends)[0] - _numbers(starts)[0]
    return pa.array(days.astype(np.int32), pa.int32(), mask=nulls_of(ends) | nulls_of(starts))


def add_micros(value: Value, micros: int) -> Value:
    """Return timestamps shifted by a day-time interval. A time out of range is an error."""
    (moments,) = arrays(value)
    return pc.add_checked(moments.cast(pa.int64()), pa.scalar(micros, pa.int64())).cast(UTC)


def add_whole_days(value: Value, days: int) -> Value:
    """Return dates shifted by an interval of days. A date out of range wraps around, as in Spark."""
    return add_days(value, pa.scalar(days, pa.int32()), 1)


def add_months(value: Value, months: int) -> Value:
    """Return dates or timestamps shifted by a year-month interval, on the last day of a month that is too short.

    A date or time out of range is an error.
    """
    numbers, nulls = _numbers(value)
    days = numbers if pa.types.is_date(value.type) else np.floor_divide(numbers, DAY)
    first = _months(days)
    ends = _first_days(first + months + 1) - 1
    later = np.minimum(_first_days(first + months) + days - _first_days(first), ends)
    if pa.types.is_date(value.type):
        return pa.array(later, pa.int64(), mask=nulls).cast(pa.int32()).cast(pa.date32())
    # Near the least timestamp, midnight is out of range although the time is not.
    back = np.where(later < 0, 1, 0)
    begins = pc.multiply_checked(pa.array(later + back, pa.int64(), mask=nulls), DAY)
    return pc.add_checked(begins, pa.array(numbers - (days + back) * DAY, pa.int64())).cast(UTC)


def to_utc(value: Value, zone: int | str) -> Value:
    """Return `to_utc_timestamp(value, zone)`: the wall-clock time that a timestamp shows in UTC, read in the zone."""
    micros, nulls = _numbers(value)
    return pa.array(shifted(micros, nulls, zone, offsets_of_walls, -1), pa.int64(), mask=nulls).cast(UTC)


def from_utc(value: Value, zone: int | str) -> Value:
    """Return `from_utc_timestamp(value, zone)`: the timestamp that shows in UTC what a clock in the zone shows."""
    micros, nulls = _numbers(value)
    return pa.array(shifted(micros, nulls, zone, offsets_of_instants, 1), pa.int64(), mask=nulls).cast(UTC)

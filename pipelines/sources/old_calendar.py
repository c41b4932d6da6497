"""Parquet files in the calendar of Spark 2: dates are Julian before 1582-10-15, and times follow Java's old zones.

Whether a file is in this calendar follows Spark's `DataSourceUtils.getRebaseSpec`: a version of the writer before 3.0.0
(before 3.1.0 for INT96), or a mark of a later writer. Both need the writer's version: without it, Spark 4 takes the
values as they are. The two calendars agree on dates from 1582-10-15 and on times from 1900, before which zones had
local mean times. So such a file is read like any other as long as its values are modern.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.pipelines.definition.far_times import holds_times
from tidegate.pipelines.sources.rules import Int64s

_VERSION, _ZONE = b"org.apache.spark.version", b"org.apache.spark.timeZone"
_MARK_OF_DATES, _MARK_OF_INT96 = b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"
_UTC = (b"UTC", b"Etc/UTC", b"GMT", b"Z")

_FIRST_GREGORIAN_DAY = -141_427
"""1582-10-15, the first Gregorian day of the old calendar, as days since 1970-01-01."""

FIRST_SAME_TIME = -2_208_988_800_000_000
"""1900-01-01T00:00:00Z as microseconds since 1970, from which times are the same in both calendars in every zone."""

_DAY = 86_400_000_000


@dataclass(frozen=True, slots=True)
class OldCalendar:
    """The parts of a file that are in the old calendar.

    Args:
        dates: True for DATE, and for TIMESTAMP stored as INT64.
        int96: True for TIMESTAMP stored as INT96.
        is_utc: True if the writer's time zone is recorded and is UTC, which has no local mean time.
    """

    dates: bool = False
    int96: bool = False
    is_utc: bool = False

    @classmethod
    def of(cls, footer: Mapping[bytes, bytes] | None) -> OldCalendar | None:
        """Return the calendar according to a file's metadata, or None if nothing is in the old one."""
        footer = footer or {}
        if _VERSION not in footer:
            return None
        version = tuple(int(number) for number in re.findall(rb"\d+", footer[_VERSION])[:2])
        dates = version < (3, 0) or _MARK_OF_DATES in footer
        int96 = version < (3, 1) or _MARK_OF_INT96 in footer
        return cls(dates, int96, footer.get(_ZONE) in _UTC) if dates or int96 else None

    def applies_to(self, physical: str) -> bool:
        """Return True if times or dates of a physical type of Parquet are in the old calendar."""
        return self.int96 if physical == "INT96" else self.dates

    def modern(self, column: pa.ChunkedArray, physical: list[str], name: str) -> pa.ChunkedArray:
        """Return a column of a file with its values in the Gregorian calendar, as Spark rebases them.

        Args:
            column: the column as it is stored.
            physical: physical types of its parts, in order.
            name: its name, for the error.

        Raises:
            pa.ArrowInvalid: an old time of a writer in another zone than UTC, or an old value within a nested type.
        """
        if not holds_times(column.type):
            return column
        if pa.types.is_nested(column.type):
            for chunk in column.chunks:
                for part, kind in zip(_parts(chunk), physical, strict=True):
                    if self._is_old(part, kind).any():
                        raise _old(name, "dates or times")
            return column
        return pa.chunked_array([self._rebased(chunk, physical[0], name) for chunk in column.chunks], column.type)

    def _is_old(self, values: pa.Array, physical: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Return a flag for each value: whether it may mean another day or time in the old calendar."""
        kind = values.type
        is_wall = pa.types.is_timestamp(kind) and kind.tz is None and physical != "INT96"
        if not holds_times(kind) or is_wall or not self.applies_to(physical):
            return np.zeros(len(values), np.bool_)
        numbers, first = _numbers(values)
        return np.asarray((numbers < first) & np.asarray(values.is_valid()))

    def _rebased(self, values: pa.Array, physical: str, name: str) -> pa.Array:
        old = self._is_old(values, physical)
        if not old.any():
            return values
        numbers, _ = _numbers(values)
        if pa.types.is_date(values.type):
            numbers[old] = _gregorian_days(numbers[old])
            return pa.array(numbers.astype(np.int32), mask=~np.asarray(values.is_valid())).cast(values.type)
        if not self.is_utc:
            raise _old(name, "times before 1900")
        days, rest = np.divmod(numbers[old], _DAY)
        numbers[old] = _gregorian_days(days) * _DAY + rest
        micros = pa.array(numbers, pa.timestamp("us"), mask=~np.asarray(values.is_valid()))
        return micros.cast(pa.timestamp("us", tz=values.type.tz)).cast(values.type)


def _old(name: str, values: str) -> pa.ArrowInvalid:
    return pa.ArrowInvalid(f"column {name!r} has {values} in the calendar of Spark 2, which the tasks can't convert")


def _numbers(values: pa.Array) -> tuple[Int64s, int]:
    """Return dates as days or times as microseconds, and the first value on which both calendars agree."""
    if pa.types.is_date(values.type):
        days = values.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
        return np.array(days.fill_null(0).to_numpy()), _FIRST_GREGORIAN_DAY
    micros = values.cast(pa.timestamp("us", tz=values.type.tz), safe=False).cast(pa.int64())
    return np.array(micros.fill_null(0).to_numpy()), FIRST_SAME_TIME


def _parts(values: pa.Array) -> Iterator[pa.Array]:
    """Yield the leaf arrays of an array, in the order of the columns of a file."""
    kind = values.type
    if pa.types.is_struct(kind):
        for field in values.flatten():
            yield from _parts(field)
    elif pa.types.is_map(kind):
        yield from _parts(values.keys)
        yield from _parts(values.items)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from _parts(values.flatten())
    else:
        yield values


def _gregorian_days(days: Int64s) -> Int64s:
    """Return the days in the Gregorian calendar with the year, month and day that these days have in the old calendar.

    Days count from 1970-01-01. February 29th of a year that is a leap year only in the Julian calendar becomes March
    1st, as in Spark's `rebaseJulianToGregorianDays`.
    """
    # Both conversions count years from March, so that the leap day is the last one.
    shifted = days + 2_440_588 + 32_082
    years, of_year = np.divmod(4 * shifted + 3, 1461)
    of_year //= 4
    months = (5 * of_year + 2) // 153
    of_month = of_year - (153 * months + 2) // 5
    years -= 4800
    begins = 365 * years + years // 4 - years // 100 + years // 400
    same_date = begins + (153 * months + 2) // 5 + of_month - 719_468
    gregorian: Int64s = np.where(days < _FIRST_GREGORIAN_DAY, same_date, days)
    return gregorian

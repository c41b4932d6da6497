"""Time zones, by the rules of Java: which names Spark accepts, and how it converts between UTC and local time.

The rules come from the time zone database of this machine, as Java's come from its own. Versions of that database, and
its builds, differ in two respects: times before 1970, and a few zones that were defined differently: see
`first_sure_second`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]

_DAY = 86_400
_FIRST_DAY, _LAST_DAY = -719_160, 2_932_895
"""Days since 1970 on which offsets are looked up: those that Python knows. Earlier and later days have the offsets of
the first and the last one.
"""
_EPOCH = datetime(1970, 1, 1)

_SHORT_IDS = """
    ACT=Australia/Darwin AET=Australia/Sydney AGT=America/Argentina/Buenos_Aires ART=Africa/Cairo
    AST=America/Anchorage BET=America/Sao_Paulo BST=Asia/Dhaka CAT=Africa/Harare CNT=America/St_Johns
    CST=America/Chicago CTT=Asia/Shanghai EAT=Africa/Addis_Ababa IET=America/Indiana/Indianapolis
    JST=Asia/Tokyo MIT=Pacific/Apia NET=Asia/Yerevan NST=Pacific/Auckland PLT=Asia/Karachi
    PNT=America/Phoenix PRT=America/Puerto_Rico PST=America/Los_Angeles SST=Pacific/Guadalcanal VST=Asia/Ho_Chi_Minh
    EST=-05:00 MST=-07:00 HST=-10:00
"""
_SHORT = dict(pair.split("=") for pair in _SHORT_IDS.split())
_SHORT |= {"ECT": "Europe/Paris", "IST": "Asia/Kolkata"}  # codespell:ignore
"""Java's `ZoneId.SHORT_IDS`."""

_NOT_JAVAS = frozenset(("Factory", "GMT+0", "GMT-0", "ROC", "localtime", "posixrules"))
"""Names in the time zone database that Java does not know, or knows as something else."""

_SAME_SINCE = {
    **dict.fromkeys(("WET", "EET", "MET", "CET", "EST5EDT", "CST6CDT", "MST7MDT", "PST8PDT"), 1997),
    **dict.fromkeys(("Iran", "Asia/Tehran"), 1980),
}
"""The year from which builds of the time zone database agree, where it is later than 1970."""

_OFFSET = re.compile(r"([+-])(?:(\d{1,2})|(\d\d):?([0-5]\d)|(\d\d):([0-5]\d):([0-5]\d)|(\d\d)([0-5]\d)([0-5]\d))", re.A)
_REGION = re.compile(r"[A-Za-z][A-Za-z0-9~/._+-]+", re.A)
_WIDEST = 18 * 3600


class NotAZone(ValueError):
    """The text is not a time zone for Spark."""


class OfJavaOnly(ValueError):
    """Java may know the zone, but Python does not."""


@lru_cache(maxsize=10_000)
def zone_of(text: str) -> int | str:
    """Return a fixed offset in seconds, or the name of a zone with rules, for text that `ZoneId.of` reads.

    Like Spark, it also takes offsets such as +5:30 and +05:3.

    Raises:
        NotAZone: Java knows no such zone.
        OfJavaOnly: Java may know such a zone.
    """
    name = re.sub(r"([+-])(\d):", r"\g<1>0\2:", text, flags=re.A)
    name = re.sub(r"([+-])(\d\d):(\d)\Z", r"\1\2:0\3", name, flags=re.A)
    name = _SHORT.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return 0
    signed = re.sub(r"\A(?:UTC|GMT|UT)(?=[+-])", "", name)
    if signed[:1] in ("+", "-"):
        return _offset_of(signed)
    if not _REGION.fullmatch(name) or name in _NOT_JAVAS or name.startswith(("posix/", "right/")):
        raise NotAZone(text)
    if name.startswith("SystemV/"):
        raise OfJavaOnly(text)
    try:
        zone = ZoneInfo(name).key
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise NotAZone(text) from None
    return zone


def _offset_of(text: str) -> int:
    """Return an offset in seconds, as `ZoneOffset.of` reads it."""
    shape = _OFFSET.fullmatch(text)
    if shape is None:
        raise NotAZone(text)
    parts = [int(part) for part in shape.groups()[1:] if part is not None]
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    size = hours * 3600 + minutes * 60 + seconds
    if size > _WIDEST:
        raise NotAZone(text)
    return -size if text[0] == "-" else size


def offsets_of_walls(seconds: Int64s, zone: int | str) -> Int64s:
    """Return the offsets from UTC, in seconds, of wall-clock times, by the rules of Java's `LocalDateTime.atZone`.

    A time that the clocks skip uses the offset before the change, so it becomes an hour later in most zones. A time
    that occurs twice is the first of the two. In both cases this is the offset before the change, which Python uses for
    `fold=0`. Wall-clock times are int64 seconds since the midnight that began 1970 in the zone.
    """
    return _offsets(seconds, zone, _wall_offset)


def offsets_of_instants(seconds: Int64s, zone: int | str) -> Int64s:
    """Return the offsets from UTC, in seconds, of instants, which are int64 epoch seconds."""
    return _offsets(seconds, zone, _instant_offset)


def _offsets(seconds: Int64s, zone: int | str, offset_of: Callable[[str, int], int]) -> Int64s:
    if isinstance(zone, int) or not len(seconds):
        return np.full(len(seconds), zone if isinstance(zone, int) else 0, np.int64)
    days = np.unique(np.clip(np.floor_divide(seconds, _DAY), _FIRST_DAY, _LAST_DAY)).tolist()
    steps = [step for day in days for step in _steps_of(zone, day, offset_of)]
    begins, offsets = (np.array(column, np.int64) for column in zip(*steps, strict=True))
    found: Int64s = offsets[np.maximum(np.searchsorted(begins, seconds, side="right") - 1, 0)]
    return found


@lru_cache(maxsize=100_000)
def _steps_of(zone: str, day: int, offset_of: Callable[[str, int], int]) -> tuple[tuple[int, int], ...]:
    """Return the offsets from UTC during a day, each with the second from which it applies."""
    begin, end = day * _DAY, (day + 1) * _DAY
    before, after = offset_of(zone, begin), offset_of(zone, end)
    if before == after:
        return ((begin, before),)
    first, last = begin, end
    while last - first > 1:
        middle = (first + last) // 2
        first, last = (middle, last) if offset_of(zone, middle) == before else (first, middle)
    return (begin, before), (last, after)


def _wall_offset(zone: str, second: int) -> int:
    """Return the offset from UTC at a second of the wall clock, or the earlier one if there are two."""
    offset = (_EPOCH + timedelta(seconds=second)).replace(tzinfo=ZoneInfo(zone)).utcoffset()
    assert offset is not None
    return round(offset.total_seconds())


def _instant_offset(zone: str, second: int) -> int:
    """Return the offset from UTC at an instant."""
    offset = (_EPOCH + timedelta(seconds=second)).replace(tzinfo=UTC).astimezone(ZoneInfo(zone)).utcoffset()
    assert offset is not None
    return round(offset.total_seconds())


def first_sure_second(zone: int | str) -> int | None:
    """Return the epoch second from which the offsets of a zone do not depend on the build of the database.

    It is None for a fixed offset.
    """
    if isinstance(zone, int):
        return None
    # Local times of 1 January 1970 are up to a day earlier in UTC; no clock changed on the day before.
    return round((datetime(_SAME_SINCE.get(zone, 1970), 1, 1) - _EPOCH).total_seconds()) - _DAY

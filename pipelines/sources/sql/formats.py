"""Formats of dates and times: the letters of Java's `DateTimeFormatter`, for reading and for writing text."""

from __future__ import annotations

import calendar
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tidegate.pipelines.sources.sql.moments import USUAL_DATE, USUAL_TIME, calendar_day, written
from tidegate.pipelines.sources.sql.program import Value
from tidegate.pipelines.sources.sql.reading import Unproven

_FORMATS = {
    "yyyy-MM-dd": "",
    "yyyy-MM-dd HH:mm:ss": " ",
    "yyyy-MM-dd'T'HH:mm:ss": "[Tt]",
    "yyyy/MM/dd": "",
    "yyyy/MM/dd HH:mm:ss": " ",
}
"""Proven formats for reading dates and times, with the pattern of the separator between date and time."""


def time_patterns(text: str) -> tuple[str, str | None]:
    """Return the regular expression of a format, and that of the subset that Arrow reads identically."""
    base, dot, fraction = text.partition(".")
    digits = len(fraction) if dot and set(fraction) == {"S"} and len(fraction) <= 6 else 0
    between = _FORMATS.get(base)
    if between is None or (dot and not (digits and between)):
        raise Unproven(f"the format {text!r} is not proven")
    separator = base[4]
    date = rf"(?P<y>\d{{4}}|\+\d{{5,6}}|-(?!0000-|0000/)\d{{4,6}}){separator}(?P<M>\d\d){separator}(?P<d>\d\d)"
    time = rf"{between}(?P<H>\d\d):(?P<m>\d\d):(?P<s>\d\d)" if between else ""
    pattern = date + time + (rf"\.(?P<S>\d{{1,{digits}}})" if digits else "")
    if separator != "-":
        return pattern, None
    usual = rf"{USUAL_DATE}{between.replace('t', '')}{USUAL_TIME}" if between else USUAL_DATE
    return pattern, rf"^{usual}{rf'[.][0-9]{{1,{digits}}}' if digits else ''}$"


class _Time(NamedTuple):
    """The parts of a timestamp in UTC."""

    year: int
    month: int
    day: int
    day_of_year: int
    weekday: int
    seconds: int
    micros: int


_Write = Callable[[_Time, int], str]


def _signed(year: int, digits: int) -> str:
    return f"{'-' if year < 0 else ''}{abs(year):0{digits}}"


def _year(time: _Time, count: int) -> str:
    if count == 2:
        return f"{abs(time.year) % 100:02}"
    return ("+" if count == 4 and time.year > 9999 else "") + _signed(time.year, count)


def _number(value: Callable[[_Time], int]) -> _Write:
    return lambda time, count: f"{value(time):0{count}}"


def _month(time: _Time, count: int) -> str:
    if count <= 2:
        return f"{time.month:0{count}}"
    return _MONTHS[time.month][: 3 if count == 3 else None]


def _quarter(time: _Time, count: int) -> str:
    quarter = (time.month + 2) // 3
    if count <= 2:
        return f"{quarter:0{count}}"
    return f"Q{quarter}" if count == 3 else f"{('1st', '2nd', '3rd', '4th')[quarter - 1]} quarter"


def _constant(*texts: str) -> _Write:
    """Return the function for a part of the zone, which is always UTC: one text for each number of letters."""
    return lambda _, count: texts[count - 1]


# Names of Java's locale en-US, whatever the locale of this process is.
_MONTHS = ["", "January", "February", "March", "April", "May", "June"]
_MONTHS += ["July", "August", "September", "October", "November", "December"]
_DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

_LETTERS: dict[str, tuple[Sequence[int], _Write]] = {
    "y": (range(1, 5), _year),
    "M": (range(1, 5), _month),
    "L": (range(1, 5), _month),
    "Q": (range(1, 5), _quarter),
    "q": (range(1, 5), _quarter),
    "d": (range(1, 3), _number(lambda time: time.day)),
    "D": (range(1, 4), _number(lambda time: time.day_of_year)),
    "E": (range(1, 5), lambda time, count: _DAYS[time.weekday][: 3 if count < 4 else None]),
    "a": (range(1, 2), lambda time, _: "AM" if time.seconds < 43_200 else "PM"),
    "H": (range(1, 3), _number(lambda time: time.seconds // 3600)),
    "k": (range(1, 3), _number(lambda time: time.seconds // 3600 or 24)),
    "K": (range(1, 3), _number(lambda time: time.seconds // 3600 % 12)),
    "h": (range(1, 3), _number(lambda time: time.seconds // 3600 % 12 or 12)),
    "m": (range(1, 3), _number(lambda time: time.seconds // 60 % 60)),
    "s": (range(1, 3), _number(lambda time: time.seconds % 60)),
    "S": (range(1, 10), lambda time, count: f"{time.micros:06}000"[:count]),
    "V": ((2,), _constant("", "UTC")),
    "z": (range(1, 4), _constant(*["UTC"] * 3)),
    "O": ((1, 4), _constant(*["GMT"] * 4)),
    "X": (range(1, 4), _constant(*["Z"] * 3)),
    "x": (range(1, 4), _constant("+00", "+0000", "+00:00")),
    "Z": (range(1, 6), _constant("+0000", "+0000", "+0000", "GMT", "Z")),
}
"""Letters of formats for writing, with the numbers of times that they may be repeated."""
_PIECE = re.compile(r"(?P<letters>([A-Za-z])\2*)|''|'(?P<quoted>(?:[^']|'')+)'|(?P<other>[^A-Za-z'\[\]{}#])")


def writing_pieces(pattern: str) -> tuple[str | tuple[str, int], ...]:
    """Return the pieces of a format for writing: plain text, or a letter and how many times it is repeated.

    Raises:
        Unproven: the format has a letter or a sign that is not proven.
    """
    pieces: list[str | tuple[str, int]] = []
    place = 0
    while place < len(pattern):
        piece = _PIECE.match(pattern, place)
        if piece is None:
            raise Unproven(f"the format {pattern!r} has {pattern[place]!r}, which is not proven")
        letters = piece["letters"]
        if letters is not None:
            if len(letters) not in _LETTERS.get(letters[0], ((), None))[0]:
                raise Unproven(f"the format {pattern!r} has {letters!r}, which is not proven")
            pieces.append((letters[0], len(letters)))
        elif piece["quoted"] is not None:
            pieces.append(piece["quoted"].replace("''", "'"))
        else:
            pieces.append(piece["other"] or "'")
        place = piece.end()
    return tuple(pieces)


def time_text(value: Value, pieces: Sequence[str | tuple[str, int]]) -> Value:
    """Return `date_format(value, ...)` of timestamps."""

    def write(number: int) -> str:
        seconds, micros = divmod(number, 1_000_000)
        days, seconds = divmod(seconds, 86_400)
        year, month, day = calendar_day(days)
        leap = calendar.isleap(year)
        of_year = sum((31, 28 + leap, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)[: month - 1]) + day
        time = _Time(year, month, day, of_year, (days + 3) % 7, seconds, micros)
        return "".join(piece if isinstance(piece, str) else _LETTERS[piece[0]][1](time, piece[1]) for piece in pieces)

    return written(value, write)

"""Cron expressions of tidegate.toml, checked when it is read: Airflow would report an error only on parsing the DAG.

A stream that reopens late rows on a schedule evaluates the expression itself, in the pipeline's time zone.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

_NO_CRON = 'give a cron expression of five fields, such as "0 4 * * *", or a preset such as @daily'
_FIELDS_OF = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@quarterly": "0 0 1 */3 *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""Fields of each preset."""
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_FIELDS: tuple[tuple[str, int, int, tuple[str, ...]], ...] = (
    ("minute", 0, 59, ()),
    ("hour", 0, 23, ()),
    ("day of the month", 1, 31, ("l",)),
    ("month", 1, 12, _MONTHS),
    ("day of the week", 0, 7, (*_WEEKDAYS, "l", *(f"l{day}" for day in (*range(8), *_WEEKDAYS)))),
    ("second", 0, 59, ()),
)
"""Fields of a cron expression: name, smallest and largest number, names of values. The sixth is seconds, as in
croniter."""
_ITEM = re.compile(r"(?:\*|\?|(?P<first>[0-9a-z]+)(?:-(?P<last>[0-9a-z]+))?)(?:/[1-9][0-9]*)?(?:#[1-5])?")


def check_cron(value: str) -> str:
    """Return a cron expression after checking its fields.

    Raises:
        ValueError: Airflow could not read it; the message names the field.
    """
    if value.strip().lower() in _FIELDS_OF:
        return value
    fields = value.split()
    if len(fields) not in (5, 6):
        raise ValueError(f"{len(fields)} {'field' if len(fields) == 1 else 'fields'}: {_NO_CRON}")
    for text, (name, low, high, words) in zip(fields, _FIELDS, strict=False):
        for item in text.lower().split(","):
            match = _ITEM.fullmatch(item)
            parts = [] if match is None else [part for part in match.group("first", "last") if part]
            if match is None or any(
                part not in words and not (part.isdecimal() and low <= int(part) <= high) for part in parts
            ):
                raise ValueError(f"{item!r} is not a valid {name}, {low} to {high}: {_NO_CRON}")
    return value


def has_tick(value: str, after: int, until: int, zone: str = "UTC") -> bool:
    """Return True if a cron expression has a tick between two times.

    Args:
        value: the expression, as `check_cron` accepts it.
        after: int64 epoch milliseconds.
        until: int64 epoch milliseconds.
        zone: time zone in which the expression is read.
    """
    clock = ZoneInfo(zone)
    fields = _FIELDS_OF.get(value.strip().lower(), value).lower().split()
    seconds = _numbers(fields[5], 5) if len(fields) == 6 else {0}
    minutes, hours, months = (_numbers(fields[place], place) for place in (0, 1, 3))
    begins = after // 60_000 * 60
    while begins * 1000 <= until:
        minute = datetime.fromtimestamp(begins, clock)
        is_tick = minute.minute in minutes and minute.hour in hours and minute.month in months
        if is_tick and _is_day(minute, fields[2], fields[4]):
            ticks = ((begins + second) * 1000 for second in seconds)
            if any(after < tick <= until for tick in ticks):
                return True
        begins += 60
    return False


def _is_day(day: datetime, of_month: str, of_week: str) -> bool:
    """Return True if a day matches the two day fields: one of them is enough if both are restricted, as in croniter."""
    weekday, is_last_week = day.isoweekday() % 7, (day + timedelta(days=7)).month != day.month
    if "#" in of_week or of_week.startswith("l"):
        places = (item.removeprefix("l").split("#") for item in of_week.split(","))
        return any(
            _number(name, 4) % 7 == weekday and (int(nth[0]) == (day.day + 6) // 7 if nth else is_last_week)
            for name, *nth in places
        )
    last = (day.replace(day=28) + timedelta(days=4)).replace(day=1) - timedelta(days=1)
    days = _numbers(of_month.replace("l", str(last.day)), 2)
    weekdays = {number % 7 for number in _numbers(of_week, 4)}
    fits = (day.day in days, weekday in weekdays)
    return all(fits) if {of_month, of_week} & {"*", "?"} else any(fits)


def _numbers(text: str, place: int) -> set[int]:
    """Return the numbers that a field matches. A range that ends before it starts wraps around."""
    _, low, high, _ = _FIELDS[place]
    found = set[int]()
    for item in text.split(","):
        span, _, step = item.partition("/")
        first, _, last = span.partition("-")
        begin = low if first in ("*", "?") else _number(first, place)
        end = _number(last, place) if last else high if step or first in ("*", "?") else begin
        numbers = range(begin, end + 1) if begin <= end else [*range(begin, high + 1), *range(low, end + 1)]
        found.update(numbers[:: int(step or 1)])
    return found


def _number(text: str, place: int) -> int:
    words = {3: _MONTHS, 4: _WEEKDAYS}.get(place, ())
    return words.index(text) + (place == 3) if text in words else int(text)

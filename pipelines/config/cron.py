"""Cron expressions of tidegate.toml, checked when it is read. Airflow finds a fault only when it parses the DAG."""

from __future__ import annotations

import re

_NO_CRON = 'give a cron expression of five fields, such as "0 4 * * *", or a preset such as @daily'
_PRESETS = ("@hourly", "@daily", "@midnight", "@weekly", "@monthly", "@quarterly", "@yearly", "@annually")
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
"""Fields of a cron expression: name, smallest and largest number, and words. The sixth is seconds, as in croniter."""
_ITEM = re.compile(r"(?:\*|\?|(?P<first>[0-9a-z]+)(?:-(?P<last>[0-9a-z]+))?)(?:/[1-9][0-9]*)?(?:#[1-5])?")


def check_cron(value: str) -> str:
    """Return a cron expression after a check of its fields.

    Raises:
        ValueError: Airflow could not read it; the message names the field.
    """
    if value.strip().lower() in _PRESETS:
        return value
    fields = value.split()
    if len(fields) not in (5, 6):
        raise ValueError(f"{len(fields)} field(s): {_NO_CRON}")
    for text, (name, low, high, words) in zip(fields, _FIELDS, strict=False):
        for item in text.lower().split(","):
            match = _ITEM.fullmatch(item)
            parts = [] if match is None else [part for part in match.group("first", "last") if part]
            if match is None or any(
                part not in words and not (part.isdecimal() and low <= int(part) <= high) for part in parts
            ):
                raise ValueError(f"{item!r} is no {name}, {low} to {high}: {_NO_CRON}")
    return value

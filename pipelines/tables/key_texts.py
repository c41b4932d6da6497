"""Texts of a key as data, logs and people write them, to find it where it is no value of a column."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, TypeAlias

from tidegate.pipelines.tables.keys import Key
from tidegate.windowing.keys import DECIMALS

KeyTexts: TypeAlias = tuple[tuple[re.Pattern[str], ...], ...]
"""For each part of a key that can be found in a text, a pattern for each way of writing it."""

_SHORTEST, _LONGEST = 3, 200
"""Numbers of characters of a part, before the dots that stand for the rest, by which it is told."""


def texts_of_key(key: Key, given: Sequence[str]) -> KeyTexts:
    """Return how a key may be written. A null and an empty text are in every text, so they are left out.

    Args:
        key: the values of the key columns.
        given: their texts, as a user wrote them.
    """
    parts = []
    for value, text in zip((part.as_py() for part in key), given, strict=True):
        ways = () if value is None else tuple(filter(None, dict.fromkeys(_ways(value, text))))
        if ways:
            is_number = isinstance(value, int | Decimal)
            parts.append(tuple(map(_number if is_number else _text, ways)))
    return tuple(parts)


def names_key(shown: str, key: KeyTexts) -> bool:
    """Return True if a text has every part of a key."""
    return bool(key) and all(_has(shown, part) for part in key)


def names_part(shown: str, key: KeyTexts) -> bool:
    """Return True if a text has a part of a key that is no piece of a longer word."""
    return any(re.search(rf"(?<![^\W_])(?:{way.pattern})(?![^\W_])", shown) for part in key for way in part)


def _has(shown: str, part: tuple[re.Pattern[str], ...]) -> bool:
    # Logs have texts as JSON within JSON.
    plain = shown.replace("\\", "")
    return any(way.search(shown) or way.search(plain) for way in part)


def _ways(value: Any, text: str) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        yield from (value.hex(), repr(value)[2:-1], value.decode(errors="replace"))
    elif isinstance(value, datetime):
        moment = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value
        yield text
        for separator in "T ":
            # What begins like it, with a part of a second or a zone after it, is found too.
            yield moment.isoformat(separator, "seconds")
    elif isinstance(value, date):
        yield value.isoformat()
    elif isinstance(value, Decimal):
        yield from (text, f"{value:f}", f"{value.normalize(DECIMALS):f}")
    else:
        yield from (text, str(value), str(value).lower())


def _number(text: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![\w.]){re.escape(text)}(?!\w)")


def _text(text: str) -> re.Pattern[str]:
    forms = {text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], repr(text)[1:-1]}
    # SQL doubles quotes, and `plain` above has no backslashes.
    forms |= {form.replace("'", "''") for form in forms} | {form.replace("\\", "") for form in forms}
    cut = {f"{form[:end]}..." for form in forms for end in range(_SHORTEST, min(_LONGEST, len(form)))}
    return re.compile("|".join(map(re.escape, sorted((forms | cut) - {""}))))

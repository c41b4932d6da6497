"""Keys as callers give them: Python values in code, and texts on the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from typing import TypeAlias

from tidegate.pipelines.tables.keys import NULL

_ESCAPE = re.compile(r"\\+(N|x([0-9a-fA-F]{2})+)")
"""Texts that the command line takes for a null or for bytes, unless another backslash stands before them."""


class KeyText(tuple[str, ...]):
    r"""A key as people write it on the command line, where `\N` is a null."""

    __slots__ = ()


KeyGiven: TypeAlias = Sequence[object] | KeyText
"""The values of the key columns in order; a text alone is the key of a single column."""


def key_text(key: KeyGiven | None) -> tuple[str, ...] | None:
    r"""Return the texts of a key's values, in the spelling of the command line; None for no key.

    >>> key_text(("ann", None, 7))
    ('ann', '\\N', '7')
    """
    if key is None or isinstance(key, KeyText):
        return key
    return tuple(map(_text, (key,) if isinstance(key, str | bytes) else key))


def _text(value: object) -> str:
    if value is None:
        return NULL
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, str):
        return f"\\{value}" if _ESCAPE.fullmatch(value) else value
    return str(value)

"""Sizes of data as people write them."""

from __future__ import annotations

import re

from tidegate.pipelines.errors import UsageError

_SIZE = re.compile(r"([0-9]+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_POWERS = ("", "k", "m", "g", "t")


def parse_size(text: str, field: str) -> int:
    """A number of bytes such as `1048576`, `64m` or `1g`; units are of 1024.

    Raises:
        UsageError: it is something else, or zero.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise UsageError(f"{field} {text!r}: give a number of bytes above zero, or one with a unit of k, m, g, t: 512m")
    return int(match[1]) << 10 * _POWERS.index(match[2].lower())

"""A check of the names of pipelines, savepoints and tables, which become names of folders."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,99}")
NAME_RULE = "use a letter from a to z or A to Z, then up to 99 such letters, digits, _ or -"


def check_name(name: str) -> str:
    """Return a name unchanged if it can name a pipeline or savepoint.

    Raises:
        ValueError: it is empty, too long, or holds anything but letters, digits, `_` and `-`.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"name {name!r}: {NAME_RULE}")
    return name

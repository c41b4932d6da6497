"""Values as names of test cases: the same in every process."""

from __future__ import annotations

import re


def named(value: object) -> str:
    """Its repr without where in memory a function lies."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))

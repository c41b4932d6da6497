"""The meaning of some `where` conditions, so that tests can decide what is correct without the product's code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CONDITIONS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "value % 3 <> 0": lambda row: row["value"] % 3 != 0,
    "value % 2 = 0": lambda row: row["value"] % 2 == 0,
    "value > 4": lambda row: row["value"] > 4,
}


def is_kept(where: str | None, row: dict[str, Any]) -> bool:
    """Return True if `where` keeps a row."""
    return where is None or CONDITIONS[where](row)

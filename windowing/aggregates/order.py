"""Order of values of any type, as Spark sorts them: nulls first, NaN after every number."""

from __future__ import annotations

from typing import Any


def order_key(value: Any) -> tuple[int, Any]:
    """Return a key that sorts `value` among values of its type. For floats, -0.0 equals 0.0."""
    if value is None:
        return (0, 0)
    if value != value:
        return (2, 0)
    return (1, value)

"""Evictor by time: keep the elements of the last span of time."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.windowing.errors import IllegalState
from tidegate.windowing.evictors.base import RuleEvictor, TimestampedValue
from tidegate.windowing.time import Duration, Millis, non_negative_millis


@dataclass(frozen=True, slots=True)
class TimeEvictor(RuleEvictor):
    """Evictor that keeps elements later than `newest - size`, but not one at exactly that time.

    If the first element has no timestamp, all elements are kept. Source: Flink's `TimeEvictor`.

    Args:
        size: length of the span: a timedelta, or int milliseconds.
        do_evict_after: True evicts after the function instead of before.
    """

    size: Millis
    do_evict_after: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", non_negative_millis(self.size, "size"))

    @classmethod
    def of(cls, size: Duration, do_evict_after: bool = False) -> TimeEvictor:
        """Make the evictor, in Flink's spelling."""
        return cls(non_negative_millis(size, "size"), do_evict_after)

    @property
    def sees_order(self) -> bool:
        return False

    def _kept(self, elements: list[TimestampedValue]) -> list[TimestampedValue]:
        if not elements or elements[0].timestamp is None:
            return elements
        cutoff = max(_timestamp(element) for element in elements) - self.size
        return [element for element in elements if _timestamp(element) > cutoff]


def _timestamp(element: TimestampedValue) -> Millis:
    if element.timestamp is None:
        raise IllegalState(
            f"element {element.value!r} has no timestamp, while the first element of its window has one: "
            "give every element a timestamp, or none"
        )
    return element.timestamp

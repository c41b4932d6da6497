"""Evictor by count: keep a number of elements that arrived last."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.evictors.base import RuleEvictor, TimestampedValue


@dataclass(frozen=True, slots=True)
class CountEvictor(RuleEvictor):
    """Evictor that keeps the last `max_count` arrivals. Source: Flink's `CountEvictor`.

    Args:
        max_count: number of elements to keep, 0 or more.
        do_evict_after: True evicts after the function instead of before.
    """

    max_count: int
    do_evict_after: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.max_count, bool) or not isinstance(self.max_count, int) or self.max_count < 0:
            raise IllegalArgument("max_count", self.max_count, "give a whole number of elements, 0 or more")

    @classmethod
    def of(cls, max_count: int, do_evict_after: bool = False) -> CountEvictor:
        """Make the evictor, in Flink's spelling."""
        return cls(max_count, do_evict_after)

    def _kept(self, elements: list[TimestampedValue]) -> list[TimestampedValue]:
        return elements[max(0, len(elements) - self.max_count) :]

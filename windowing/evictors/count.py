"""Keep the elements that came last, up to a number."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.evictors.base import Evictor, EvictorContext, TimestampedValue
from tidegate.windowing.windows import Window


@dataclass(frozen=True, slots=True)
class CountEvictor(Evictor):
    """Keeps the last `max_count` arrivals. Source: Flink's `CountEvictor`.

    Args:
        max_count: how many, 0 or more.
        do_evict_after: whether to evict after the function instead of before.
    """

    max_count: int
    do_evict_after: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.max_count, bool) or not isinstance(self.max_count, int) or self.max_count < 0:
            raise IllegalArgument("max_count", self.max_count, "give a whole number of elements, 0 or more")

    @classmethod
    def of(cls, max_count: int, do_evict_after: bool = False) -> CountEvictor:
        """The evictor; Flink's spelling."""
        return cls(max_count, do_evict_after)

    @property
    def bounds_state(self) -> bool:
        return True

    def evict_before(
        self, elements: list[TimestampedValue], window: Window, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        return elements if self.do_evict_after else self._last(elements)

    def evict_after(
        self, elements: list[TimestampedValue], window: Window, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        return self._last(elements) if self.do_evict_after else elements

    def _last(self, elements: list[TimestampedValue]) -> list[TimestampedValue]:
        return elements[max(0, len(elements) - self.max_count) :]

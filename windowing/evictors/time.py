"""Keep the elements of the last span of time."""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.windowing.errors import IllegalState
from tidegate.windowing.evictors.base import Evictor, EvictorContext, TimestampedValue
from tidegate.windowing.time import Duration, Millis, non_negative_millis
from tidegate.windowing.windows import Window


@dataclass(frozen=True, slots=True)
class TimeEvictor(Evictor):
    """Keeps elements later than `newest - size`; one at exactly that time goes. Source: Flink's `TimeEvictor`.

    Elements without timestamps are all kept: the first element alone decides whether there are any.

    Args:
        size: milliseconds (`of` takes a timedelta).
        do_evict_after: whether to evict after the function instead of before.
    """

    size: Millis
    do_evict_after: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", non_negative_millis(self.size, "size"))

    @classmethod
    def of(cls, size: Duration, do_evict_after: bool = False) -> TimeEvictor:
        """The evictor; Flink's spelling."""
        return cls(non_negative_millis(size, "size"), do_evict_after)

    @property
    def sees_order(self) -> bool:
        return False

    @property
    def bounds_state(self) -> bool:
        return True

    def evict_before(
        self, elements: list[TimestampedValue], window: Window, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        return elements if self.do_evict_after else self._recent(elements)

    def evict_after(
        self, elements: list[TimestampedValue], window: Window, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        return self._recent(elements) if self.do_evict_after else elements

    def _recent(self, elements: list[TimestampedValue]) -> list[TimestampedValue]:
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

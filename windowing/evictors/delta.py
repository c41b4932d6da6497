"""Keep the elements that lie near the one that came last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.windowing.evictors.base import Evictor, EvictorContext, TimestampedValue
from tidegate.windowing.windows import Window


@dataclass(frozen=True, slots=True)
class DeltaEvictor(Evictor):
    """Evicts elements for which `delta(element, last) >= threshold`. Source: Flink's `DeltaEvictor`.

    Args:
        threshold: in the unit of `delta`.
        delta: how far the last arrival lies from an element, `(element, last) -> number`.
        do_evict_after: whether to evict after the function instead of before.
    """

    threshold: float
    delta: Callable[[Any, Any], float]
    do_evict_after: bool = False

    @classmethod
    def of(cls, threshold: float, delta: Callable[[Any, Any], float], do_evict_after: bool = False) -> DeltaEvictor:
        """The evictor; Flink's spelling."""
        return cls(threshold, delta, do_evict_after)

    @property
    def bounds_state(self) -> bool:
        return True

    def evict_before(
        self, elements: list[TimestampedValue], window: Window, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        return elements if self.do_evict_after else self._near(elements)

    def evict_after(
        self, elements: list[TimestampedValue], window: Window, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        return self._near(elements) if self.do_evict_after else elements

    def _near(self, elements: list[TimestampedValue]) -> list[TimestampedValue]:
        if not elements:
            return elements
        last = elements[-1].value
        return [element for element in elements if self.delta(element.value, last) < self.threshold]

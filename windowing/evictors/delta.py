"""Evictor by delta: keep the elements that are near the last arrival."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tidegate.windowing.evictors.base import RuleEvictor, TimestampedValue


@dataclass(frozen=True, slots=True)
class DeltaEvictor(RuleEvictor):
    """Evictor of elements for which `delta(element, last) >= threshold`. Source: Flink's `DeltaEvictor`.

    Args:
        threshold: limit in the unit of `delta`.
        delta: distance of the last arrival from an element, `(element, last) -> number`.
        do_evict_after: True evicts after the function instead of before.
    """

    threshold: float
    delta: Callable[[Any, Any], float]
    do_evict_after: bool = False

    @classmethod
    def of(cls, threshold: float, delta: Callable[[Any, Any], float], do_evict_after: bool = False) -> DeltaEvictor:
        """Make the evictor, in Flink's spelling."""
        return cls(threshold, delta, do_evict_after)

    def _kept(self, elements: list[TimestampedValue]) -> list[TimestampedValue]:
        if not elements:
            return elements
        last = elements[-1].value
        return [element for element in elements if self.delta(element.value, last) < self.threshold]

"""Contract of evictors, which select the elements that a window's function gets, and those that stay in the window.

An evictor needs every element, so a window with an evictor can't be aggregated incrementally. Later firings don't see
evicted elements either. Source: Flink's `Evictor`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol

from tidegate.windowing.facts import HasFacts, fact
from tidegate.windowing.time import Millis
from tidegate.windowing.windows import Window


class TimestampedValue(NamedTuple):
    """An element in a window with an evictor; `timestamp` is None if it has none."""

    value: Any
    timestamp: Millis | None


class EvictorContext(Protocol):
    """The clocks for an evictor, int64 epoch milliseconds."""

    current_watermark: Millis
    current_processing_time: Millis


class Evictor(HasFacts, ABC):
    """An evictor, which removes elements before or after the window's function. Subclasses are frozen dataclasses.

    The facts at the end have safe answers (windowing/facts.py). An evictor with a better answer overrides them.
    """

    @abstractmethod
    def evict_before(
        self, elements: list[TimestampedValue], window: Window, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        """Return the elements for the function. Called before it with all elements in arrival order."""

    @abstractmethod
    def evict_after(
        self, elements: list[TimestampedValue], window: Window, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        """Return the elements that stay in the window. Called after the function with the elements that it got."""

    # --- facts -------------------------------------------------------------------------------

    @property
    @fact
    def sees_order(self) -> bool:
        """True if the elements that stay depend on the order in which they arrive."""
        return True

    @property
    @fact
    def bounds_state(self) -> bool:
        """True if the evictor removes elements from windows without an end, so that they need no other bound."""
        return False


class RuleEvictor(Evictor):
    """An evictor with one rule, which `do_evict_after` applies after the window's function instead of before it."""

    do_evict_after: bool

    @abstractmethod
    def _kept(self, elements: list[TimestampedValue]) -> list[TimestampedValue]:
        """Return the elements that the rule keeps."""

    def evict_before(
        self, elements: list[TimestampedValue], window: Window, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        return elements if self.do_evict_after else self._kept(elements)

    def evict_after(
        self, elements: list[TimestampedValue], window: Window, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        return self._kept(elements) if self.do_evict_after else elements

    @property
    def bounds_state(self) -> bool:
        return True

"""The evictor's contract: it takes elements out of a window before or after the function sees them.

An evictor needs every element, so a window with one can't be aggregated incrementally. Evicted
elements are gone for the next firing too. Source: Flink's `Evictor`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple, Protocol

from tidegate.windowing.facts import HasFacts, fact
from tidegate.windowing.time import Millis
from tidegate.windowing.windows import Window


class TimestampedValue(NamedTuple):
    """An element as windows with an evictor keep it; `timestamp` None if it has none."""

    value: Any
    timestamp: Millis | None


class EvictorContext(Protocol):
    """The clocks."""

    current_watermark: Millis
    current_processing_time: Millis


class Evictor(HasFacts, ABC):
    """Takes elements out before or after the window's function. Subclasses are frozen dataclasses.

    The facts at the end have safe answers (windowing/facts.py); an evictor that knows better overrides them.
    """

    @abstractmethod
    def evict_before(
        self, elements: list[TimestampedValue], window: Window, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        """The elements (in arrival order) that the function shall see."""

    @abstractmethod
    def evict_after(
        self, elements: list[TimestampedValue], window: Window, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        """The elements that stay in the window after its function ran."""

    # --- facts -------------------------------------------------------------------------------

    @property
    @fact
    def sees_order(self) -> bool:
        """True if the elements that stay depend on the order in which they arrive."""
        return True

    @property
    @fact
    def bounds_state(self) -> bool:
        """True if the evictor takes elements out of windows without an end, so that they need no other bound."""
        return False

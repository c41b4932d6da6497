"""Evictors, which select the elements that a window's function gets and the elements that remain in the window.

An evictor needs every element, so a window with an evictor can't be aggregated incrementally. Later firings don't see
evicted elements either. Source: Flink's `Evictor`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from tidegate.windowing.errors import IllegalArgument, IllegalState
from tidegate.windowing.facts import HasFacts, fact
from tidegate.windowing.time import Duration, Millis, non_negative_millis
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
    """An evictor removes elements before or after the window's function. Subclasses are frozen dataclasses.

    The facts at the end have safe answers (windowing/facts.py). An evictor with a better answer overrides them.
    """

    @abstractmethod
    def evict_before(
        self, elements: list[TimestampedValue], window: Window, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        """Return the elements for the function. Called before the function, with all elements in arrival order."""

    @abstractmethod
    def evict_after(
        self, elements: list[TimestampedValue], window: Window, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        """Return the elements that remain in the window. Called after the function with the elements that it got."""

    # --- facts -------------------------------------------------------------------------------

    @property
    @fact
    def sees_order(self) -> bool:
        """True if the elements that remain depend on the order in which they arrive."""
        return True

    @property
    @fact
    def bounds_state(self) -> bool:
        """True if the evictor removes elements from windows without an end, so that it bounds their state."""
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
        """Create the evictor, named as in Flink."""
        return cls(max_count, do_evict_after)

    def _kept(self, elements: list[TimestampedValue]) -> list[TimestampedValue]:
        return elements[max(0, len(elements) - self.max_count) :]


@dataclass(frozen=True, slots=True)
class DeltaEvictor(RuleEvictor):
    """Evictor that removes elements for which `delta(element, last) >= threshold`. Source: Flink's `DeltaEvictor`.

    If the delta is NaN, the element stays.

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
        """Create the evictor, named as in Flink."""
        return cls(threshold, delta, do_evict_after)

    def _kept(self, elements: list[TimestampedValue]) -> list[TimestampedValue]:
        if not elements:
            return elements
        last = elements[-1].value
        return [element for element in elements if not self.delta(element.value, last) >= self.threshold]


@dataclass(frozen=True, slots=True)
class TimeEvictor(RuleEvictor):
    """Evictor that keeps elements later than `newest - size`; an element at exactly that time is removed.

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
        """Create the evictor, named as in Flink."""
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

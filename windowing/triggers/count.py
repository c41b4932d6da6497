"""Trigger by count: fire at a number of elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any

import pyarrow as pa

from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.state.descriptors import ReducingStateDescriptor, StateDescriptor, ValueStateDescriptor
from tidegate.windowing.time import Millis
from tidegate.windowing.triggers.base import (
    CONTINUE,
    FIRE,
    BuiltIn,
    OnMergeContext,
    Trigger,
    TriggerContext,
    TriggerResult,
)
from tidegate.windowing.windows import Window

_COUNT = ReducingStateDescriptor("count", add, pa.int64())


@dataclass(frozen=True, slots=True)
class CountTrigger(BuiltIn):
    """Trigger that fires at every `max_count`-th element of a window. Source: Flink's `CountTrigger`.

    A merge adds up the counts of its windows. It does not fire, but the next element may. In time windows, no
    pane shows the elements after the last firing, as in Flink.

    Args:
        max_count: number of elements from one firing to the next, 1 or more.

    Raises:
        IllegalArgument: the count is below 1.
    """

    max_count: int

    def __post_init__(self) -> None:
        if isinstance(self.max_count, bool) or not isinstance(self.max_count, int) or self.max_count < 1:
            raise IllegalArgument("max_count", self.max_count, "give a whole number of elements, 1 or more")

    @classmethod
    def of(cls, max_count: int) -> CountTrigger:
        """Create the trigger, named as in Flink."""
        return cls(max_count)

    def on_element(self, element: Any, timestamp: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        count = ctx.get_partitioned_state(_COUNT)
        count.add(1)
        if count.get() < self.max_count:
            return CONTINUE
        count.clear()
        return FIRE

    def may_lose_data(self, *, event_time: bool, lateness: Millis) -> bool:
        return self.max_count > 1

    def counts_all(self, *, event_time: bool, merging: bool) -> bool:
        # If a session grows, its pane is retracted, and no counter knows how many elements were shown.
        return not merging

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        ctx.merge_partitioned_state(_COUNT)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.get_partitioned_state(_COUNT).clear()

    def states(self) -> Sequence[StateDescriptor]:
        return (_COUNT,)


@dataclass(frozen=True, slots=True)
class DeltaTrigger(Trigger):
    """Trigger that fires when `delta(reference, element) > threshold`. Then the element becomes the reference.

    The first element of a window is its first reference. The trigger does not support merging windows, because a merged
    window would have several references. Source: Flink's `DeltaTrigger`.

    Args:
        threshold: limit in the unit of `delta`. A delta equal to it does not fire.
        delta: function `(old, new) -> number`, the distance of an element from an earlier one.
        element_type: Arrow type of the elements, for the reference in a snapshot.
    """

    threshold: float
    delta: Callable[[Any, Any], float]
    element_type: pa.DataType

    @classmethod
    def of(cls, threshold: float, delta: Callable[[Any, Any], float], element_type: pa.DataType) -> DeltaTrigger:
        """Create the trigger, named as in Flink."""
        return cls(threshold, delta, element_type)

    def on_element(self, element: Any, timestamp: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        reference = ctx.get_partitioned_state(self._reference)
        old = reference.value()
        if old is None:
            reference.update(self._kept(element))
            return CONTINUE
        if self.delta(old, element) > self.threshold:
            reference.update(self._kept(element))
            return FIRE
        return CONTINUE

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.get_partitioned_state(self._reference).clear()

    def _kept(self, element: Any) -> Any:
        """Return the declared columns of an element: after a restore the reference has no others."""
        if not isinstance(self.element_type, pa.StructType) or not isinstance(element, Mapping):
            return element
        return {name: element.get(name) for name in self.element_type.names}

    @property
    def may_purge_unfired(self) -> bool:
        return False

    def states(self) -> Sequence[StateDescriptor]:
        return (self._reference,)

    @property
    def _reference(self) -> ValueStateDescriptor:
        return ValueStateDescriptor("reference", self.element_type)

"""Trigger by delta: fire when an element is far from a reference element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.windowing.state.descriptors import StateDescriptor, ValueStateDescriptor
from tidegate.windowing.time import Millis
from tidegate.windowing.triggers.base import CONTINUE, FIRE, Trigger, TriggerContext, TriggerResult
from tidegate.windowing.windows import Window


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

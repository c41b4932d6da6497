"""Fire when an element lies far enough from the one that fired last."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.windowing.state.descriptors import StateDescriptor, ValueStateDescriptor
from tidegate.windowing.time import Millis
from tidegate.windowing.triggers.base import CONTINUE, FIRE, Trigger, TriggerContext, TriggerResult
from tidegate.windowing.windows import Window


@dataclass(frozen=True, slots=True)
class DeltaTrigger(Trigger):
    """Fires when `delta(reference, element) > threshold`; the reference moves only when it fires.

    Args:
        threshold: strictly passed, in the unit of `delta`.
        delta: how far an element lies from an earlier one, `(old, new) -> number`.
        element_type: Arrow type of the elements, which the reference is kept as.

    Source: Flink's `DeltaTrigger`. It can't merge: which window's reference should stay?
    """

    threshold: float
    delta: Callable[[Any, Any], float]
    element_type: pa.DataType

    @classmethod
    def of(cls, threshold: float, delta: Callable[[Any, Any], float], element_type: pa.DataType) -> DeltaTrigger:
        """The trigger; Flink's spelling."""
        return cls(threshold, delta, element_type)

    def on_element(self, element: Any, timestamp: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        reference = ctx.get_partitioned_state(self._reference)
        old = reference.value()
        if old is None:
            reference.update(element)
            return CONTINUE
        if self.delta(old, element) > self.threshold:
            reference.update(element)
            return FIRE
        return CONTINUE

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.get_partitioned_state(self._reference).clear()

    def states(self) -> Sequence[StateDescriptor]:
        return (self._reference,)

    @property
    def _reference(self) -> ValueStateDescriptor:
        return ValueStateDescriptor("reference", self.element_type)

"""Trigger by count: fire at a number of elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add
from typing import Any

import pyarrow as pa

from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.state.descriptors import ReducingStateDescriptor, StateDescriptor
from tidegate.windowing.time import Millis
from tidegate.windowing.triggers.base import CONTINUE, FIRE, BuiltIn, OnMergeContext, TriggerContext, TriggerResult
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

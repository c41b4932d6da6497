"""Parts of windows as a user would write them on the base classes alone, one of each kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.windowing.assigners import AssignerContext, MergingWindowAssigner, WindowAssigner
from tidegate.windowing.evictors import Evictor, EvictorContext, TimestampedValue
from tidegate.windowing.functions import AggregateFunction
from tidegate.windowing.state import ValueStateDescriptor
from tidegate.windowing.time import Millis
from tidegate.windowing.triggers import OnMergeContext, Trigger, TriggerContext, TriggerResult
from tidegate.windowing.windows import Window

CONTINUE = TriggerResult.CONTINUE


@dataclass(frozen=True)
class Given(WindowAssigner):
    """Puts each element into the windows that it lists."""

    event_time: bool

    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[Window]:
        return element  # type: ignore[no-any-return]

    def get_default_trigger(self) -> Trigger:
        return Scripted()

    @property
    def is_event_time(self) -> bool:
        return self.event_time


class GivenMerging(Given, MergingWindowAssigner):
    """Like `Given`, but adjacent windows merge."""


@dataclass(eq=False)
class Scripted(Trigger):
    """Does with an element what a test says, and never fires by a timer."""

    element: Callable[[Window, TriggerContext], TriggerResult] = lambda window, ctx: CONTINUE
    state: ValueStateDescriptor = field(default=ValueStateDescriptor("cell", pa.int64()))

    def on_element(self, element: Any, timestamp: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        return self.element(window, ctx)

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        """The merged window begins again."""

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        ctx.get_partitioned_state(self.state).clear()

    def states(self) -> Sequence[ValueStateDescriptor]:
        return (self.state,)


@dataclass(frozen=True)
class KeepAll(Evictor):
    """Evicts nothing, but makes the operator keep contents as an evictor needs them."""

    def evict_before(
        self, elements: list[TimestampedValue], window: Window, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        return elements

    def evict_after(
        self, elements: list[TimestampedValue], window: Window, ctx: EvictorContext
    ) -> list[TimestampedValue]:
        return elements


class CountThem(AggregateFunction):
    """Number of elements."""

    accumulator_type = pa.int64()

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, accumulator: int, other: int) -> int:
        return accumulator + other


def named(value: object) -> str:
    """Return its repr without the memory address of a function."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))

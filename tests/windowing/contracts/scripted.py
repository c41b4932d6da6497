"""A window operator of which a test scripts everything: the windows of an element, and what its trigger does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.windowing import Windows
from tidegate.windowing.assigners import AssignerContext, MergingWindowAssigner, WindowAssigner
from tidegate.windowing.evictors import Evictor, EvictorContext, TimestampedValue
from tidegate.windowing.functions import AggregateFunction, ProcessWindowFunction
from tidegate.windowing.state import ValueStateDescriptor
from tidegate.windowing.testing import OperatorHarness, window_harness
from tidegate.windowing.time import Millis
from tidegate.windowing.triggers import OnMergeContext, Trigger, TriggerContext, TriggerResult
from tidegate.windowing.windows import Window

CONTINUE, FIRE, PURGE, FIRE_AND_PURGE = TriggerResult


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
    """As `Given`, and windows that touch merge."""


@dataclass(eq=False)
class Scripted(Trigger):
    """Does what a test says, and remembers how it was called."""

    element: Callable[[Window, TriggerContext], TriggerResult] = lambda window, ctx: CONTINUE
    event_time: Callable[[Window, TriggerContext], TriggerResult] = lambda window, ctx: CONTINUE
    processing_time: Callable[[Window, TriggerContext], TriggerResult] = lambda window, ctx: CONTINUE
    merge: Callable[[Window, OnMergeContext], None] = lambda window, ctx: None
    calls: list[tuple[str, Window]] = field(default_factory=list)
    state: ValueStateDescriptor = field(default=ValueStateDescriptor("cell", pa.int64()))

    def on_element(self, element: Any, timestamp: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        self.calls.append(("element", window))
        return self.element(window, ctx)

    def on_event_time(self, time: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        self.calls.append(("event_time", window))
        return self.event_time(window, ctx)

    def on_processing_time(self, time: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        self.calls.append(("processing_time", window))
        return self.processing_time(window, ctx)

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        self.calls.append(("merge", window))
        self.merge(window, ctx)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        self.calls.append(("clear", window))
        ctx.get_partitioned_state(self.state).clear()

    def states(self) -> Sequence[ValueStateDescriptor]:
        return (self.state,)

    def take_calls(self) -> list[tuple[str, Window]]:
        calls, self.calls = self.calls, []
        return calls


class Collect(ProcessWindowFunction):
    """The elements that it sees, and how often its hooks were called."""

    def __init__(self) -> None:
        self.cleared: list[Window] = []

    def process(self, key: Any, ctx: Any, elements: Sequence[Any]) -> Iterable[Any]:
        return [len(elements)]

    def clear(self, ctx: Any) -> None:
        self.cleared.append(ctx.window)


@dataclass(frozen=True)
class KeepAll(Evictor):
    """Evicts nothing: contents are kept as an evictor needs them."""

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


FORMS: dict[str, Callable[[], dict[str, Any]]] = {
    "list": lambda: {"process": Collect()},
    "evictor": lambda: {"process": Collect(), "evictor": KeepAll()},
    "aggregate": lambda: {"aggregate": CountThem()},
}


@dataclass
class Contract:
    """One operator under test: its harness, trigger, function and time domain."""

    event_time: bool
    merging: bool
    form: str
    lateness: Millis = 0
    trigger: Scripted = field(default_factory=Scripted)

    def __post_init__(self) -> None:
        assigner = GivenMerging(self.event_time) if self.merging else Given(self.event_time)
        parts = FORMS[self.form]()
        self.function: Collect | None = parts.get("process")
        windows = Windows(assigner, self.trigger, allowed_lateness=self.lateness, **parts)
        self.run: OperatorHarness = window_harness(windows)

    def element(self, *windows: Window, timestamp: Millis = 0) -> list[Any]:
        self.run.element("key", list(windows), timestamp)
        return self.results()

    def move(self, time: Millis) -> list[Any]:
        (self.run.watermark if self.event_time else self.run.processing_time)(time)
        return self.results()

    def results(self) -> list[Any]:
        return [(result.window, result.value) for result in self.run.results()]

    def register(self, ctx: TriggerContext, time: Millis) -> None:
        (ctx.register_event_time_timer if self.event_time else ctx.register_processing_time_timer)(time)

    def on_time(self, hook: Callable[[Window, TriggerContext], TriggerResult]) -> None:
        if self.event_time:
            self.trigger.event_time = hook
        else:
            self.trigger.processing_time = hook

    @property
    def timer_hook(self) -> str:
        return "event_time" if self.event_time else "processing_time"

    @property
    def timers(self) -> int:
        """Timers of this domain; the other one has none."""
        mine, others = self.run.event_time_timers, self.run.processing_time_timers
        mine, others = (mine, others) if self.event_time else (others, mine)
        assert others == 0
        return mine


def named(value: object) -> str:
    """Its repr without where in memory a function lies."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))

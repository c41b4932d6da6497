"""Contexts that triggers and window functions receive; each operator reuses them for every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.compute import Windows
from tidegate.windowing.errors import UnsupportedOperation
from tidegate.windowing.merging import MergingWindowSet
from tidegate.windowing.operators.records import Record, SideOutput
from tidegate.windowing.operators.window.cleanup import Cleanup, WindowCell
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.state.descriptors import StateDescriptor
from tidegate.windowing.time import MIN_TIMESTAMP, Millis, checked_time, in_range
from tidegate.windowing.timers import InternalTimerService, Slot, TimerQueue
from tidegate.windowing.windows import GLOBAL_WINDOW, Window


class WindowTriggerContext:
    """The context of a trigger, for the (key, window) in `slot`; evictors also read its watermark and clock.

    Without `cleanup`, it serves only triggers, without windows. `owner` is the trigger, which errors name; without it,
    times are not checked.
    """

    def __init__(self, timers: InternalTimerService, cleanup: Cleanup | None = None, owner: object = None) -> None:
        self._cleanup = cleanup
        self._owner = owner
        self._event_timers = timers.event_time
        self._processing_timers = timers.processing_time
        self.current_watermark: Millis = MIN_TIMESTAMP
        self.current_processing_time: Millis = 0
        self.slot: Slot = (None, None)
        self.cell = WindowCell()
        self.merged: list[WindowCell] = []

    def register_event_time_timer(self, time: Millis) -> None:
        self._event_timers.add(self._checked(time), self.slot)

    def delete_event_time_timer(self, time: Millis) -> None:
        self._delete(self._event_timers, time)

    def register_processing_time_timer(self, time: Millis) -> None:
        self._processing_timers.add(self._checked(time), self.slot)

    def delete_processing_time_timer(self, time: Millis) -> None:
        self._delete(self._processing_timers, time)

    def get_partitioned_state(self, descriptor: StateDescriptor) -> Any:
        state = self.cell.trigger_state
        if state is None:
            state = self.cell.trigger_state = {}
        return descriptor.bind(state, self._clock)

    def merge_partitioned_state(self, descriptor: StateDescriptor) -> None:
        target = self.cell.trigger_state
        if target is None:
            target = self.cell.trigger_state = {}
        for source in self.merged:
            if source is not self.cell and source.trigger_state:
                descriptor.merge(target, source.trigger_state)

    def _checked(self, time: Millis) -> Millis:
        if (type(time) is int and in_range(time)) or self._owner is None:
            return time
        if self.slot[1] is not None and time == self.slot[1].max_timestamp:
            # Windows are checked on their own.
            return time
        return checked_time(time, f"time of a timer of {type(self._owner).__name__}")

    def _delete(self, timers: TimerQueue, time: Millis) -> None:
        time = self._checked(time)
        if self._cleanup is None:
            timers.remove(time, self.slot)
        else:
            self._cleanup.delete(timers, time, self.slot)

    def _clock(self) -> Millis:
        return self.current_processing_time


class StateStore:
    """Declared state of one cell, for user functions."""

    __slots__ = ("_cell", "_clock", "_declared", "_owner")

    def __init__(
        self, cell: dict[str, Any], clock: Callable[[], Millis], declared: frozenset[str], owner: object
    ) -> None:
        self._cell, self._clock, self._declared, self._owner = cell, clock, declared, owner

    def get_state(self, descriptor: StateDescriptor) -> Any:
        """Return a handle on the state that `descriptor` declares."""
        if descriptor.name not in self._declared:
            raise UnsupportedOperation(
                f"state {descriptor.name!r} of {type(self._owner).__name__} is not declared: "
                "return its descriptor from states() (or global_states()), so that a snapshot can hold it"
            )
        return descriptor.bind(self._cell, self._clock, self._owner)


class WindowFunctionContext:
    """The context of a process window function, for the (key, window) in `slot`."""

    def __init__(
        self,
        function: Any,
        trigger_context: WindowTriggerContext,
        global_cells: dict[Any, dict[str, Any]],
        merging: bool,
        emit: Callable[[SideOutput], None],
    ) -> None:
        self.function = function
        self.cell = WindowCell()
        self.slot: Slot = (None, GLOBAL_WINDOW)
        self._trigger_context = trigger_context
        self._globals = global_cells
        self._merging = merging
        self._emit = emit
        self._names = (
            frozenset(state.name for state in function.states()),
            frozenset(state.name for state in function.global_states()),
        )

    @property
    def window(self) -> Window:
        window: Window = self.slot[1]
        return window

    @property
    def current_watermark(self) -> Millis:
        return self._trigger_context.current_watermark

    @property
    def current_processing_time(self) -> Millis:
        return self._trigger_context.current_processing_time

    @property
    def window_state(self) -> StateStore:
        if self._merging:
            raise UnsupportedOperation(
                "per-window state is not allowed with windows that merge: use ctx.global_state, "
                "or keep what you need in an aggregate"
            )
        if self.cell.function_state is None:
            self.cell.function_state = {}
        return StateStore(self.cell.function_state, self._clock, self._names[0], self.function)

    @property
    def global_state(self) -> StateStore:
        cell = self._globals.setdefault(self.slot[0], {})
        return StateStore(cell, self._clock, self._names[1], self.function)

    def output(self, tag: str, value: Any) -> None:
        self._emit(SideOutput(tag, value, self.window.max_timestamp, self.slot[0]))

    def _clock(self) -> Millis:
        return self._trigger_context.current_processing_time


class WindowOperatorState(Protocol):
    """Configuration and state of a window operator, as its parts use them.

    `merging_sets` has the windows in flight of each key if windows merge, `global_cells` the functions' state for each
    key, independent of windows, and `late_firings` the cells that fire when their commit ends.
    """

    windows: Windows
    panes: PanePolicy
    assigner: WindowAssigner
    merging: bool
    cleanup: Cleanup
    timers: InternalTimerService
    cells: dict[Slot, WindowCell]
    merging_sets: dict[Any, MergingWindowSet]
    global_cells: dict[Any, dict[str, Any]]
    late_firings: dict[Slot, None]
    output: list[Record]

    @property
    def current_processing_time(self) -> Millis:
        """The clock, int64 epoch milliseconds."""

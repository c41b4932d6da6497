"""What operators of process functions share: keyed state, timers, and the context of a hook."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from windowing.errors import IllegalArgument, IllegalState, UnsupportedOperation
from windowing.functions.keyed_process import OnTimerContext, ProcessContext, TimeDomain
from windowing.keys import KeyGroupRange, KeySchema
from windowing.operators.counters import Counters
from windowing.operators.records import ElementResult, Record, SideOutput
from windowing.operators.window.contexts import StateStore
from windowing.state.descriptors import Cell, StateDescriptor, without_expired
from windowing.state.rows import KEY, StateRow, StateSchema
from windowing.time import Millis
from windowing.timers import VOID_NAMESPACE, InternalTimerService, KeyContext, Slot, TimerQueue, TimerService

ElementHook: TypeAlias = Callable[[Any, ProcessContext], Iterable[Any] | None]


class ProcessFunction(Protocol):
    """What every process function has, whatever the number of its inputs."""

    def on_timer(self, timestamp: Millis, ctx: OnTimerContext) -> Iterable[Any] | None:
        """A timer fired."""

    def states(self) -> Sequence[StateDescriptor]:
        """Declared state."""


class HookContext:
    """The context of a hook, for the key of the element or timer; reused from call to call."""

    __slots__ = ("_domain", "_emit", "_function", "_names", "_timer_service", "_timers", "cells", "timestamp")

    def __init__(
        self, function: ProcessFunction, timers: InternalTimerService, emit: Callable[[SideOutput], None]
    ) -> None:
        self._function = function
        self._names = frozenset(state.name for state in function.states())
        self._timers = timers
        self._timer_service = TimerService(timers)
        self._emit = emit
        self._domain: TimeDomain | None = None
        self.cells: dict[Any, Cell] = {}
        self.timestamp: Millis | None = None

    @property
    def current_key(self) -> Any:
        return self._timers.key_context.current_key

    @property
    def time_domain(self) -> TimeDomain:
        if self._domain is None:
            raise IllegalState("time_domain is that of a timer: read it in on_timer only")
        return self._domain

    def timer_service(self) -> TimerService:
        return self._timer_service

    def get_state(self, descriptor: StateDescriptor) -> Any:
        if not self._timers.key_context.keyed:
            raise UnsupportedOperation(
                f"state {descriptor.name!r}: keyed state is only supported on keyed streams: give the stream a key "
                "(a constant one if all elements belong together)"
            )
        cell = self.cells.setdefault(self.current_key, {})
        return StateStore(cell, self._clock, self._names, self._function).get_state(descriptor)

    def output(self, tag: str, value: Any) -> None:
        if not isinstance(tag, str) or not tag:
            raise IllegalArgument("tag", tag, "name the side output with a text")
        self._emit(SideOutput(tag, value, self.timestamp, self.current_key))

    def enter(self, key: Any, timestamp: Millis | None, domain: TimeDomain | None = None) -> None:
        """Work for an element (no domain) or a timer of `key` from now on."""
        self._timers.key_context.current_key = key
        self.timestamp, self._domain = timestamp, domain

    def leave(self) -> None:
        """The hook is done: a cell that holds nothing goes."""
        key = self.current_key
        if key in self.cells and not self.cells[key]:
            del self.cells[key]

    def _clock(self) -> Millis:
        return self._timers.current_processing_time


class ProcessCore:
    """Runs the hooks of one process function, and keeps what they keep.

    Args:
        function: the function.
        keyed: False for a stream without a key, on which state and timers are refused.
        key_groups: the range this operator owns.
        key_group_of: the key group of a key; needed to rescale.
    """

    def __init__(
        self, function: ProcessFunction, keyed: bool, key_groups: KeyGroupRange, key_group_of: Callable[[Any], int]
    ) -> None:
        self.output: list[Record] = []
        self.counters = Counters()
        self.timers = InternalTimerService(KeyContext(keyed=keyed), key_groups, key_group_of)
        self.timers.start("key", "void", self)
        self._function = function
        self._context = HookContext(function, self.timers, self.output.append)

    def process(self, hook: ElementHook, key: Any, value: Any, timestamp: Millis | None) -> None:
        """Run the hook of an element."""
        self.counters.elements += 1
        self._context.enter(key, timestamp)
        self._emit(hook(value, self._context), key, timestamp)

    def on_event_time(self, time: Millis, slot: Slot) -> None:
        """Called back by the timer service."""
        self._context.enter(slot[0], time, TimeDomain.EVENT_TIME)
        self._emit(self._function.on_timer(time, self._context), slot[0], time)

    def on_processing_time(self, time: Millis, slot: Slot) -> None:
        """Called back by the timer service."""
        self._context.enter(slot[0], time, TimeDomain.PROCESSING_TIME)
        self._emit(self._function.on_timer(time, self._context), slot[0], None)

    def _emit(self, results: Iterable[Any] | None, key: Any, timestamp: Millis | None) -> None:
        if results is not None:
            # A row or a text is no list of results, though Python could walk it as one.
            if isinstance(results, str | bytes | Mapping) or not isinstance(results, Iterable):
                raise IllegalArgument("results", results, "yield results, or return them in a list")
            for value in results:
                self.output.append(ElementResult(value, timestamp, key))
        self._context.leave()

    def take_output(self) -> list[Record]:
        """What came out since the last call."""
        records = self.output[:]
        self.output.clear()
        return records

    def state_rows(self) -> Iterator[StateRow]:
        """State and timers, one row for each key; state whose time to live has passed is left out."""
        declared, clock = self._function.states(), lambda: self.timers.current_processing_time
        swept = {key: without_expired(cell, declared, clock) for key, cell in self._context.cells.items()}
        cells = {key: cell for key, cell in swept.items() if cell}
        event, processing = times_by_slot(self.timers.event_time), times_by_slot(self.timers.processing_time)
        slots = {(key, VOID_NAMESPACE): None for key in cells} | dict.fromkeys(event) | dict.fromkeys(processing)
        for slot in slots:
            yield StateRow(
                slot[0],
                KEY,
                event_time_timers=event.get(slot, []),
                processing_time_timers=processing.get(slot, []),
                user_state=cells.get(slot[0]),
            )

    def restore_state(self, rows: Iterable[StateRow]) -> None:
        """Take in rows; the operator must be new."""
        for row in rows:
            slot = (row.key, VOID_NAMESPACE)
            for time in row.event_time_timers:
                self.timers.event_time.add(time, slot)
            for time in row.processing_time_timers:
                self.timers.processing_time.add(time, slot)
            if row.user_state:
                self._context.cells[row.key] = dict(row.user_state)
        # Timers that come back were counted when they were set.
        self.timers.event_time.added = self.timers.processing_time.added = 0

    def restore_time(self, watermark: Millis, processing_time: Millis) -> None:
        """Set both clocks without firing; what is overdue fires at the next move."""
        self.timers.current_watermark, self.timers.current_processing_time = watermark, processing_time

    def num_state_entries(self) -> int:
        """Number of non-empty state cells."""
        return sum(len(cell) for cell in self._context.cells.values())


def process_schema(function: ProcessFunction, key: KeySchema) -> StateSchema:
    """The columns of the state rows of a process function."""
    declared = tuple((state.name, state.arrow_type) for state in function.states())
    return StateSchema(key, user_state=declared, namespace=KEY)


def times_by_slot(timers: TimerQueue) -> dict[Slot, list[Millis]]:
    """The times of each slot's timers, ascending."""
    slots: dict[Slot, list[Millis]] = {}
    for time, slot in timers:
        slots.setdefault(slot, []).append(time)
    return slots

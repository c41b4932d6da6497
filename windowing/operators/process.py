"""The operators of process functions, with one input or two: keyed state, timers, held elements, context of hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any, TypeAlias

import pyarrow as pa

from tidegate.windowing.compute import CoProcess, KeyedProcess
from tidegate.windowing.declared import row_checker
from tidegate.windowing.errors import IllegalArgument, IllegalState, MissingTimestamp, UnsupportedOperation
from tidegate.windowing.functions.process import ProcessContext, ProcessFunction
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.held import ElementTypes, HeldElements, Side, held_contents
from tidegate.windowing.operators.protocol import KeyedOperator
from tidegate.windowing.operators.records import LATE, ElementResult, LateElement, SideOutput, WatermarkRecord
from tidegate.windowing.operators.two_inputs import TwoInputOperator
from tidegate.windowing.operators.window.contexts import StateStore
from tidegate.windowing.sides import LEFT, RIGHT, SIDES, checked_side
from tidegate.windowing.state.descriptors import Cell, StateDescriptor, without_expired
from tidegate.windowing.state.rows import KEY, StateRow, StateSchema
from tidegate.windowing.time import MIN_TIMESTAMP, Millis, TimeDomain
from tidegate.windowing.timers import VOID_NAMESPACE, InternalTimerService, Slot, TimerService

ElementHook: TypeAlias = Callable[[Any, ProcessContext], Iterable[Any] | None]


class HookContext:
    """The context of a hook, for the key of the element or timer; reused for every call."""

    def __init__(
        self, function: ProcessFunction, timers: InternalTimerService, emit: Callable[[SideOutput], None]
    ) -> None:
        self._function = function
        self._names = frozenset(state.name for state in function.states())
        self._fits = {
            tag: row_checker(kind, function, f"side output {tag!r}") for tag, kind in function.side_outputs.items()
        }
        self._timers = timers
        self._timer_service = TimerService(timers, function)
        self._emit = emit
        self._domain: TimeDomain | None = None
        self.cells: dict[Any, Cell] = {}
        self.timestamp: Millis | None = None

    @property
    def current_key(self) -> Any:
        return self._timers.current_key

    @property
    def time_domain(self) -> TimeDomain:
        if self._domain is None:
            raise IllegalState("time_domain belongs to a timer: read it in on_timer only")
        return self._domain

    def timer_service(self) -> TimerService:
        return self._timer_service

    def get_state(self, descriptor: StateDescriptor) -> Any:
        if not self._timers.keyed:
            raise UnsupportedOperation(
                f"state {descriptor.name!r}: keyed state is only supported on keyed streams: give the stream a key "
                "(a constant one if all elements belong together)"
            )
        cell = self.cells.setdefault(self.current_key, {})
        return StateStore(cell, self._clock, self._names, self._function).get_state(descriptor)

    def output(self, tag: str, value: Any) -> None:
        if not isinstance(tag, str) or not tag:
            raise IllegalArgument("tag", tag, "give the side output a string as its name")
        if (fit := self._fits.get(tag)) is not None:
            value = fit(value)
        self._emit(SideOutput(tag, value, self.timestamp, self.current_key))

    def enter(self, key: Any, timestamp: Millis | None, domain: TimeDomain | None = None) -> None:
        """Switch to an element (no domain) or a timer of `key`."""
        self._timers.current_key = key
        self.timestamp, self._domain = timestamp, domain

    def leave(self) -> None:
        """End the hook, and remove the key's cell if it is empty."""
        key = self.current_key
        if key in self.cells and not self.cells[key]:
            del self.cells[key]

    def _clock(self) -> Millis:
        return self._timers.current_processing_time


class ProcessOperator(KeyedOperator):
    """Runs the hooks of a process function, and keeps their state and timers. Subclasses add the inputs: one or two.

    Without sorting, each element goes to its hook immediately. If elements are sorted by time, they are held until the
    watermark reaches them, and go to their hooks in event order, with due timers between them. Then an element whose
    time the watermark has already reached is late, and its hook never gets it.

    Args:
        function: the function.
        hooks: the hook for the elements of each input.
        types: type of the elements of each input if they are sorted by time, else None.
        keyed: False for a stream without a key, which refuses state and timers.
    """

    def __init__(
        self,
        function: ProcessFunction,
        hooks: Mapping[Side, ElementHook],
        types: ElementTypes | None,
        *,
        keyed: bool,
    ) -> None:
        super().__init__(keyed=keyed)
        self._function = function
        self._hooks = hooks
        self._held = None if types is None else HeldElements(types)
        self._context = HookContext(function, self.timers, self.output.append)
        self._fit = row_checker(function.result_type, function)

    def _take_in(self, key: Any, value: Any, timestamp: Millis | None, side: Side = None) -> None:
        """Process an element: run its hook, or hold it until the watermark reaches its time.

        Raises:
            MissingTimestamp: elements are sorted by time, and this one has none.
        """
        self._counters.elements += 1
        if self._held is None:
            self._run_hook(key, value, timestamp, side)
        elif timestamp is None or timestamp == MIN_TIMESTAMP:
            raise MissingTimestamp
        elif timestamp > self.timers.current_watermark:
            self._held.add(key, timestamp, side, value)
        else:
            self._counters.late += 1
            self.output.append(LateElement(key, value, timestamp, LATE, None, self.timers.current_watermark, side))

    def _advance_watermark(self, watermark: Millis) -> None:
        """Advance event time (it never goes back): feed due elements, and fire due timers.

        If elements are sorted by time, each is fed just before the watermark reaches it, and each timer
        fires at its own time: a hook sees the same watermark whether this is one advance or many.
        """
        held = self._held
        if held is None:
            self.timers.advance_watermark(watermark)
            return
        timers, watermark = self.timers, max(self.timers.current_watermark, watermark)
        while (due := self.next_event_time) is not None and due <= watermark:
            if due != held.next_time():
                timers.advance_watermark(due)
                continue
            timers.current_watermark = max(timers.current_watermark, due - 1)
            for key, (side, value) in held.take():
                self._counters.fed += 1
                self._run_hook(key, value, due, side)
        timers.advance_watermark(watermark)

    @property
    def next_event_time(self) -> Millis | None:
        timer = self.timers.event_time.peek()
        element = None if self._held is None else self._held.next_time()
        return timer if element is None else element if timer is None else min(timer, element)

    def _run_hook(self, key: Any, value: Any, timestamp: Millis | None, side: Side) -> None:
        self._context.enter(key, timestamp)
        self._emit(self._hooks[side](value, self._context), key, timestamp)

    def on_event_time(self, time: Millis, slot: Slot) -> None:
        self._context.enter(slot[0], time, TimeDomain.EVENT_TIME)
        self._emit(self._function.on_timer(time, self._context), slot[0], time)

    def on_processing_time(self, time: Millis, slot: Slot) -> None:
        self._context.enter(slot[0], time, TimeDomain.PROCESSING_TIME)
        self._emit(self._function.on_timer(time, self._context), slot[0], None)

    def _emit(self, results: Iterable[Any] | None, key: Any, timestamp: Millis | None) -> None:
        if results is not None:
            # A row or a string is not a list of results, although Python could iterate over it.
            if isinstance(results, str | bytes | Mapping) or not isinstance(results, Iterable):
                raise IllegalArgument("results", results, "yield results, or return them in a list")
            for value in results:
                self.output.append(ElementResult(self._fit(value), timestamp, key))
        self._context.leave()

    def state_rows(self) -> Iterator[StateRow]:
        """Yield a row for each key: state that has not expired, timers, and held elements."""
        declared, clock = self._function.states(), lambda: self.timers.current_processing_time
        swept = {key: without_expired(cell, declared, clock) for key, cell in self._context.cells.items()}
        cells = {key: cell for key, cell in swept.items() if cell}
        timers = self.timers.snapshot()
        held = {} if self._held is None else self._held.by_key()
        slots: dict[Slot, None] = dict.fromkeys((key, VOID_NAMESPACE) for key in (*cells, *held))
        for slot in slots | dict.fromkeys(timers):
            event_time, processing_time = timers.get(slot) or ([], [])
            yield StateRow(
                slot[0],
                KEY,
                event_time_timers=event_time,
                processing_time_timers=processing_time,
                contents=held.get(slot[0]),
                user_state=cells.get(slot[0]),
            )

    def restore_state(self, rows: Iterable[StateRow]) -> None:
        for row in rows:
            self.timers.restore((row.key, VOID_NAMESPACE), (row.event_time_timers, row.processing_time_timers))
            if row.user_state:
                self._context.cells[row.key] = dict(row.user_state)
            if row.contents is not None and self._held is not None:
                self._held.restore(row.key, row.contents)

    def num_state_entries(self) -> int:
        cells = sum(len(cell) for cell in self._context.cells.values())
        return cells + (0 if self._held is None else len(self._held))


def process_schema(process: KeyedProcess | CoProcess, key: KeySchema, *inputs: pa.StructType | None) -> StateSchema:
    """Return the schema of the state rows of a process function.

    The types are those of elements kept in state, which are kept if elements are sorted by time. Missing types are
    inferred.
    """
    function, sides = process.function, SIDES if isinstance(process, CoProcess) else (None,)
    declared = tuple((state.name, state.arrow_type) for state in function.states())
    held = held_contents(dict(zip_longest(sides, inputs))) if process.time_sorted else ()
    return StateSchema(key, held, user_state=declared, namespace=KEY)


class KeyedProcessOperator(ProcessOperator):
    """Runs a `KeyedProcessFunction`, with the state and timers of each key. Source: Flink's `KeyedProcessOperator`.

    Args:
        process: the computation.
        value_type: Arrow type of the elements; if given, its columns order elements with the same time.
        keyed: False for a stream without a key, which refuses state and timers.
    """

    def __init__(
        self,
        process: KeyedProcess,
        *,
        value_type: pa.StructType | None = None,
        keyed: bool = True,
    ) -> None:
        super().__init__(
            process.function,
            {None: process.function.process_element},
            {None: value_type} if process.time_sorted else None,
            keyed=keyed,
        )

    def process_element(self, key: Any, value: Any, timestamp: Millis | None, side: str | None = None) -> None:
        self._take_in(key, value, timestamp)

    def process_watermark(self, watermark: Millis, side: str | None = None) -> None:
        self._advance_watermark(watermark)
        self.output.append(WatermarkRecord(self.timers.current_watermark))


class KeyedCoProcessOperator(TwoInputOperator, ProcessOperator):
    """Runs a `KeyedCoProcessFunction` over the inputs `left` and `right`. Source: Flink's `KeyedCoProcessOperator`.

    Args:
        process: the computation.
        left_type: Arrow type of the left elements; if given, its columns order elements with the same time.
        right_type: Arrow type of the right elements. At the same time, left elements come before right ones.
        keyed: False for a stream without a key, which refuses state and timers.
    """

    def __init__(
        self,
        process: CoProcess,
        *,
        left_type: pa.StructType | None = None,
        right_type: pa.StructType | None = None,
        keyed: bool = True,
    ) -> None:
        super().__init__(
            process.function,
            {LEFT: process.function.process_element1, RIGHT: process.function.process_element2},
            {LEFT: left_type, RIGHT: right_type} if process.time_sorted else None,
            keyed=keyed,
        )

    def process_element(self, key: Any, value: Any, timestamp: Millis | None, side: str | None = None) -> None:
        self._take_in(key, value, timestamp, checked_side(side))

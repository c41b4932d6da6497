"""Process functions, which get one element at a time, with state and timers of the element's key.

Source: Flink's `KeyedProcessFunction` and, with two inputs that share the state and timers of a key,
`KeyedCoProcessFunction`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.state.descriptors import StateDescriptor, ValueStateDescriptor
from tidegate.windowing.time import Duration, Millis, TimeDomain, positive_millis, saturating_add
from tidegate.windowing.timers import TimerService


class ProcessContext(Protocol):
    """Context of a process function: time, state, timers and side outputs, all for the current key."""

    @property
    def timestamp(self) -> Millis | None:
        """Time of the element (None if it has none) or of the timer, int64 epoch milliseconds."""

    @property
    def current_key(self) -> Any:
        """Key of the element or timer."""

    def timer_service(self) -> TimerService:
        """Return the service with the clocks and timers of the key."""

    def get_state(self, descriptor: StateDescriptor) -> Any:
        """Return a handle on a state that `states()` declares.

        Raises:
            UnsupportedOperation: the state is not declared, or the stream has no key.
        """

    def output(self, tag: str, value: Any) -> None:
        """Send a value to a side output, with the timestamp of the element or timer.

        Raises:
            IllegalArgument: the tag is None or empty.
        """


class OnTimerContext(ProcessContext, Protocol):
    """The context of `on_timer`."""

    @property
    def time_domain(self) -> TimeDomain:
        """Clock of the timer that fired."""


class ProcessFunction:
    """Base of process functions with one or two inputs: results, side outputs, timers and state."""

    result_type: Any = None
    """Arrow struct type of a result; needed if results go to a table."""

    side_outputs: Mapping[str, Any] = {}
    """Arrow struct type of the values of each side output; needed if results go to a table."""

    def on_timer(self, timestamp: Millis, ctx: OnTimerContext) -> Iterable[Any] | None:
        """Return the results of a timer, if any. Called when a timer of the key fires.

        Args:
            timestamp: the time of the timer, int64 epoch milliseconds.
            ctx: the context for the timer's key.
        """
        return None

    def states(self) -> Sequence[StateDescriptor]:
        """Return descriptors of the state that this function keeps for a key, for the snapshot's columns."""
        return ()


class KeyedProcessFunction(ProcessFunction, ABC):
    """A function from the elements and timers of a key to results. Methods yield results or return a list.

    The result of an element gets the element's timestamp, the result of an event-time timer gets the timer's time, and
    the result of a processing-time timer has no timestamp.

    Example:
        >>> class Inactivity(KeyedProcessFunction):
        ...     def process_element(self, value, ctx):
        ...         ctx.timer_service().register_event_time_timer(ctx.timestamp + 1000)
        ...     def on_timer(self, timestamp, ctx):
        ...         yield {"quiet_since": timestamp - 1000}
    """

    @abstractmethod
    def process_element(self, value: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        """Return the results of an element, if any. Called for each element."""


class KeyedCoProcessFunction(ProcessFunction, ABC):
    """A function from the elements of two inputs, and timers, to results. Methods yield results or return a list.

    Results get timestamps as in `KeyedProcessFunction`.
    """

    @abstractmethod
    def process_element1(self, value: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        """Return the results of an element, if any. Called for each element of the left input."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        """Return the results of an element, if any. Called for each element of the right input."""


_FIRST = ValueStateDescriptor("first", pa.int64())


@dataclass(frozen=True)
class KeepFirst(KeyedProcessFunction):
    """Yields the first element of each key, and drops the others.

    In `KeyedProcess(KeepFirst(...))`, "first" is by event time and depends only on the set of elements: elements of
    equal time are ordered by their columns. Source: Flink's deduplication, `ROW_NUMBER() OVER (PARTITION BY key ORDER
    BY rowtime ASC) = 1`, and for `within` Spark's `dropDuplicatesWithinWatermark`.

    Args:
        result_type: Arrow struct type of a result: columns of an element, without the key, which results have anyway.
        within: how long, in event time, elements after the first are dropped. The next element after that counts as a
            first one again. None drops them forever, and the state keeps a time for each key.

    Raises:
        IllegalArgument: `result_type` is not a struct type, or `within` is not a duration above zero.
    """

    result_type: pa.StructType
    within: Duration | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.result_type, pa.StructType) or not self.result_type.num_fields:
            example = 'give the columns to keep, such as pa.struct([("amount", pa.int64())])'
            raise IllegalArgument("KeepFirst.result_type", self.result_type, example)
        if self.within is not None:
            object.__setattr__(self, "within", positive_millis(self.within, "KeepFirst.within"))

    def process_element(self, value: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        first = ctx.get_state(_FIRST)
        if first.value() is not None:
            return None
        # Elements without a time have no order, so the one that arrives first is the first.
        first.update(0 if ctx.timestamp is None else ctx.timestamp)
        if self.within is not None and ctx.timestamp is not None:
            # Elements of the timer's millisecond come before it, so the timer precedes the next first element.
            ctx.timer_service().register_event_time_timer(
                saturating_add(ctx.timestamp, positive_millis(self.within, "within") - 1)
            )
        return [{name: value[name] for name in self.result_type.names}]

    def on_timer(self, timestamp: Millis, ctx: OnTimerContext) -> None:
        ctx.get_state(_FIRST).clear()

    def states(self) -> Sequence[StateDescriptor]:
        return (_FIRST,)

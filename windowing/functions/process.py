"""Process functions, which get one element at a time, with state and timers of the element's key.

Source: Flink's `KeyedProcessFunction` and, with two inputs that share the state and timers of a key,
`KeyedCoProcessFunction`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from tidegate.windowing.state.descriptors import StateDescriptor
from tidegate.windowing.time import Millis, TimeDomain
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


class KeyedProcessFunction(ABC):
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

    result_type: Any = None
    """Arrow struct type of a result; needed if results go to a table."""

    side_outputs: Mapping[str, Any] = {}
    """Arrow struct type of the values of each side output; needed if results go to a table."""

    @abstractmethod
    def process_element(self, value: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        """Return the results of an element, if any. Called for each element."""

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


class KeyedCoProcessFunction(ABC):
    """A function from the elements of two inputs, and timers, to results. Methods yield results or return a list.

    Results get timestamps as in `KeyedProcessFunction`.
    """

    result_type: Any = None
    """Arrow struct type of a result; needed if results go to a table."""

    side_outputs: Mapping[str, Any] = {}
    """Arrow struct type of the values of each side output; needed if results go to a table."""

    @abstractmethod
    def process_element1(self, value: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        """Return the results of an element, if any. Called for each element of the left input."""

    @abstractmethod
    def process_element2(self, value: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        """Return the results of an element, if any. Called for each element of the right input."""

    def on_timer(self, timestamp: Millis, ctx: OnTimerContext) -> Iterable[Any] | None:
        """Return the results of a timer, if any. Called when a timer fires that was set for an element of either input.

        Args:
            timestamp: the time of the timer, int64 epoch milliseconds.
            ctx: the context for the timer's key.
        """
        return None

    def states(self) -> Sequence[StateDescriptor]:
        """Return descriptors of the state that this function keeps for a key, for the snapshot's columns."""
        return ()

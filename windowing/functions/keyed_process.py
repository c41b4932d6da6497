"""The keyed process function: one element at a time, with state and timers of its key.

Source: Flink's `KeyedProcessFunction`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from tidegate.windowing.state.descriptors import StateDescriptor
from tidegate.windowing.time import Millis
from tidegate.windowing.time_domain import TimeDomain
from tidegate.windowing.timers import TimerService


class ProcessContext(Protocol):
    """What a process function may read, keep and send, all of it for the current key."""

    @property
    def timestamp(self) -> Millis | None:
        """Time of the element (None if it has none) or of the timer, int64 epoch milliseconds."""

    @property
    def current_key(self) -> Any:
        """The key of the element or timer."""

    def timer_service(self) -> TimerService:
        """Clocks and timers."""

    def get_state(self, descriptor: StateDescriptor) -> Any:
        """A handle on state that `states()` declares.

        Raises:
            UnsupportedOperation: it is not declared, or the stream has no key.
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
        """The clock of the timer that fired."""


class KeyedProcessFunction(ABC):
    """Turns elements and timers of a key into results. Hooks yield them, or return them in a list.

    A result of an element carries its timestamp, one of an event-time timer the timer's, one of a
    processing-time timer none.

    Example:
        >>> class Inactivity(KeyedProcessFunction):
        ...     def process_element(self, value, ctx):
        ...         ctx.timer_service().register_event_time_timer(ctx.timestamp + 1000)
        ...     def on_timer(self, timestamp, ctx):
        ...         yield {"quiet_since": timestamp - 1000}
    """

    result_type: Any = None
    """Arrow struct type of a result, where results go to a table."""

    side_outputs: Mapping[str, Any] = {}
    """Arrow struct type of what each side output takes, where results go to a table."""

    @abstractmethod
    def process_element(self, value: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        """An element came: its results, if any."""

    def on_timer(self, timestamp: Millis, ctx: OnTimerContext) -> Iterable[Any] | None:
        """A timer of the key fired: its results, if any.

        Args:
            timestamp: the time it was set for, int64 epoch milliseconds.
            ctx: for the timer's key.
        """
        return None

    def states(self) -> Sequence[StateDescriptor]:
        """The state of a key this function declares, for the snapshot's schema."""
        return ()

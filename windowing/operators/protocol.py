"""The base of every keyed operator: its interface for pipeline tasks and tests, with its timers and output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from tidegate.windowing.operators.counters import Counters
from tidegate.windowing.operators.records import Record
from tidegate.windowing.state.rows import StateRow
from tidegate.windowing.time import Millis
from tidegate.windowing.timers import InternalTimerService, Slot


class KeyedOperator(ABC):
    """An operator over the keys of a key-group range. Times are int64 epoch milliseconds.

    Args:
        keyed: False for a stream without a key, which refuses state and timers.

    Attributes:
        output: emitted records that have not been taken.
        timers: timers of both domains, with watermark and clock. Callers only read; `process_...` methods advance time.
        firing: key and namespace of the window whose pane is being computed, or whose code raised an error.
    """

    def __init__(self, *, keyed: bool = True) -> None:
        self.output: list[Record] = []
        self.timers = InternalTimerService(self, keyed=keyed)
        self.firing: Slot | None = None
        self._counters = Counters()

    @property
    def running(self) -> tuple[Any, Any, Millis | None]:
        """Key, namespace and timer of the call of user code that is running, or that raised an error.

        An element's call has no timer, and its namespace is known only while a window fires.
        """
        for queue in (self.timers.event_time, self.timers.processing_time):
            if queue.firing is not None:
                time, (key, namespace) = queue.firing
                return key, namespace, time
        key, namespace = self.firing or (self.timers.current_key, None)
        return key, namespace, None

    @property
    def counters(self) -> Counters:
        """Counts since the operator was created, timers included."""
        counters, queues = self._counters, (self.timers.event_time, self.timers.processing_time)
        counters.timers_registered = sum(queue.added for queue in queues)
        counters.timers_fired = sum(queue.fired for queue in queues)
        counters.timers_deleted = sum(queue.deleted for queue in queues)
        return counters

    @property
    def next_event_time(self) -> Millis | None:
        """Smallest watermark at which a timer or a held element is due, or None."""
        return self.timers.event_time.peek()

    @abstractmethod
    def process_element(self, key: Any, value: Any, timestamp: Millis | None, side: str | None = None) -> None:
        """Process one element.

        Args:
            key: any hashable value.
            value: the element.
            timestamp: int64 epoch milliseconds; None if it has none.
            side: with two inputs, the input (`left`, `right`); otherwise ignored.

        Raises:
            IllegalArgument: `side` names no input.
            MissingTimestamp: the operator needs a timestamp.
        """

    @abstractmethod
    def process_watermark(self, watermark: Millis, side: str | None = None) -> None:
        """Advance event time (it never goes back), fire what is due, then forward the watermark.

        With two inputs, this advances one of them, or both if `side` is None.
        """

    def process_processing_time(self, clock: Millis, within: bool = False) -> None:
        """Advance the clock (it never goes back), and fire what is due.

        Args:
            clock: processing time, int64 epoch milliseconds.
            within: True if elements of this same millisecond follow. Then windows that end by the clock don't fire a
                timer at `clock` yet, so that a window that ends with this millisecond gets those elements first.
        """
        self.timers.advance_processing_time(clock)

    def end_commit(self) -> None:  # noqa: B027 - most operators don't wait for it
        """End the source commit."""

    @abstractmethod
    def on_event_time(self, time: Millis, slot: Slot) -> None:
        """Handle a due event-time timer; the timer service calls this."""

    def on_processing_time(self, time: Millis, slot: Slot) -> None:  # noqa: B027 - joins set no such timers
        """Handle a due processing-time timer; the timer service calls this."""

    def take_output(self) -> list[Record]:
        """Return the records since the last call."""
        records = self.output[:]
        self.output.clear()
        return records

    @abstractmethod
    def state_rows(self) -> Iterator[StateRow]:
        """Yield the operator's whole state."""

    @abstractmethod
    def restore_state(self, rows: Iterable[StateRow]) -> None:
        """Restore state rows into a new operator."""

    def restore_time(self, watermark: Millis, processing_time: Millis) -> None:
        """Set watermark and clock without firing; overdue timers fire at the next advance."""
        self.timers.current_watermark, self.timers.current_processing_time = watermark, processing_time

    @abstractmethod
    def num_state_entries(self) -> int:
        """Return the number of non-empty state cells."""

    def _advance_watermark(self, watermark: Millis) -> None:
        """Advance event time (it never goes back), and fire what is due."""
        self.timers.advance_watermark(watermark)

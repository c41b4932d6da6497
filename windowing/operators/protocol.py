"""The interface of every keyed operator, for its callers: a pipeline's task, or a test."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from tidegate.windowing.operators.counters import Counters
from tidegate.windowing.operators.records import Record
from tidegate.windowing.state.rows import StateRow
from tidegate.windowing.time import Millis
from tidegate.windowing.timers import InternalTimerService


class KeyedOperator(Protocol):
    """An operator over the keys of a key-group range. Times are int64 epoch milliseconds."""

    @property
    def output(self) -> Sequence[Record]:
        """Emitted records that have not been taken."""

    @property
    def counters(self) -> Counters:
        """Counts since the operator was created."""

    @property
    def timers(self) -> InternalTimerService:
        """Timers of both domains, with watermark and clock. Callers only read; `process_...` methods advance time."""

    @property
    def next_event_time(self) -> Millis | None:
        """Smallest watermark at which a timer or a held element is due, or None."""

    def process_element(self, key: Any, value: Any, timestamp: Millis | None, side: str | None = None) -> None:
        """Process one element; with two inputs, `side` names the input (`left`, `right`)."""

    def process_watermark(self, watermark: Millis, side: str | None = None) -> None:
        """Advance event time (it never goes back), and fire what is due."""

    def process_processing_time(self, clock: Millis, within: bool = False) -> None:
        """Advance the clock (it never goes back), and fire what is due.

        Args:
            clock: processing time, int64 epoch milliseconds.
            within: True if elements of this same millisecond follow. Then windows that end by the clock don't fire a
                timer at `clock` yet, so that a window that ends with this millisecond gets those elements first.
        """

    def end_commit(self) -> None:
        """End the source commit."""

    def take_output(self) -> list[Record]:
        """Return the records since the last call."""

    def state_rows(self) -> Iterator[StateRow]:
        """Yield the operator's whole state."""

    def restore_state(self, rows: Iterable[StateRow]) -> None:
        """Restore state rows into a new operator."""

    def restore_time(self, watermark: Millis, processing_time: Millis) -> None:
        """Set watermark and clock without firing; overdue timers fire at the next advance."""

    def num_state_entries(self) -> int:
        """Return the number of non-empty state cells."""

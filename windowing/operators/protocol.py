"""What every keyed operator offers to whoever drives it: a pipeline's task, or a test."""

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
        """What came out and was not taken yet."""

    @property
    def counters(self) -> Counters:
        """What was counted since the operator was made."""

    @property
    def timers(self) -> InternalTimerService:
        """Timers of both domains, and the clocks they run by. To be read only; `process_...` moves time."""

    @property
    def next_event_time(self) -> Millis | None:
        """The watermark at which something happens next: a timer fires, or an element that waits is fed."""

    def process_element(self, key: Any, value: Any, timestamp: Millis | None, side: str | None = None) -> None:
        """Take in one element; `side` names the input where there are two (`left`, `right`)."""

    def process_watermark(self, watermark: Millis, side: str | None = None) -> None:
        """Move event time, never back, and fire what is due."""

    def process_processing_time(self, clock: Millis) -> None:
        """Move the clock, never back, and fire what is due."""

    def end_commit(self) -> None:
        """The source commit is complete."""

    def take_output(self) -> list[Record]:
        """What came out since the last call."""

    def state_rows(self) -> Iterator[StateRow]:
        """Everything the operator remembers."""

    def restore_state(self, rows: Iterable[StateRow]) -> None:
        """Take in rows; the operator must be new."""

    def restore_time(self, watermark: Millis, processing_time: Millis) -> None:
        """Set both clocks without firing; what is overdue fires at the next move."""

    def num_state_entries(self) -> int:
        """Number of non-empty state cells."""

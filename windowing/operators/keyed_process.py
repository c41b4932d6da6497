"""The operator of a keyed process function. Source: Flink's `KeyedProcessOperator`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from tidegate.windowing.compute import KeyedProcess
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.counters import Counters
from tidegate.windowing.operators.process import ProcessCore, process_schema
from tidegate.windowing.operators.records import Record, WatermarkRecord
from tidegate.windowing.state.rows import StateRow, StateSchema
from tidegate.windowing.time import Millis


def state_schema(process: KeyedProcess, key: KeySchema, value_type: pa.StructType | None = None) -> StateSchema:
    """The columns of the state rows of such a function.

    Args:
        process: what to compute.
        key: the key columns.
        value_type: Arrow type of the elements, which may have to wait; None infers it.
    """
    return process_schema(process.function, key, {None: value_type} if process.time_sorted else None)


class KeyedProcessOperator:
    """Runs a `KeyedProcessFunction`, with the state and timers of each key.

    Args:
        process: what to compute.
        value_type: Arrow type of the elements; where it is known, its columns order elements of one time.
        keyed: False for a stream without a key, on which state and timers are refused.
    """

    def __init__(
        self,
        process: KeyedProcess,
        *,
        value_type: pa.StructType | None = None,
        keyed: bool = True,
    ) -> None:
        self._core = ProcessCore(
            process.function,
            {None: process.function.process_element},
            {None: value_type} if process.time_sorted else None,
            keyed=keyed,
        )
        self.timers = self._core.timers

    @property
    def next_event_time(self) -> Millis | None:
        return self._core.next_event_time

    def process_element(self, key: Any, value: Any, timestamp: Millis | None, side: str | None = None) -> None:
        """Take in one element.

        Args:
            key: any hashable value.
            value: the element.
            timestamp: int64 epoch milliseconds, None if it has none.
            side: not used: there is one input.

        Raises:
            MissingTimestamp: elements are sorted by time, and this one has none.
        """
        self._core.process(key, value, timestamp)

    def process_watermark(self, watermark: Millis, side: str | None = None) -> None:
        """Move event time, never back: do what is due, then forward the watermark."""
        self._core.advance_watermark(watermark)
        self._core.output.append(WatermarkRecord(self.timers.current_watermark))

    def process_processing_time(self, clock: Millis) -> None:
        """Move the clock, never back: fire what is due."""
        self.timers.advance_processing_time(clock)

    def end_commit(self) -> None:
        """Nothing waits for the end of a source commit."""

    @property
    def output(self) -> Sequence[Record]:
        """What came out and was not taken yet."""
        return self._core.output

    @property
    def counters(self) -> Counters:
        """What was counted since the operator was made, timers included."""
        return self._core.counters.count_timers(self.timers)

    def take_output(self) -> list[Record]:
        return self._core.take_output()

    def state_rows(self) -> Iterator[StateRow]:
        return self._core.state_rows()

    def restore_state(self, rows: Iterable[StateRow]) -> None:
        self._core.restore_state(rows)

    def restore_time(self, watermark: Millis, processing_time: Millis) -> None:
        self._core.restore_time(watermark, processing_time)

    def num_state_entries(self) -> int:
        return self._core.num_state_entries()

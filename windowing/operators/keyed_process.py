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
    """Return the schema of the state rows of a keyed process function.

    Args:
        process: the computation.
        key: the key columns.
        value_type: Arrow type of the elements, which state holds if they are sorted by time; None infers it.
    """
    return process_schema(process.function, key, {None: value_type} if process.time_sorted else None)


class KeyedProcessOperator:
    """Runs a `KeyedProcessFunction`, with the state and timers of each key.

    Args:
        process: the computation.
        value_type: Arrow type of the elements; if given, its columns order elements of the same time.
        keyed: False for a stream without a key, which refuses state and timers.
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
            side: ignored, because there is a single input.

        Raises:
            MissingTimestamp: elements are sorted by time, and this one has none.
        """
        self._core.process(key, value, timestamp)

    def process_watermark(self, watermark: Millis, side: str | None = None) -> None:
        """Move event time, never back: feed due elements and fire due timers, then forward the watermark."""
        self._core.advance_watermark(watermark)
        self._core.output.append(WatermarkRecord(self.timers.current_watermark))

    def process_processing_time(self, clock: Millis) -> None:
        """Move the clock, never back, and fire due timers."""
        self.timers.advance_processing_time(clock)

    def end_commit(self) -> None:
        """Do nothing: this operator holds nothing back until the end of a source commit."""

    @property
    def output(self) -> Sequence[Record]:
        """Records that were put out and not taken yet."""
        return self._core.output

    @property
    def counters(self) -> Counters:
        """Counts since the operator was created, timers included."""
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

"""The operator of a keyed process function. Source: Flink's `KeyedProcessOperator`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidegate.windowing.compute import KeyedProcess
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.process import ProcessOperator, process_schema
from tidegate.windowing.operators.records import WatermarkRecord
from tidegate.windowing.state.rows import StateSchema
from tidegate.windowing.time import Millis


def state_schema(process: KeyedProcess, key: KeySchema, value_type: pa.StructType | None = None) -> StateSchema:
    """Return the schema of the state rows of a keyed process function.

    Args:
        process: the computation.
        key: the key columns.
        value_type: Arrow type of the elements, which are kept in state if they are sorted by time; None infers it.
    """
    return process_schema(process.function, key, {None: value_type} if process.time_sorted else None)


class KeyedProcessOperator(ProcessOperator):
    """Runs a `KeyedProcessFunction`, with the state and timers of each key.

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
        """Process one element.

        Args:
            key: any hashable value.
            value: the element.
            timestamp: int64 epoch milliseconds; None if it has none.
            side: ignored, because there is a single input.

        Raises:
            MissingTimestamp: elements are sorted by time, and this one has none.
        """
        self._take_in(key, value, timestamp)

    def process_watermark(self, watermark: Millis, side: str | None = None) -> None:
        """Advance event time (never back): feed due elements and fire due timers, then forward the watermark."""
        self._advance_watermark(watermark)
        self.output.append(WatermarkRecord(self.timers.current_watermark))

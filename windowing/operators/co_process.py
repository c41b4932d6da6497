"""The operator of a keyed co-process function. Source: Flink's `KeyedCoProcessOperator`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidegate.windowing.compute import CoProcess
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.held import ElementTypes
from tidegate.windowing.operators.process import ProcessOperator, process_schema
from tidegate.windowing.operators.two_inputs import LEFT, RIGHT, TwoInputs, checked_side
from tidegate.windowing.state.rows import StateSchema
from tidegate.windowing.time import Millis
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot


def state_schema(
    process: CoProcess,
    key: KeySchema,
    left_type: pa.StructType | None = None,
    right_type: pa.StructType | None = None,
) -> StateSchema:
    """Return the schema of the state rows of a keyed co-process function.

    Args:
        process: the computation.
        key: the key columns.
        left_type: Arrow type of the left elements, which are kept in state if they are sorted by time; None infers it.
        right_type: Arrow type of the right elements.
    """
    types: ElementTypes = {LEFT: left_type, RIGHT: right_type}
    return process_schema(process.function, key, types if process.time_sorted else None)


class KeyedCoProcessOperator(ProcessOperator):
    """Runs a `KeyedCoProcessFunction` over the inputs `left` and `right`.

    The watermark is the smaller of both inputs' watermarks; idle inputs are ignored. It is forwarded when it advances.

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
        self._inputs = TwoInputs(self._advance_watermark, self.output)

    def process_element(self, key: Any, value: Any, timestamp: Millis | None, side: str | None = None) -> None:
        """Process one element of the input `side`.

        Args:
            key: any hashable value.
            value: the element.
            timestamp: int64 epoch milliseconds; None if it has none.
            side: `left` or `right`.

        Raises:
            IllegalArgument: `side` names no input.
            MissingTimestamp: elements are sorted by time, and this one has none.
        """
        self._take_in(key, value, timestamp, checked_side(side))

    def process_watermark(self, watermark: Millis, side: str | None = None) -> None:
        """Advance event time of one input (both if `side` is None), and fire what is due at the smaller watermark."""
        self._inputs.watermark(watermark, side)

    def process_idle(self, idle: bool, side: str | None = None) -> None:
        """Mark an input as idle or active; a watermark also makes it active."""
        self._inputs.idle(idle, side)

    def restore_time(self, watermark: Millis, processing_time: Millis) -> None:
        """Set watermark and clock without firing; both inputs start at the watermark."""
        super().restore_time(watermark, processing_time)
        self._inputs.start_at(watermark)

    def snapshot_inputs(self) -> WatermarkSnapshot:
        return self._inputs.snapshot()

    def restore_inputs(self, snapshot: WatermarkSnapshot) -> None:
        self._inputs.restore(snapshot)

"""What the operators of joins share: two inputs, late elements of either, and buffers of elements in state rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidegate.windowing.compute import Join
from tidegate.windowing.errors import MissingTimestamp
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.counters import Counters
from tidegate.windowing.operators.records import LateElement, Record
from tidegate.windowing.operators.two_inputs import LEFT, RIGHT, SIDES, TwoInputs, checked_side
from tidegate.windowing.operators.window import LATE
from tidegate.windowing.state.rows import BUCKET, StateSchema
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.timers import InternalTimerService, KeyContext, Slot
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot
from tidegate.windowing.window_join import WindowJoin
from tidegate.windowing.windows import Window

WINDOW_JOIN = "window_join"
"""Kind of a snapshot with the state rows of a window join, which are rows of windows."""


def join_schema(
    join: Join, key: KeySchema, left_type: pa.DataType | None = None, right_type: pa.DataType | None = None
) -> StateSchema:
    """Return the schema of the state rows of a join.

    Args:
        join: the computation.
        key: the key columns.
        left_type: Arrow type of the left elements; None infers it.
        right_type: Arrow type of the right elements.
    """
    types = {LEFT: left_type, RIGHT: right_type}
    contents = tuple((side, None if types[side] is None else pa.list_(types[side])) for side in SIDES)
    return StateSchema(key, contents, namespace=WINDOW_JOIN if isinstance(join, WindowJoin) else BUCKET)


class JoinOperator:
    """The inputs `left` and `right` of a join, in event time. Subclasses buffer the elements, and join them.

    Args:
        late_output: True emits late elements; False only counts them, as `late_dropped`.
    """

    def __init__(self, *, late_output: bool) -> None:
        self.output: list[Record] = []
        self._counters = Counters()
        self.timers = InternalTimerService(KeyContext())
        self.timers.start(self)
        self._inputs = TwoInputs(self.timers.advance_watermark, self.output)
        self._late_output = late_output

    @property
    def next_event_time(self) -> Millis | None:
        return self.timers.event_time.peek()

    def process_watermark(self, watermark: Millis, side: str | None = None) -> None:
        """Advance event time of one input (both if `side` is None), and fire what is due at the smaller watermark."""
        self._inputs.watermark(watermark, side)

    def process_idle(self, idle: bool, side: str | None = None) -> None:
        """Mark an input as idle or active; a watermark also makes it active."""
        self._inputs.idle(idle, side)

    def process_processing_time(self, clock: Millis, within: bool = False) -> None:
        """Advance the clock (it never goes back); it does not affect a join."""
        self.timers.advance_processing_time(clock)

    def end_commit(self) -> None:
        """Do nothing: this operator does not wait for the end of a source commit."""

    def on_event_time(self, time: Millis, slot: Slot) -> None:
        """Handle a timer of a buffer; the timer service calls this."""
        raise NotImplementedError

    def on_processing_time(self, time: Millis, slot: Slot) -> None:
        """Do nothing: a join sets no processing-time timers."""

    @property
    def counters(self) -> Counters:
        """Counts since the operator was created, timers included."""
        return self._counters.count_timers(self.timers)

    def take_output(self) -> list[Record]:
        """Return the records since the last call."""
        records = self.output[:]
        self.output.clear()
        return records

    def restore_time(self, watermark: Millis, processing_time: Millis) -> None:
        """Set watermark and clock without firing; both inputs start at the watermark."""
        self.timers.current_watermark, self.timers.current_processing_time = watermark, processing_time
        self._inputs.start_at(watermark)

    def snapshot_inputs(self) -> WatermarkSnapshot:
        return self._inputs.snapshot()

    def restore_inputs(self, snapshot: WatermarkSnapshot) -> None:
        self._inputs.restore(snapshot)

    def _came(self, timestamp: Millis | None, side: str | None) -> tuple[Millis, str]:
        """Count an element, and return its time and side.

        Raises:
            IllegalArgument: `side` names no input.
            MissingTimestamp: the element has no timestamp.
        """
        side = checked_side(side)
        self._counters.elements += 1
        if timestamp is None or timestamp == MIN_TIMESTAMP:
            raise MissingTimestamp
        return timestamp, side

    def _late(self, key: Any, value: Any, timestamp: Millis, side: str, window: Window | None = None) -> None:
        self._counters.late += 1
        if self._late_output:
            self.output.append(LateElement(key, value, timestamp, LATE, window, self.timers.current_watermark, side))
        else:
            self._counters.late_dropped += 1

"""What the operators of joins share: two inputs, late elements of either, and buffers of elements in state rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from tidegate.windowing.compute import Join, WindowJoin
from tidegate.windowing.errors import MissingTimestamp
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.records import LATE, LateElement
from tidegate.windowing.operators.two_inputs import LEFT, RIGHT, SIDES, TwoInputOperator, checked_side
from tidegate.windowing.state.rows import BUCKET, StateSchema
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.windows import Window

WINDOW_JOIN = "window_join"
"""Kind of a snapshot with the state rows of a window join, which are rows of windows."""


def join_schema(
    join: Join, key: KeySchema, left_type: pa.DataType | None = None, right_type: pa.DataType | None = None
) -> StateSchema:
    """Return the schema of the state rows of a join."""
    types = {LEFT: left_type, RIGHT: right_type}
    contents = tuple((side, None if types[side] is None else pa.list_(types[side])) for side in SIDES)
    return StateSchema(key, contents, namespace=WINDOW_JOIN if isinstance(join, WindowJoin) else BUCKET)


class JoinOperator(TwoInputOperator):
    """The inputs `left` and `right` of a join, in event time. Subclasses buffer the elements, and join them.

    Args:
        late_output: True emits late elements; False only counts them, as `late_dropped`.
    """

    def __init__(self, *, late_output: bool) -> None:
        super().__init__()
        self._late_output = late_output

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

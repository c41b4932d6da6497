"""The join of two inputs by window, as a value that is checked on creation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import pyarrow as pa

from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.windows import TimeWindow

JoinKind: TypeAlias = Literal["inner", "left", "right", "full", "semi", "anti"]
JOIN_KINDS = get_args(JoinKind)


@dataclass(frozen=True, slots=True)
class WindowJoin:
    """Join of the elements of two keyed inputs that are in the same window, at the end of the window.

    Both inputs are assigned to the same windows. `kind` is that of SQL: `inner`, `left`, `right` and `full` return
    pairs, where None stands for a missing element; `semi` returns each left element that has a right one in its window,
    and `anti` each that has none.

    Args:
        assigner: aligned windows of event time: tumbling, sliding, cumulative or calendar windows.
        kind: kind of the join.
        join: function `(left, right, window) -> result`, where window is a `TimeWindow`. None gives the columns
            `window_start`, `window_end`, `left` and `right`, without `right` for `semi` and `anti`.
        result_type: Arrow struct type of a result; needed with `join` if results go to a table.

    Raises:
        IllegalArgument: `kind` is unknown, `join` is not a function, or the windows are not aligned event-time windows.

    Source: Flink's window join of window table-valued functions.
    """

    assigner: WindowAssigner
    kind: JoinKind = "inner"
    join: Callable[[Any, Any, TimeWindow], Any] | None = None
    result_type: pa.DataType | None = None

    def __post_init__(self) -> None:
        assigner = self.assigner
        if (
            not isinstance(assigner, WindowAssigner)
            or not assigner.is_event_time
            or assigner.merges
            or assigner.is_global
            or assigner.staggered(0) != assigner
        ):
            raise IllegalArgument(
                "assigner",
                assigner,
                "both inputs must have the same windows: give aligned windows of event time without a stagger, such as "
                "TumblingEventTimeWindows.of(timedelta(hours=1))",
            )
        if self.kind not in JOIN_KINDS:
            raise IllegalArgument("kind", self.kind, f"give one of {', '.join(JOIN_KINDS)}")
        if self.join is not None and not callable(self.join):
            raise IllegalArgument(
                "join",
                self.join,
                "give a function of two elements and a window, such as lambda left, right, window: {...}",
            )

    @property
    def sides(self) -> tuple[str, ...]:
        """The inputs whose elements are in the results."""
        return ("left",) if self.kind in ("semi", "anti") else ("left", "right")

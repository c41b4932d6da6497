"""Elements that no window accepts: each is counted, and emitted if it is late."""

from __future__ import annotations

from typing import Any

from tidegate.windowing.compute import Windows
from tidegate.windowing.operators.counters import Counters
from tidegate.windowing.operators.records import LateElement, Record
from tidegate.windowing.operators.window.contexts import WindowTriggerContext
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.time import Millis
from tidegate.windowing.windows import Window

LATE = "late"
MERGED_WINDOW_LATE = "merged_window_late"
WINDOWS_PASSED = "windows_passed"


class SkippedElements:
    """Counts the elements that no window of an operator accepts, and emits the late ones.

    Args:
        windows: the computation of the operator.
        panes: pane policies beyond Flink's plain firing.
        context: context with the operator's watermark.
        counters: counters of the operator.
        output: list that takes the late elements.
        late_output: see `WindowOperator`.
        account_for_all: see `WindowOperator`.
    """

    __slots__ = (
        "_account_for_all",
        "_closed_through",
        "_context",
        "_counters",
        "_event_time",
        "_late_output",
        "_lateness",
        "_output",
    )

    def __init__(
        self,
        windows: Windows,
        panes: PanePolicy,
        context: WindowTriggerContext,
        counters: Counters,
        output: list[Record],
        late_output: bool,
        account_for_all: bool,
    ) -> None:
        self._context = context
        self._counters = counters
        self._output = output
        self._event_time = windows.assigner.is_event_time
        self._lateness = windows.lateness
        self._closed_through = panes.closed_through
        self._late_output = late_output
        self._account_for_all = account_for_all

    def take(self, key: Any, value: Any, timestamp: Millis | None, reason: str, window: Window | None) -> None:
        """Count an element, and emit it if it is late.

        Args:
            key: key of the element.
            value: the element.
            timestamp: int64 epoch milliseconds; None if it has none.
            reason: reason why its windows did not accept it.
            window: first of its windows, None if it has none.
        """
        watermark = self._context.current_watermark
        late = (
            self._event_time
            and timestamp is not None
            and (timestamp + self._lateness <= watermark or timestamp <= self._closed_through)
        )
        if window is None and not late:
            self._counters.no_window += 1
            return
        self._counters.late += 1
        if not late and reason is LATE:
            reason = WINDOWS_PASSED
        if self._late_output and (late or self._account_for_all):
            self._output.append(LateElement(key, value, timestamp, reason, window, watermark))
        elif late:
            self._counters.late_dropped += 1

"""Cleanup of windows: a timer at the last millisecond plus the allowed lateness, in the time domain of the windows.

A timer of the trigger may be due at the same time; then they are one timer. If the trigger deletes it, its hook no
longer runs at that time, but the window is still cleaned up. In Flink such a window stays in the state forever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.windowing.lateness import cleanup_time
from tidegate.windowing.panes import EmittedPane
from tidegate.windowing.time import MAX_TIMESTAMP, Millis
from tidegate.windowing.timers import InternalTimerService, Slot, TimerQueue, Timers
from tidegate.windowing.triggers import Trigger
from tidegate.windowing.windows import Window


class WindowCell:
    """Contents, trigger and function state, and panes of one (key, window).

    `identity` is the window at its first firing, or None before that; it does not change while a session grows.

    `late_firing` is the firing that waits for the end of the source commit: None if none waits, True if it purges.
    `discarded` holds contents that were emitted in discarding mode; they are restored if their panes are retracted.
    `missing` names the aggregates that were added after the window opened: their results are null. `unseen` counts
    elements since the last firing, but only if the windows may lose elements.
    """

    __slots__ = (
        "contents",
        "discarded",
        "emitted",
        "function_state",
        "identity",
        "late_firing",
        "missing",
        "pane",
        "trigger_state",
        "unseen",
    )

    def __init__(self) -> None:
        self.contents: Any = None
        self.trigger_state: dict[str, Any] | None = None
        self.function_state: dict[str, Any] | None = None
        self.identity: Window | None = None
        self.pane = 0
        self.emitted: list[EmittedPane] | None = None
        self.discarded: Any = None
        self.late_firing: bool | None = None
        self.missing: frozenset[str] | None = None
        self.unseen = 0


class Cleanup:
    """The cleanup times of one operator's windows, and their timers."""

    def __init__(self, trigger: Trigger, timers: InternalTimerService, lateness: Millis, event_time: bool) -> None:
        self._service = timers
        self._lateness = lateness
        self._event_time = event_time
        self._ends_by_timer = trigger.waits_for_end_only
        self.timers = timers.event_time if event_time else timers.processing_time

    def time(self, window: Window) -> Millis:
        """Return the time at which a window is cleaned up; see `cleanup_time`."""
        return cleanup_time(window.max_timestamp, self._lateness)

    def is_due(self, cell: WindowCell) -> bool:
        """Return True if a window past its cleanup time has not been cleaned up.

        A cell without contents may hold only the state of a trigger, which can outlive its window.
        """
        return cell.contents is not None or self._ends_by_timer

    def cancel(self, slot: Slot) -> None:
        """Delete the cleanup timer of a window."""
        cleanup = self.time(slot[1])
        if cleanup != MAX_TIMESTAMP:
            self.timers.remove(cleanup, slot)

    def delete(self, timers: TimerQueue, time: Millis, slot: Slot) -> None:
        """Delete a timer of the trigger. If it also cleans up the window, it remains for that purpose only."""
        if timers is self.timers and time == self.time(slot[1]) != MAX_TIMESTAMP:
            timers.silence(time, slot)
        else:
            timers.remove(time, slot)

    def takes_alone(self, timers: TimerQueue, time: Millis, slot: Slot) -> bool:
        """Return True if a timer that fires only cleans up its window, so that the trigger's hook does not run."""
        if (time, slot) not in timers.silent:
            return False
        timers.silent.discard((time, slot))
        return True

    def restore(self, slot: Slot, cell: WindowCell, timers: Timers) -> None:
        """Set the cleanup timer of a restored window by the current lateness, which may differ from the snapshot's."""
        times = timers[0] if self._event_time else timers[1]
        cleanup = self.time(slot[1])
        if cleanup == MAX_TIMESTAMP or cleanup in times:
            return
        service = self._service
        # A timer at the clock's current millisecond may still have to fire.
        clock_passed = service.current_processing_time - 1
        has_passed = cleanup <= (service.current_watermark if self._event_time else clock_passed)
        if self._is_silent(slot[1], times):
            if cell.contents is not None or not has_passed:
                self.timers.put_back(slot, (cleanup,))
                self.timers.silent.add((cleanup, slot))
        elif not has_passed:
            self.timers.put_back(slot, (cleanup,))
        elif self.is_due(cell):
            # At the cleanup time itself the trigger would fire again.
            self.timers.put_back(slot, (cleanup + 1,))

    def is_left_over(self, time: Millis, slot: Slot) -> bool:
        """Return True if an event-time timer of a snapshot is a cleanup timer for a longer allowed lateness."""
        return self._event_time and self._ends_by_timer and time > self.time(slot[1])

    def _is_silent(self, window: Window, times: Sequence[Millis]) -> bool:
        """Return True if the trigger of a restored window deleted its timer at the cleanup time.

        Then the snapshot has no timer at or after the window's end. A change of the allowed lateness, which exists only
        in event time, leaves such a timer behind.
        """
        if self._ends_by_timer:
            return False
        return not self._event_time or all(time < window.max_timestamp for time in times)

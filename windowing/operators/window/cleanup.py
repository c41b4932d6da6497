"""The cleanup of windows: a timer at the last millisecond plus the allowed lateness, in the windows' time domain."""

from __future__ import annotations

from tidegate.windowing.operators.window.cells import WindowCell
from tidegate.windowing.time import MAX_TIMESTAMP, Millis
from tidegate.windowing.timers import InternalTimerService, Slot
from tidegate.windowing.triggers import Trigger
from tidegate.windowing.windows import Window


class Cleanup:
    """The cleanup times of one operator's windows, and the timers that keep them.

    Args:
        trigger: trigger of the windows.
        timers: timers of the operator, with its watermark.
        lateness: allowed lateness, milliseconds.
        event_time: True if the windows end by event time, False if by the clock.
    """

    __slots__ = ("_ends_by_timer", "_event_time", "_lateness", "_service", "timers")

    def __init__(self, trigger: Trigger, timers: InternalTimerService, lateness: Millis, event_time: bool) -> None:
        self._service = timers
        self._lateness = lateness
        self._event_time = event_time
        self._ends_by_timer = trigger.waits_for_end_only
        self.timers = timers.event_time if event_time else timers.processing_time

    def time(self, window: Window) -> Millis:
        """Return the time at which a window is cleaned, at most the end of time."""
        cleanup = window.max_timestamp + self._lateness
        return cleanup if cleanup < MAX_TIMESTAMP else MAX_TIMESTAMP

    def is_due(self, cell: WindowCell) -> bool:
        """Return True if a window past its cleanup time has not been cleaned.

        A cell without contents may hold only the state of a trigger, which can outlive its window.
        """
        return cell.contents is not None or self._ends_by_timer

    def cancel(self, slot: Slot) -> None:
        """Delete the cleanup timer of a window."""
        cleanup = self.time(slot[1])
        if cleanup != MAX_TIMESTAMP:
            self.timers.remove(cleanup, slot)

    def restore(self, slot: Slot, cell: WindowCell) -> None:
        """Set the cleanup timer of a restored window by the current lateness, which may differ from the snapshot's."""
        cleanup = self.time(slot[1])
        if not self._event_time or cleanup == MAX_TIMESTAMP:
            return
        if cleanup > self._service.current_watermark:
            self.timers.put_back(slot, (cleanup,))
        elif self.is_due(cell):
            # At the cleanup time itself the trigger would fire again.
            self.timers.put_back(slot, (cleanup + 1,))

    def is_left_over(self, time: Millis, slot: Slot) -> bool:
        """Return True if an event-time timer of a snapshot is the cleanup of a longer lateness than the current one."""
        return self._event_time and self._ends_by_timer and time > self.time(slot[1])

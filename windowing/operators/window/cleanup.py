"""The cleaning of windows: at the last millisecond and the allowed lateness, by a timer of the windows' domain."""

from __future__ import annotations

from tidegate.windowing.operators.window.cells import WindowCell
from tidegate.windowing.time import MAX_TIMESTAMP, Millis
from tidegate.windowing.timers import InternalTimerService, Slot
from tidegate.windowing.triggers import Trigger
from tidegate.windowing.windows import Window


class Cleanup:
    """The cleanup times of one operator's windows, and the timers that keep them.

    Args:
        trigger: of the windows.
        timers: of the operator, which knows the watermark too.
        lateness: allowed, milliseconds.
        event_time: whether the windows end by event time; else by the clock.
    """

    __slots__ = ("_ends_by_timer", "_event_time", "_lateness", "_service", "timers")

    def __init__(self, trigger: Trigger, timers: InternalTimerService, lateness: Millis, event_time: bool) -> None:
        self._service = timers
        self._lateness = lateness
        self._event_time = event_time
        self._ends_by_timer = trigger.waits_for_end_only
        self.timers = timers.event_time if event_time else timers.processing_time

    def time(self, window: Window) -> Millis:
        """Return when a window is cleaned; the end of time where that would be later."""
        cleanup = window.max_timestamp + self._lateness
        return cleanup if cleanup < MAX_TIMESTAMP else MAX_TIMESTAMP

    def is_due(self, cell: WindowCell) -> bool:
        """Tell whether a window past its time was never cleaned.

        The state of a trigger that outlives its window stands without contents.
        """
        return cell.contents is not None or self._ends_by_timer

    def cancel(self, slot: Slot) -> None:
        """Delete the timer of a window."""
        cleanup = self.time(slot[1])
        if cleanup != MAX_TIMESTAMP:
            self.timers.remove(cleanup, slot)

    def restore(self, slot: Slot, cell: WindowCell) -> None:
        """Let a window of a snapshot be cleaned by today's lateness: its timer may be of another one."""
        cleanup = self.time(slot[1])
        if not self._event_time or cleanup == MAX_TIMESTAMP:
            return
        if cleanup > self._service.current_watermark:
            self.timers.put_back(slot, (cleanup,))
        elif self.is_due(cell):
            # At its own time the trigger would fire again.
            self.timers.put_back(slot, (cleanup + 1,))

    def is_left_over(self, time: Millis, slot: Slot) -> bool:
        """Tell whether an event-time timer of a snapshot is the cleanup of a longer lateness than today's."""
        return self._event_time and self._ends_by_timer and time > self.time(slot[1])

"""Watermark generators, and the outputs to which they write.

A generator gets every event with its timestamp, and a call at each interval. It may emit a watermark in either. A
watermark that it emits may be smaller than an earlier one, but the watermark of the stream never goes back. Source:
Flink's `WatermarkGenerator` and `WatermarkOutput`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from tidegate.windowing.facts import HasFacts, fact
from tidegate.windowing.time import (
    LAST_TIME,
    MIN_TIMESTAMP,
    Duration,
    Millis,
    non_negative_millis,
    positive_millis,
    saturating_add,
)
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot, optional_millis_in


class WatermarkOutput(Protocol):
    """Output for the watermarks and the status of a stream."""

    def emit_watermark(self, timestamp: Millis) -> None:
        """Emit a watermark, and make the output active. No event at or before `timestamp` (epoch ms) should follow."""

    def mark_idle(self) -> None:
        """Mark the stream as idle, so that a combined watermark does not wait for it."""

    def mark_active(self) -> None:
        """Mark the stream as active, because events arrive again."""


class WatermarkGenerator(HasFacts, ABC):
    """Generator of the watermarks of a stream or source partition."""

    @abstractmethod
    def on_event(self, event: Any, timestamp: Millis, output: WatermarkOutput) -> None:
        """Handle an event.

        Args:
            event: the event, for generators that read markers in it.
            timestamp: event time of the event, int64 epoch milliseconds.
            output: output for a watermark that the generator emits immediately.
        """

    @abstractmethod
    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit the current watermark, or nothing. Called at each interval of the strategy."""

    def on_periodic_emits(self, calls: int, output: WatermarkOutput) -> None:
        """Make several periodic calls in a row, such as those of a pause. Only the largest watermark counts.

        By default, this makes the calls one by one, until a call has the same effect as the previous one. A generator
        that can compute the effect of all calls in one step may override this.

        Args:
            calls: number of calls, 0 or more.
            output: output for the watermarks.
        """
        recorder, before = _LastEmitted(output), None
        for _ in range(calls):
            self.on_periodic_emit(recorder)
            now = (recorder.last, self.snapshot())
            if now == before:
                return
            before = now

    def snapshot(self) -> WatermarkSnapshot:
        """Return the state of the generator as plain JSON values; by default, an empty dict."""
        return {}

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        """Restore a result of `snapshot`. The generator must be new.

        Raises:
            IncompatibleSnapshot: the snapshot comes from another kind of generator.
        """

    # --- facts (windowing/facts.py) ----------------------------------------------------------

    @property
    @fact
    def reads_events(self) -> bool:
        """True if the generator needs every event; False if the largest timestamp of several events is enough."""
        return True

    @property
    @fact
    def moves_by_clock(self) -> bool:
        """True if watermarks may advance while no events arrive."""
        return True


class _LastEmitted:
    """Output that passes on every call, and remembers the last watermark or status."""

    __slots__ = ("_output", "last")

    def __init__(self, output: WatermarkOutput) -> None:
        self._output = output
        self.last: Millis | bool | None = None

    def emit_watermark(self, timestamp: Millis) -> None:
        self.last = timestamp
        self._output.emit_watermark(timestamp)

    def mark_idle(self) -> None:
        self.last = False
        self._output.mark_idle()

    def mark_active(self) -> None:
        self.last = True
        self._output.mark_active()


class PunctuatedWatermarks(WatermarkGenerator):
    """Generator that emits the watermark of an event immediately, and nothing at intervals.

    Source: the marker example of Flink's `WatermarkGenerator` documentation.

    Args:
        watermark_of: function `(event, timestamp) -> watermark`; None if the event has no watermark.
    """

    def __init__(self, watermark_of: Callable[[Any, Millis], Millis | None]) -> None:
        self._watermark_of = watermark_of

    def on_event(self, event: Any, timestamp: Millis, output: WatermarkOutput) -> None:
        watermark = self._watermark_of(event, timestamp)
        if watermark is not None:
            output.emit_watermark(watermark)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit nothing, because only events carry watermarks."""


class BoundedOutOfOrdernessWatermarks(WatermarkGenerator):
    """Generator that emits `largest timestamp - delay - 1`, and `MIN_TIMESTAMP` before the first event.

    Source: Flink's `BoundedOutOfOrdernessWatermarks`.

    Args:
        delay: how far an event may be behind the largest timestamp: a timedelta, or an int of milliseconds.

    Raises:
        IllegalArgument: the delay is negative.
    """

    def __init__(self, delay: Duration) -> None:
        self._delay = non_negative_millis(delay, "delay")
        self._largest: Millis | None = None

    @property
    def reads_events(self) -> bool:
        return False

    @property
    def moves_by_clock(self) -> bool:
        return False

    def on_event(self, event: Any, timestamp: Millis, output: WatermarkOutput) -> None:
        if self._largest is None or timestamp > self._largest:
            self._largest = timestamp

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(watermark_behind(self._largest, self._delay))

    def snapshot(self) -> WatermarkSnapshot:
        # The timestamp rather than the watermark, so that a generator with another delay can restore it.
        return {"largest_timestamp": self._largest}

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        self._largest = optional_millis_in(snapshot, "largest_timestamp")


class AscendingTimestampsWatermarks(BoundedOutOfOrdernessWatermarks):
    """Generator that emits `largest timestamp - 1`, for events in order. Several events may share a timestamp.

    Source: Flink's `AscendingTimestampsWatermarks`.
    """

    def __init__(self) -> None:
        super().__init__(0)


class NoWatermarks(WatermarkGenerator):
    """Generator that emits nothing, for pipelines in processing time. Source: Flink's `NoWatermarksGenerator`."""

    @property
    def reads_events(self) -> bool:
        return False

    @property
    def moves_by_clock(self) -> bool:
        return False

    def on_event(self, event: Any, timestamp: Millis, output: WatermarkOutput) -> None:
        """Ignore the event."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit nothing."""


def watermark_behind(largest: Millis | None, delay: Millis) -> Millis:
    """Return the watermark for a largest timestamp and an out-of-orderness bound; see `saturating_add`."""
    return MIN_TIMESTAMP if largest is None else saturating_add(largest, -delay - 1)


class BoundedOutOfOrdernessWithIdleAdvance(WatermarkGenerator):
    """Generator like `BoundedOutOfOrdernessWatermarks`, whose event time also advances after `wait` without events.

    With bounded out-of-orderness alone, the last windows before a pause wait for the next event. This generator
    advances a logical event time at every periodic call. When the logical time is further ahead of the last event than
    the wait, the watermark follows the logical time:

        delay 2, wait 10, interval 5      event 100   call   call   call   event 112   call
        logical event time                      100    105    110    115         115    120
        watermark                                 -     97     97    112           -    112

    Idleness detection (`with_idleness`) stops the periodic calls of an idle stream, so the logical time stops too.
    Choose a timeout that is longer than the wait, or don't use idleness detection.

    Args:
        delay: how far an event may be behind the largest timestamp.
        wait: if the logical time is ahead of the last event by more than this, the watermark follows the logical time.
        interval: time by which each periodic call advances the logical time. It should be the interval of the strategy.

    Raises:
        IllegalArgument: the delay or the wait is negative, or the interval is not greater than zero.
    """

    def __init__(self, delay: Duration, wait: Duration, interval: Duration = 200) -> None:
        self._delay = non_negative_millis(delay, "delay")
        self._wait = non_negative_millis(wait, "wait")
        self._interval = positive_millis(interval, "interval")
        self._largest: Millis | None = None
        self._last_event: Millis | None = None
        self._logical: Millis | None = None

    @property
    def reads_events(self) -> bool:
        return False

    def on_event(self, event: Any, timestamp: Millis, output: WatermarkOutput) -> None:
        # An event behind the largest time starts a new wait at that time, because event time never goes back.
        self._largest = timestamp if self._largest is None else max(self._largest, timestamp)
        self._last_event = self._logical = self._largest

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        self.on_periodic_emits(1, output)

    def on_periodic_emits(self, calls: int, output: WatermarkOutput) -> None:
        """Make several periodic calls in one step. Logical time only grows, so the last has the largest watermark."""
        if not calls:
            return
        if self._logical is not None and self._last_event is not None:
            # MAX_TIMESTAMP is reserved for the end of input.
            self._logical = min(saturating_add(self._logical, calls * self._interval), LAST_TIME - 1)
            if self._logical - self._last_event > self._wait:
                self._largest = self._logical
        output.emit_watermark(watermark_behind(self._largest, self._delay))

    def snapshot(self) -> WatermarkSnapshot:
        return {
            "largest_timestamp": self._largest,
            "last_event": self._last_event,
            "logical_time": self._logical,
        }

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        self._largest = optional_millis_in(snapshot, "largest_timestamp")
        self._last_event = optional_millis_in(snapshot, "last_event")
        self._logical = optional_millis_in(snapshot, "logical_time")

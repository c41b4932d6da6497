"""Contract of watermark generators, and of the outputs to which they write.

A generator gets every event with its timestamp, and a call at each interval. It may emit a watermark in either. A
watermark that it emits may be smaller than an earlier one, but the watermark of the stream never goes back. Source:
Flink's `WatermarkGenerator` and `WatermarkOutput`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from tidegate.windowing.facts import HasFacts, fact
from tidegate.windowing.time import Millis
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot


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

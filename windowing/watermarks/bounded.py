"""Watermark generators based on the largest timestamp: with bounded disorder, in order, and without watermarks."""

from __future__ import annotations

from typing import Any

from tidegate.windowing.time import MIN_TIMESTAMP, Duration, Millis, non_negative_millis
from tidegate.windowing.watermarks.generator import WatermarkGenerator, WatermarkOutput
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot, optional_millis_in


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
    """Return the watermark for a largest timestamp and a bound on disorder, clamped to int64."""
    return MIN_TIMESTAMP if largest is None else max(MIN_TIMESTAMP, largest - delay - 1)

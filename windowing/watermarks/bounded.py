"""Watermarks behind the largest timestamp: by a bound on disorder, by nothing, or none at all."""

from __future__ import annotations

from typing import Any

from tidegate.windowing.time import MIN_TIMESTAMP, Duration, Millis, non_negative_millis
from tidegate.windowing.watermarks.generator import WatermarkGenerator, WatermarkOutput
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot, optional_millis_in


class BoundedOutOfOrdernessWatermarks(WatermarkGenerator):
    """Emits `largest timestamp - delay - 1`, and the minimum before any event.

    Source: Flink's `BoundedOutOfOrdernessWatermarks`.

    Args:
        delay: how far events may lie behind the largest timestamp; a timedelta, or int milliseconds.

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
        # The timestamp, not the watermark, so that another delay can go on from here.
        return {"largest_timestamp": self._largest}

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        self._largest = optional_millis_in(snapshot, "largest_timestamp")


class AscendingTimestampsWatermarks(BoundedOutOfOrdernessWatermarks):
    """Emits `largest timestamp - 1`: for events in order, of which several may share a timestamp.

    Source: Flink's `AscendingTimestampsWatermarks`.
    """

    def __init__(self) -> None:
        super().__init__(0)


class NoWatermarks(WatermarkGenerator):
    """Never emits: for pipelines in processing time. Source: Flink's `NoWatermarksGenerator`."""

    @property
    def reads_events(self) -> bool:
        return False

    @property
    def moves_by_clock(self) -> bool:
        return False

    def on_event(self, event: Any, timestamp: Millis, output: WatermarkOutput) -> None:
        """Nothing to learn."""

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Nothing to say."""


def watermark_behind(largest: Millis | None, delay: Millis) -> Millis:
    """The watermark that a largest timestamp and a bound on disorder allow, within int64."""
    return MIN_TIMESTAMP if largest is None else max(MIN_TIMESTAMP, largest - delay - 1)

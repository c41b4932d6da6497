"""Turns what a generator emits into records of a stream: watermarks that never go back, and status changes."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.windowing.operators.records import IdleRecord, WatermarkRecord
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot, flag_in, millis_in


class WatermarkToDataOutput:
    """A `WatermarkOutput` in front of a stream. Source: Flink's `WatermarkToDataOutput`.

    A watermark that does not advance is dropped, yet it makes an idle stream active: events came.

    Args:
        emit: takes the records; None where `watermark` and `idle` are only read.
    """

    def __init__(self, emit: Callable[[WatermarkRecord | IdleRecord], None] | None = None) -> None:
        self._emit = emit or _unread
        self.watermark: Millis = MIN_TIMESTAMP
        self.idle = False

    def emit_watermark(self, timestamp: Millis) -> None:
        self.mark_active()
        if timestamp > self.watermark:
            self.watermark = timestamp
            self._emit(WatermarkRecord(timestamp))

    def mark_idle(self) -> None:
        if not self.idle:
            self.idle = True
            self._emit(IdleRecord(True))

    def mark_active(self) -> None:
        if self.idle:
            self.idle = False
            self._emit(IdleRecord(False))

    def snapshot(self) -> WatermarkSnapshot:
        """The last watermark, and the status."""
        return {"watermark": self.watermark, "idle": self.idle}

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        """Take in what `snapshot` gave; emits nothing."""
        self.watermark = millis_in(snapshot, "watermark")
        self.idle = flag_in(snapshot, "idle")


def _unread(record: WatermarkRecord | IdleRecord) -> None:
    """Take a record that nobody reads."""

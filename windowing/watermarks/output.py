"""Watermark output that writes records to a stream: watermarks that never go back, and changes of the status."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.windowing.operators.records import IdleRecord, WatermarkRecord
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot, flag_in, millis_in


class WatermarkToDataOutput:
    """A `WatermarkOutput` for a stream. Source: Flink's `WatermarkToDataOutput`.

    A watermark that does not advance is not emitted. But it makes an idle stream active, because events came.

    Args:
        emit: function that takes the records. None if only `watermark` and `idle` are read.
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
        """Return the last watermark and the status."""
        return {"watermark": self.watermark, "idle": self.idle}

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        """Restore a result of `snapshot`, without emitting a record."""
        self.watermark = millis_in(snapshot, "watermark")
        self.idle = flag_in(snapshot, "idle")


def _unread(record: WatermarkRecord | IdleRecord) -> None:
    """Discard a record."""

"""For tests of watermark generators: an output that remembers, and a clock that moves when told.

>>> from tidegate.windowing.testing import RecordingOutput
>>> from tidegate.windowing.watermarks import BoundedOutOfOrdernessWatermarks
>>> output, generator = RecordingOutput(), BoundedOutOfOrdernessWatermarks(10)
>>> generator.on_event("event", 100, output)
>>> generator.on_periodic_emit(output)
>>> output.take()
[89]
"""

from __future__ import annotations

from typing import Any

from tidegate.windowing.time import Millis


class RecordingOutput:
    """A `WatermarkOutput` that keeps watermarks, `"idle"` and `"active"` in order, and what was last."""

    def __init__(self) -> None:
        self.out: list[Any] = []
        self.last_watermark: Millis | None = None
        self.idle = False

    def emit_watermark(self, timestamp: Millis) -> None:
        self.out.append(timestamp)
        self.last_watermark, self.idle = timestamp, False

    def mark_idle(self) -> None:
        self.out.append("idle")
        self.idle = True

    def mark_active(self) -> None:
        self.out.append("active")
        self.idle = False

    def take(self) -> list[Any]:
        """What came since the last call."""
        out, self.out = self.out, []
        return out


class ManualClock:
    """Processing time, int64 epoch milliseconds; a test sets `now`."""

    def __init__(self, now: Millis = 0) -> None:
        self.now = now

    def __call__(self) -> Millis:
        return self.now

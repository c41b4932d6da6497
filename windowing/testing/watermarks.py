"""Tools for tests of watermark generators: an output that records its calls, and a clock that the test sets.

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
    """A `WatermarkOutput` that records watermarks, `"idle"` and `"active"` in order, and keeps the last of them."""

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
        """Return the calls since the last `take`."""
        out, self.out = self.out, []
        return out


class ManualClock:
    """Processing time, int64 epoch milliseconds. The test sets `now`."""

    def __init__(self, now: Millis = 0) -> None:
        self.now = now

    def __call__(self) -> Millis:
        return self.now

"""Watermark generator for events that carry watermarks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.windowing.time import Millis
from tidegate.windowing.watermarks.generator import WatermarkGenerator, WatermarkOutput


class PunctuatedWatermarks(WatermarkGenerator):
    """Generator that emits the watermark of an event at once, and nothing at intervals.

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

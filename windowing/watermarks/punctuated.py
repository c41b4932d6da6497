"""Watermarks that events themselves carry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.windowing.time import Millis
from tidegate.windowing.watermarks.generator import WatermarkGenerator, WatermarkOutput


class PunctuatedWatermarks(WatermarkGenerator):
    """Emits at once what an event says, and nothing at intervals.

    Source: the marker example of Flink's `WatermarkGenerator` documentation.

    Args:
        watermark_of: the watermark that follows from `(event, timestamp)`, None if none does.
    """

    def __init__(self, watermark_of: Callable[[Any, Millis], Millis | None]) -> None:
        self._watermark_of = watermark_of

    def on_event(self, event: Any, timestamp: Millis, output: WatermarkOutput) -> None:
        watermark = self._watermark_of(event, timestamp)
        if watermark is not None:
            output.emit_watermark(watermark)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Only events move the watermark."""

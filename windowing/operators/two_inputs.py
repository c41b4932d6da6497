"""Event time of an operator with two inputs: the smaller of the watermarks of its active inputs.

Source: Flink's `AbstractStreamOperator.processWatermark1` and `processWatermarkStatus1`.
"""

from __future__ import annotations

from typing import Any

from tidegate.windowing.operators.protocol import KeyedOperator
from tidegate.windowing.operators.records import IdleRecord, WatermarkRecord
from tidegate.windowing.sides import SIDES, checked_side
from tidegate.windowing.time import Millis
from tidegate.windowing.watermarks.combined import CombinedWatermark
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot


class TwoInputOperator(KeyedOperator):
    """An operator with two inputs, which derives its event time from their watermarks and status.

    The watermark is the smaller of both inputs' watermarks; an idle input is ignored, and if both are idle, the larger
    one counts. Each watermark follows the records that it caused, and each change of status is forwarded.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._combined = CombinedWatermark(SIDES)

    def process_watermark(self, watermark: Millis, side: str | None = None) -> None:
        for name in SIDES if side is None else (checked_side(side),):
            self._combined[name].emit_watermark(watermark)
        self._update()

    def process_idle(self, idle: bool, side: str | None = None) -> None:
        """Mark an input (or both if `side` is None) as idle or active. A watermark also makes an input active."""
        for name in SIDES if side is None else (checked_side(side),):
            self._combined[name].idle = idle
        self._update()

    def restore_time(self, watermark: Millis, processing_time: Millis) -> None:
        """Set watermark and clock without firing; both inputs start at the watermark."""
        super().restore_time(watermark, processing_time)
        self._combined = CombinedWatermark(SIDES)
        for name in SIDES:
            self._combined[name].emit_watermark(watermark)
        self._combined.update()

    def snapshot_inputs(self) -> WatermarkSnapshot:
        """Return watermark and status of each input, as plain JSON values."""
        return self._combined.snapshot()

    def restore_inputs(self, snapshot: WatermarkSnapshot) -> None:
        """Restore a value of `snapshot_inputs`, after `restore_time`."""
        self._combined.restore(snapshot)

    def _update(self) -> None:
        was_idle = self._combined.idle
        moved = self._combined.update()
        if was_idle and not self._combined.idle:
            self.output.append(IdleRecord(False))
        if moved:
            self._advance_watermark(self._combined.watermark)
            self.output.append(WatermarkRecord(self._combined.watermark))
        if self._combined.idle and not was_idle:
            self.output.append(IdleRecord(True))

"""Multiplexer of watermark outputs: it combines several outputs to one, as `CombinedWatermark` does.

A source with several partitions gives an output to each. An *immediate* output may advance the combined watermark at
once. A *deferred* output has an effect at the next periodic emit. Source: Flink 1.20's `WatermarkOutputMultiplexer`.
"""

from __future__ import annotations

from tidegate.windowing.time import Millis
from tidegate.windowing.watermarks.combined import CombinedWatermark, PartialWatermark
from tidegate.windowing.watermarks.generator import WatermarkOutput
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot


class WatermarkOutputMultiplexer:
    """Multiplexer of outputs that are registered by id.

    Args:
        underlying: output for the combined watermark. It is idle while all registered outputs are idle.
    """

    def __init__(self, underlying: WatermarkOutput) -> None:
        self._underlying = underlying
        self._combined = CombinedWatermark()

    def register_new_output(self, output_id: str) -> None:
        """Register an output. It holds back the combined watermark until it emits one.

        Raises:
            IllegalState: an output has this id already.
        """
        self._combined.add(output_id)

    def unregister_output(self, output_id: str) -> bool:
        """Remove an output. Return True if it existed. The next update no longer waits for it."""
        return self._combined.remove(output_id)

    def get_immediate_output(self, output_id: str) -> WatermarkOutput:
        """Return the output of this id whose updates have an effect at once.

        Raises:
            IllegalArgument: no output has this id.
        """
        return _ImmediateOutput(self, self._combined[output_id])

    def get_deferred_output(self, output_id: str) -> WatermarkOutput:
        """Return the output of this id whose updates have an effect at the next `on_periodic_emit`.

        Raises:
            IllegalArgument: no output has this id.
        """
        return _DeferredOutput(self._combined[output_id])

    def on_periodic_emit(self) -> None:
        """Combine the outputs, and pass a new watermark or idleness to the underlying output."""
        if self._combined.update():
            self._underlying.emit_watermark(self._combined.watermark)
        elif self._combined.idle:
            self._underlying.mark_idle()

    @property
    def watermark(self) -> Millis:
        """Combined watermark, int64 epoch milliseconds."""
        return self._combined.watermark

    def snapshot(self) -> WatermarkSnapshot:
        """Return the watermark and status of the outputs, without the state of the underlying output."""
        return self._combined.snapshot()

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        """Restore a result of `snapshot`. Outputs that were returned before are no longer valid."""
        self._combined.restore(snapshot)


class _DeferredOutput:
    __slots__ = ("_part",)

    def __init__(self, part: PartialWatermark) -> None:
        self._part = part

    def emit_watermark(self, timestamp: Millis) -> None:
        self._part.advance(timestamp)

    def mark_idle(self) -> None:
        self._part.idle = True

    def mark_active(self) -> None:
        self._part.idle = False


class _ImmediateOutput:
    __slots__ = ("_multiplexer", "_part")

    def __init__(self, multiplexer: WatermarkOutputMultiplexer, part: PartialWatermark) -> None:
        self._multiplexer, self._part = multiplexer, part

    def emit_watermark(self, timestamp: Millis) -> None:
        if self._part.advance(timestamp) and timestamp > self._multiplexer.watermark:
            self._multiplexer.on_periodic_emit()

    def mark_idle(self) -> None:
        self._part.idle = True
        self._multiplexer.on_periodic_emit()

    def mark_active(self) -> None:
        self._part.idle = False
        self._multiplexer.on_periodic_emit()

"""Many outputs in front of one: the watermark that goes on is the smallest of those not idle.

A source with several partitions gives each an output. An *immediate* output may move the combined
watermark at once; a *deferred* one waits for the next periodic emit. Source: Flink 1.20's
`WatermarkOutputMultiplexer`; what it does when all outputs are idle is `CombinedWatermark`'s rule.
"""

from __future__ import annotations

from tidegate.windowing.time import Millis
from tidegate.windowing.watermarks.combined import CombinedWatermark, PartialWatermark
from tidegate.windowing.watermarks.generator import WatermarkOutput
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot


class WatermarkOutputMultiplexer:
    """Combines the watermarks of outputs that are registered by id.

    Args:
        underlying: takes the combined watermark, and is marked idle while all outputs are.
    """

    def __init__(self, underlying: WatermarkOutput) -> None:
        self._underlying = underlying
        self._combined = CombinedWatermark()

    def register_new_output(self, output_id: str) -> None:
        """A new output; it holds the combined watermark until it emits one.

        Raises:
            IllegalState: there is one of this id.
        """
        self._combined.add(output_id)

    def unregister_output(self, output_id: str) -> bool:
        """Forget an output; whether it was there. What it held back goes on with the next update."""
        return self._combined.remove(output_id)

    def get_immediate_output(self, output_id: str) -> WatermarkOutput:
        """The output whose updates count at once.

        Raises:
            IllegalArgument: there is none of this id.
        """
        return _ImmediateOutput(self, self._combined[output_id])

    def get_deferred_output(self, output_id: str) -> WatermarkOutput:
        """The output whose updates count with the next `on_periodic_emit`.

        Raises:
            IllegalArgument: there is none of this id.
        """
        return _DeferredOutput(self._combined[output_id])

    def on_periodic_emit(self) -> None:
        """Combine what deferred outputs said, and pass it on."""
        if self._combined.update():
            self._underlying.emit_watermark(self._combined.watermark)
        elif self._combined.idle:
            self._underlying.mark_idle()

    @property
    def watermark(self) -> Millis:
        """The combined watermark, int64 epoch milliseconds."""
        return self._combined.watermark

    def snapshot(self) -> WatermarkSnapshot:
        """The outputs and what they said; not what the underlying output keeps."""
        return self._combined.snapshot()

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        """Take in what `snapshot` gave; outputs are to be got anew."""
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

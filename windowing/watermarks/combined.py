"""Combined watermark of several inputs: the smallest watermark of the inputs that are not idle. It never goes back.

If all inputs are idle, it is the largest watermark, as in a `StatusWatermarkValve`: otherwise the order in which they
become idle would matter. Source: Flink 2.3's `CombinedWatermarkStatus` (in Flink 1.20, it stayed unchanged).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from tidegate.windowing.errors import IllegalArgument, IllegalState, IncompatibleSnapshot
from tidegate.windowing.time import MIN_TIMESTAMP, Millis, checked_watermark
from tidegate.windowing.watermarks.generator import WatermarkOutput
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot, flag_in, millis_in


@dataclass(slots=True)
class ChannelStatus:
    """Watermark (int64 epoch milliseconds) and status of an input. It is also the output of the input.

    Its changes take effect when the inputs are combined. Only a `StatusWatermarkValve` uses `aligned`.

    Raises:
        IllegalArgument: a generator emitted a watermark that is not a time; see `checked_watermark`.
    """

    watermark: Millis = MIN_TIMESTAMP
    idle: bool = False
    aligned: bool = True

    def emit_watermark(self, timestamp: Millis) -> None:
        self.idle = False
        self.watermark = max(self.watermark, checked_watermark(timestamp))

    def mark_idle(self) -> None:
        self.idle, self.aligned = True, False

    def mark_active(self) -> None:
        self.idle = False


class CombinedWatermark:
    """Watermarks of inputs by name, and the combined watermark.

    Args:
        inputs: names of the first inputs.
    """

    def __init__(self, inputs: Iterable[Hashable] = ()) -> None:
        self._inputs: dict[Hashable, ChannelStatus] = {name: ChannelStatus() for name in inputs}
        self.watermark: Millis = MIN_TIMESTAMP
        self.idle = False

    def add(self, name: Hashable) -> None:
        """Add an input at `MIN_TIMESTAMP`. It holds back the combined watermark until it advances.

        Raises:
            IllegalState: an input already has this name.
        """
        if name in self._inputs:
            raise IllegalState(f"input {name!r} is already registered: unregister it first, or use another name")
        self._inputs[name] = ChannelStatus()

    def remove(self, name: Hashable) -> bool:
        """Remove an input. Return True if it existed. The next `update` no longer waits for it."""
        return self._inputs.pop(name, None) is not None

    def __getitem__(self, name: Hashable) -> ChannelStatus:
        part = self._inputs.get(name)
        if part is None:
            raise IllegalArgument(
                "input", name, f"register it first; the registered inputs are {sorted(map(repr, self._inputs))}"
            )
        return part

    def update(self) -> bool:
        """Combine the watermarks of the inputs. Return True if the combined watermark advanced."""
        if not self._inputs:
            return False
        active = [part.watermark for part in self._inputs.values() if not part.idle]
        self.idle = not active
        combined = min(active) if active else max(part.watermark for part in self._inputs.values())
        if combined <= self.watermark:
            return False
        self.watermark = combined
        return True

    def snapshot(self) -> WatermarkSnapshot:
        """Return the combined watermark and status, and those of each input."""
        return {
            "watermark": self.watermark,
            "idle": self.idle,
            "inputs": [[name, part.watermark, part.idle] for name, part in self._inputs.items()],
        }

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        """Restore a result of `snapshot`, including its inputs.

        Raises:
            IncompatibleSnapshot: the snapshot has other fields.
        """
        watermark, idle, inputs = millis_in(snapshot, "watermark"), flag_in(snapshot, "idle"), snapshot.get("inputs")
        if not isinstance(inputs, list):
            raise IncompatibleSnapshot("inputs", inputs, "a list", "Restore what a combined watermark wrote")
        self.watermark, self.idle, self._inputs = watermark, idle, {}
        for name, part_watermark, part_idle in inputs:
            self._inputs[name] = ChannelStatus(part_watermark, part_idle)


class WatermarkOutputMultiplexer:
    """Multiplexer of outputs that are registered by id, such as those of a source's partitions.

    An *immediate* output may advance the combined watermark immediately. A *deferred* output takes effect at the next
    periodic emit. Source: Flink 2.3's `WatermarkOutputMultiplexer`.

    Args:
        underlying: output for the combined watermark. It is idle while all registered outputs are idle.
    """

    def __init__(self, underlying: WatermarkOutput) -> None:
        self._underlying = underlying
        self._combined = CombinedWatermark()

    def register_new_output(self, output_id: str) -> None:
        """Register an output. It holds back the combined watermark until it emits one.

        Raises:
            IllegalState: an output already has this id.
        """
        self._combined.add(output_id)

    def unregister_output(self, output_id: str) -> bool:
        """Remove an output. Return True if it existed. The next update no longer waits for it."""
        return self._combined.remove(output_id)

    def get_immediate_output(self, output_id: str) -> WatermarkOutput:
        """Return the output of this id whose updates take effect immediately.

        Raises:
            IllegalArgument: no output has this id.
        """
        return _ImmediateOutput(self, self._combined[output_id])

    def get_deferred_output(self, output_id: str) -> WatermarkOutput:
        """Return the output of this id whose updates take effect at the next `on_periodic_emit`.

        Raises:
            IllegalArgument: no output has this id.
        """
        return self._combined[output_id]

    def on_periodic_emit(self) -> None:
        """Combine the outputs, and pass a new watermark or idleness to the underlying output."""
        if self._combined.update():
            self._underlying.emit_watermark(self._combined.watermark)
        if self._combined.idle:
            self._underlying.mark_idle()

    @property
    def watermark(self) -> Millis:
        """Combined watermark, int64 epoch milliseconds."""
        return self._combined.watermark

    def snapshot(self) -> WatermarkSnapshot:
        """Return the watermark and status of the outputs, without the state of the underlying output."""
        return self._combined.snapshot()

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        """Restore a result of `snapshot`. Outputs that were returned earlier are no longer valid."""
        self._combined.restore(snapshot)


class _ImmediateOutput:
    def __init__(self, multiplexer: WatermarkOutputMultiplexer, part: ChannelStatus) -> None:
        self._multiplexer, self._part = multiplexer, part

    def emit_watermark(self, timestamp: Millis) -> None:
        advances = timestamp > self._part.watermark
        self._part.emit_watermark(timestamp)
        if advances and timestamp > self._multiplexer.watermark:
            self._multiplexer.on_periodic_emit()

    def mark_idle(self) -> None:
        self._part.mark_idle()
        self._multiplexer.on_periodic_emit()

    def mark_active(self) -> None:
        self._part.mark_active()
        self._multiplexer.on_periodic_emit()

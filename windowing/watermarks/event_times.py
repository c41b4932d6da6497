"""Event time of a pipeline: the watermark of its only input, or the smaller of two. Idle inputs are ignored.

`WatermarkOutputMultiplexer` combines the inputs. Source: Flink's two-input operators (`CombinedWatermarkStatus`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidegate.windowing.time import Millis
from tidegate.windowing.watermarks.combined import WatermarkOutputMultiplexer
from tidegate.windowing.watermarks.event_time import EventTime, SeenEvent, WatermarkToDataOutput
from tidegate.windowing.watermarks.generator import WatermarkOutput
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot
from tidegate.windowing.watermarks.strategy import WatermarkStrategy


@dataclass(frozen=True, slots=True)
class InputTime:
    """Event time of an input at the start of an epoch.

    Args:
        strategy: watermark strategy of the input; it creates the generators.
        watermark: watermark of the input, int64 epoch milliseconds.
        partitions: source partitions by name, a result of `EventTime.snapshot`.
        awaited: name of a partition that other inputs wait for even before its first row; None if they don't wait.
    """

    strategy: WatermarkStrategy
    watermark: Millis
    partitions: Mapping[str, WatermarkSnapshot]
    awaited: str | None = None


class EventTimes:
    """The event time of each input, and the watermark of the pipeline. The inputs share a clock.

    Args:
        inputs: event time of each input, in order.
        watermark: watermark of the pipeline so far, int64 epoch milliseconds. It never goes back.
        clock: processing time, int64 epoch milliseconds.
    """

    def __init__(self, inputs: Sequence[InputTime], watermark: Millis, clock: Millis) -> None:
        self._output = WatermarkToDataOutput()
        self._output.restore({"watermark": watermark, "idle": False})
        self._awaited = [each.awaited for each in inputs]
        self._multiplexer = _multiplexer(inputs, self._output, watermark) if len(inputs) > 1 else None
        self.inputs: list[EventTime] = []
        for number, each in enumerate(inputs):
            output: WatermarkOutput = self._output
            if self._multiplexer is not None:
                output = self._multiplexer.get_deferred_output(str(number))
            self.inputs.append(EventTime(each.strategy, each.watermark, clock, each.partitions, output))
            if self.inputs[-1].idle:
                output.mark_idle()

    @property
    def watermark(self) -> Millis:
        """The watermark of the pipeline, int64 epoch milliseconds."""
        return self._output.watermark

    @property
    def clock(self) -> Millis:
        """Largest processing time of the inputs, int64 epoch milliseconds."""
        return max(each.clock for each in self.inputs)

    @property
    def move_by_clock(self) -> bool:
        """True if event time may advance between two commits, by the clock alone."""
        return any(each.strategy.moves_by_clock for each in self.inputs)

    def read(
        self,
        number: int,
        largest: Mapping[str, Millis],
        committed: Millis,
        complete: bool = True,
        events: Iterable[SeenEvent] = (),
    ) -> Millis:
        """Read a commit of input `number`, as `EventTime.read` does. Return the combined watermark."""
        self.inputs[number].read(largest, committed, complete, events)
        return self.advance(self.inputs[number].clock) if complete else self.watermark

    def read_together(
        self, largest: Sequence[Mapping[str, Millis]], clock: Millis, events: Sequence[Iterable[SeenEvent]]
    ) -> Millis:
        """Read a commit of every input in one step, as at a handover. Return the combined watermark."""
        for each, times, seen in zip(self.inputs, largest, events, strict=True):
            each.read(times, clock, True, seen)
        return self.advance(clock)

    def advance(self, clock: Millis) -> Millis:
        """Advance the clock without data. Return the combined watermark."""
        for each in self.inputs:
            each.advance(clock)
        if self._multiplexer is not None:
            for each, awaited in zip(self.inputs, self._awaited, strict=True):
                if awaited is not None:
                    each.wait_for(awaited)
            self._multiplexer.on_periodic_emit()
        return self.watermark


def _multiplexer(inputs: Sequence[InputTime], output: WatermarkOutput, watermark: Millis) -> WatermarkOutputMultiplexer:
    """Return the multiplexer of the inputs, with the number of an input as the id of its output."""
    parts = [[str(number), each.watermark, False] for number, each in enumerate(inputs)]
    multiplexer = WatermarkOutputMultiplexer(output)
    multiplexer.restore({"watermark": watermark, "idle": False, "inputs": parts})
    return multiplexer

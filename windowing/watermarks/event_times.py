"""Event time over the inputs of a pipeline: that of the only one, or the smaller of two, idle inputs left out.

Source: Flink's two-input operators (`CombinedWatermarkStatus`); `WatermarkOutputMultiplexer` combines.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tidegate.windowing.time import Millis
from tidegate.windowing.watermarks.event_time import EventTime, SeenEvent
from tidegate.windowing.watermarks.generator import WatermarkOutput
from tidegate.windowing.watermarks.multiplexer import WatermarkOutputMultiplexer
from tidegate.windowing.watermarks.output import WatermarkToDataOutput
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot
from tidegate.windowing.watermarks.strategy import WatermarkStrategy


@dataclass(frozen=True, slots=True)
class InputTime:
    """What event time goes on from at one input.

    Args:
        strategy: makes the generators.
        watermark: of the input.
        partitions: its source partitions, by name, as `EventTime.snapshot` gave them.
        awaited: name of the partition that another input waits for before anything of this one came; None: for none.
    """

    strategy: WatermarkStrategy
    watermark: Millis
    partitions: Mapping[str, WatermarkSnapshot]
    awaited: str | None = None


class EventTimes:
    """The event time of each input, and what they combine to. The inputs share one clock.

    Args:
        inputs: in order.
        watermark: of the pipeline so far; it never goes back.
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
        """Processing time of the input that is furthest, int64 epoch milliseconds."""
        return max(each.clock for each in self.inputs)

    @property
    def move_by_clock(self) -> bool:
        """Whether event time may go on between two commits, by the clock alone."""
        return any(each.strategy.moves_by_clock for each in self.inputs)

    def read(
        self,
        number: int,
        largest: Mapping[str, Millis],
        committed: Millis,
        complete: bool = True,
        events: Iterable[SeenEvent] = (),
    ) -> Millis:
        """Read a commit of input `number`; see `EventTime.read`. Return the combined watermark."""
        self.inputs[number].read(largest, committed, complete, events)
        return self.advance(self.inputs[number].clock) if complete else self.watermark

    def read_together(
        self, largest: Sequence[Mapping[str, Millis]], clock: Millis, events: Sequence[Iterable[SeenEvent]]
    ) -> Millis:
        """Read a commit of every input at once, as at a hand-over. Return the combined watermark."""
        for each, times, seen in zip(self.inputs, largest, events, strict=True):
            each.read(times, clock, True, seen)
        return self.advance(clock)

    def advance(self, clock: Millis) -> Millis:
        """The clock goes on without data. Return the combined watermark."""
        for each in self.inputs:
            each.advance(clock)
        if self._multiplexer is not None:
            for each, awaited in zip(self.inputs, self._awaited, strict=True):
                if awaited is not None:
                    each.wait_for(awaited)
            self._multiplexer.on_periodic_emit()
        return self.watermark


def _multiplexer(inputs: Sequence[InputTime], output: WatermarkOutput, watermark: Millis) -> WatermarkOutputMultiplexer:
    """Return what combines inputs, with an output for the number of each."""
    parts = [[str(number), each.watermark, False] for number, each in enumerate(inputs)]
    multiplexer = WatermarkOutputMultiplexer(output)
    multiplexer.restore({"watermark": watermark, "idle": False, "inputs": parts})
    return multiplexer

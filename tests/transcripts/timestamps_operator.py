"""The operator that gives elements timestamps and makes watermarks of them.

Elements go on first, then the watermark that follows from them. Watermarks and status from before
are ignored, but for the end of time, which ends the stream. Source: Flink's
`TimestampsAndWatermarksOperator`.
"""

from __future__ import annotations

from typing import Any

from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.operators.records import ElementResult, Record
from tidegate.windowing.time import MAX_TIMESTAMP, Millis
from tidegate.windowing.watermarks.event_time import WatermarkToDataOutput
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot, millis_in, optional_millis_in, part_of
from tidegate.windowing.watermarks.strategy import WatermarkStrategy


class TimestampsAndWatermarksOperator:
    """Assigns timestamps, and emits watermarks at the strategy's interval of processing time.

    Args:
        strategy: timestamp assigner, generators and interval.
        processing_time: the clock at the start, int64 epoch milliseconds.
        emit_progressive_watermarks: False for bounded input, where only the end of time matters.
    """

    def __init__(
        self, strategy: WatermarkStrategy, processing_time: Millis = 0, *, emit_progressive_watermarks: bool = True
    ) -> None:
        self._clock = processing_time
        self._records: list[Record] = []
        self._output = WatermarkToDataOutput(self._records.append)
        self._assign = strategy.create_timestamp_assigner()
        self._generator = (
            strategy if emit_progressive_watermarks else WatermarkStrategy.no_watermarks()
        ).create_generator(lambda: self._clock)
        self._interval = strategy.interval
        self._next_emit: Millis | None = None
        if strategy.interval > 0 and emit_progressive_watermarks:
            self._next_emit = processing_time + strategy.interval

    def process_element(self, value: Any, timestamp: Millis | None = None) -> None:
        """Give one element its timestamp, and pass it on.

        Raises:
            MissingTimestamp: it came with none, and the strategy has no timestamp assigner.
            IllegalArgument: the assigner gave it something that is no timestamp.
        """
        assigned = self._assign(value, timestamp)
        if isinstance(assigned, bool) or not isinstance(assigned, int):
            raise IllegalArgument("timestamp", assigned, f"the assigner must give {value!r} an int of milliseconds")
        self._records.append(ElementResult(value, assigned))
        self._generator.on_event(value, assigned, self._output)

    def process_watermark(self, watermark: Millis) -> None:
        """Ignored, but for the end of time: elements behind this operator have other timestamps."""
        if watermark == MAX_TIMESTAMP:
            self._output.emit_watermark(watermark)

    def process_idle(self, idle: bool) -> None:
        """Ignored: the generator of this operator says who is idle."""

    def process_processing_time(self, clock: Millis) -> None:
        """Move the clock, never back; when the interval is over, ask the generator once."""
        self._clock = max(self._clock, clock)
        if self._next_emit is not None and self._clock >= self._next_emit:
            self._generator.on_periodic_emit(self._output)
            # From now, not from when it was due: a clock that jumps asks once.
            self._next_emit = self._clock + self._interval

    def finish(self) -> None:
        """The input has ended: a last watermark of what is known."""
        self._generator.on_periodic_emit(self._output)

    @property
    def current_watermark(self) -> Millis:
        """The watermark that went out last."""
        return self._output.watermark

    def take_output(self) -> list[Record]:
        """Return the output since the last call."""
        records = self._records[:]
        self._records.clear()
        return records

    def snapshot(self) -> WatermarkSnapshot:
        """Clock, generator and output, as plain JSON values."""
        return {
            "processing_time": self._clock,
            "next_emit": self._next_emit,
            "generator": self._generator.snapshot(),
            "output": self._output.snapshot(),
        }

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        """Take in what `snapshot` gave; the operator must be new.

        Raises:
            IncompatibleSnapshot: it was taken with another kind of strategy.
        """
        self._clock = millis_in(snapshot, "processing_time")
        self._next_emit = optional_millis_in(snapshot, "next_emit")
        self._generator.restore(part_of(snapshot, "generator"))
        self._output.restore(part_of(snapshot, "output"))

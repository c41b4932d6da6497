"""Cases of kind `timestamps_and_watermarks`."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.transcripts.case import CASE_FIELDS, Mismatch, Options, check_fields, expect_equal
from tests.transcripts.steps import walk_steps
from tests.transcripts.watermarks import record_text
from tidegate.windowing.operators.records import ElementResult, IdleRecord, Record, WatermarkRecord
from tidegate.windowing.time import MAX_TIMESTAMP, Millis
from tidegate.windowing.watermarks import (
    NoWatermarks,
    PunctuatedWatermarks,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkSnapshot,
    WatermarkStrategy,
    WatermarkToDataOutput,
)


class TimestampsAndWatermarksOperator:
    """Assigns timestamps, and emits watermarks at the strategy's interval.

    Source: Flink's operator of this name. Elements are passed on first, then the watermark that follows from them.
    Watermarks and status of the input are ignored, except for the end of time.
    """

    def __init__(self, strategy: WatermarkStrategy) -> None:
        self._clock = 0
        self._records: list[Record] = []
        self._output = WatermarkToDataOutput(self._records.append)
        self._assign = strategy.create_timestamp_assigner()
        self._generator = strategy.create_generator(lambda: self._clock)
        self._interval = self._next_emit = strategy.interval

    def process_element(self, value: Any, timestamp: Millis | None) -> None:
        assigned = self._assign(value, timestamp)
        self._records.append(ElementResult(value, assigned))
        self._generator.on_event(value, assigned, self._output)

    def process_watermark(self, watermark: Millis) -> None:
        if watermark == MAX_TIMESTAMP:
            self._output.emit_watermark(watermark)

    def process_processing_time(self, clock: Millis) -> None:
        self._clock = max(self._clock, clock)
        if self._interval and self._clock >= self._next_emit:
            self._generator.on_periodic_emit(self._output)
            self._next_emit = self._clock + self._interval

    def take_output(self) -> list[Record]:
        records = self._records[:]
        self._records.clear()
        return records

    def snapshot(self) -> WatermarkSnapshot:
        parts = {"generator": self._generator.snapshot(), "output": self._output.snapshot()}
        return {"clock": self._clock, "next_emit": self._next_emit, **parts}

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        self._clock, self._next_emit = snapshot["clock"], snapshot["next_emit"]
        self._generator.restore(snapshot["generator"])
        self._output.restore(snapshot["output"])


class LastEventMinusOne(WatermarkGenerator):
    """The user-defined generator that cases call `periodic`: it may go back."""

    def __init__(self) -> None:
        self._last: Millis | None = None

    def on_event(self, event: Any, timestamp: Millis, output: WatermarkOutput) -> None:
        self._last = timestamp

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        if self._last is not None:
            output.emit_watermark(self._last - 1)

    def snapshot(self) -> WatermarkSnapshot:
        return {"last": self._last}

    def restore(self, snapshot: WatermarkSnapshot) -> None:
        self._last = snapshot["last"]


def _marked(event: dict[str, Any], timestamp: Millis) -> Millis | None:
    return timestamp if event.get("marker") else None


_GENERATORS = {
    "periodic": LastEventMinusOne,
    "punctuated": lambda: PunctuatedWatermarks(_marked),
    "never": NoWatermarks,
}


def run_timestamps_and_watermarks(case: dict[str, Any], options: Options) -> None:
    """Run a case: exact output of every step."""
    check_fields(case["id"], case, CASE_FIELDS | {"generator", "interval", "steps", "expect_error"})
    if case["generator"] not in _GENERATORS:
        raise Mismatch("generator", f"one of {sorted(_GENERATORS)}", case["generator"])
    strategy = WatermarkStrategy.for_generator(_GENERATORS[case["generator"]]).with_interval(case["interval"])
    if any("extracted_ts" in step.get("element", ()) for step in case["steps"]):
        strategy = strategy.with_timestamp_assigner(lambda event, timestamp: event.get("extracted_ts", timestamp))
    operator = TimestampsAndWatermarksOperator(strategy)

    def act(where: str, kind: str, step: dict[str, Any]) -> None:
        nonlocal operator
        match kind:
            case "element":
                check_fields(where, step[kind], {"value", "record_ts", "extracted_ts", "marker"})
                operator.process_element(step[kind], step[kind].get("record_ts"))
            case "watermark":
                operator.process_watermark(step[kind])
            case "status" | "idle":
                pass  # A status from before is ignored: the generator of the operator says who is idle.
            case _:
                operator.process_processing_time(step[kind])
        expect_equal(f"out of {where}", step["out"], [_output(record) for record in operator.take_output()])
        operator = options.after_step(operator, partial(TimestampsAndWatermarksOperator, strategy))

    kinds = ("element", "watermark", "status", "idle", "processing_time")
    walk_steps(case, dict.fromkeys(kinds, ("out",)), act)


def _output(record: Record) -> dict[str, Any]:
    if isinstance(record, ElementResult):
        return {"value": record.value["value"], "ts": record.timestamp}
    if isinstance(record, WatermarkRecord):
        return {"watermark": record.timestamp}
    if isinstance(record, IdleRecord):
        return {"status": record_text(record)}
    raise Mismatch("out", "an element, a watermark or a status", record)

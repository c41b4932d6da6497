"""Cases of kinds `generator`, `idleness_timer`, `multiplexer`, `valve` and `watermark_output`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.transcripts.case import CASE_FIELDS, Mismatch, Options, check_fields, expect_equal, only_field
from tests.transcripts.steps import built, walk_steps
from tidegate.windowing.operators.records import IdleRecord, WatermarkRecord
from tidegate.windowing.testing.harness import ManualClock, RecordingOutput
from tidegate.windowing.watermarks import (
    IdlenessTimer,
    StatusWatermarkValve,
    WatermarkGenerator,
    WatermarkOutput,
    WatermarkOutputMultiplexer,
    WatermarkStrategy,
    WatermarkToDataOutput,
)

STATUS = {True: "idle", False: "active"}


def build_strategy(raw: dict[str, Any]) -> WatermarkStrategy:
    """Return the strategy of a case's `generator`."""
    match raw["type"]:
        case "bounded_out_of_orderness":
            check_fields("generator", raw, {"type", "delay", "idle_timeout"})
            strategy = WatermarkStrategy.for_bounded_out_of_orderness(raw["delay"])
        case "ascending":
            check_fields("generator", raw, {"type", "idle_timeout"})
            strategy = WatermarkStrategy.for_monotonous_timestamps()
        case "no_watermarks":
            check_fields("generator", raw, {"type", "idle_timeout"})
            strategy = WatermarkStrategy.no_watermarks()
        case kind:
            raise Mismatch("generator", "bounded_out_of_orderness, ascending or no_watermarks", kind)
    return strategy if raw.get("idle_timeout") is None else strategy.with_idleness(raw["idle_timeout"])


def run_generator(case: dict[str, Any], options: Options) -> None:
    """Run a case: events, and what periodic calls emit."""
    check_fields(case["id"], case, CASE_FIELDS | {"generator", "steps", "expect_error"})
    clock, output = ManualClock(), RecordingOutput()

    def make() -> WatermarkGenerator:
        return build_strategy(case["generator"]).create_generator(clock)

    generator = built(case, make)
    if generator is None:
        return

    def act(where: str, kind: str, step: dict[str, Any]) -> None:
        nonlocal generator
        assert generator is not None
        expected: list[Any] = []
        match kind:
            case "event":
                generator.on_event(step[kind], step[kind], output)
            case "advance_clock":
                clock.now += step[kind]
            case _:
                expected = [] if step[kind] is None else [step[kind]]
                generator.on_periodic_emit(output)
        expect_equal(f"emitted at {where}", expected, output.take())
        generator = options.after_step(generator, make)

    walk_steps(case, {"event": (), "periodic": (), "advance_clock": ()}, act)


def run_idleness_timer(case: dict[str, Any], options: Options) -> None:
    """Run a case."""
    check_fields(case["id"], case, CASE_FIELDS | {"timeout", "steps", "expect_error"})
    clock = ManualClock()
    make = partial(IdlenessTimer, case["timeout"], clock)
    timer = built(case, make)
    if timer is None:
        return

    def act(where: str, kind: str, step: dict[str, Any]) -> None:
        nonlocal timer
        assert timer is not None
        if kind == "check":
            expect_equal(f"check at {where}", step[kind], timer.check_if_idle())
        elif kind == "activity":
            timer.activity()
        else:
            clock.now += step[kind]
        timer = options.after_step(timer, make)

    walk_steps(case, {"check": (), "activity": (), "advance_clock": ()}, act)


_MULTIPLEXER_STEPS: dict[str, set[str]] = {
    "register": set(),
    "unregister": {"result"},
    "immediate": {"watermark", "idle"},
    "deferred": {"watermark", "idle"},
    "periodic_emit": set(),
    "expect": set(),
}


def run_multiplexer(case: dict[str, Any], options: Options) -> None:
    """Run a case."""
    check_fields(case["id"], case, CASE_FIELDS | {"steps", "expect_error"})
    output = RecordingOutput()
    multiplexer = WatermarkOutputMultiplexer(output)

    def act(where: str, kind: str, step: dict[str, Any]) -> None:
        nonlocal multiplexer
        raw = step[kind]
        match kind:
            case "register":
                multiplexer.register_new_output(raw)
            case "unregister":
                known = multiplexer.unregister_output(raw)
                expect_equal(f"result of {where}", step.get("result", known), known)
            case "immediate":
                _feed(where, multiplexer.get_immediate_output(raw), step)
            case "deferred":
                _feed(where, multiplexer.get_deferred_output(raw), step)
            case "periodic_emit":
                multiplexer.on_periodic_emit()
            case _:
                check_fields(where, raw, {"last_watermark", "idle"})
                for name, value in raw.items():
                    expect_equal(f"{name} at {where}", value, getattr(output, name))
        multiplexer = options.after_step(multiplexer, partial(WatermarkOutputMultiplexer, output))

    walk_steps(case, _MULTIPLEXER_STEPS, act)


def _feed(where: str, output: WatermarkOutput, step: dict[str, Any]) -> None:
    if only_field(where, step, {"watermark", "idle"}) == "watermark":
        output.emit_watermark(step["watermark"])
    elif step["idle"]:
        output.mark_idle()
    else:
        output.mark_active()


def run_valve(case: dict[str, Any], options: Options) -> None:
    """Run a case: exact output of every step."""
    check_fields(case["id"], case, CASE_FIELDS | {"channels", "steps", "expect_error"})
    output = RecordingOutput()
    make = partial(StatusWatermarkValve, case["channels"], output)
    valve = built(case, make)
    if valve is None:
        return

    def act(where: str, kind: str, step: dict[str, Any]) -> None:
        nonlocal valve
        assert valve is not None
        channel = step["channel"]
        if kind == "watermark":
            valve.input_watermark(step["watermark"], channel)
        else:
            _input_status(where, valve, step["status"], channel)
        expect_equal(f"out of {where}", step["out"], output.take())
        valve = options.after_step(valve, make)
        status = valve.channel(channel)
        expect_equal(f"channel_watermark of {where}", step.get("channel_watermark", status.watermark), status.watermark)
        expect_equal(f"aligned of {where}", step.get("aligned", status.aligned), status.aligned)

    walk_steps(case, dict.fromkeys(("watermark", "status"), ("channel", "out", "channel_watermark", "aligned")), act)


def _input_status(where: str, valve: StatusWatermarkValve, status: str, channel: int) -> None:
    inputs: dict[str, Callable[[int], None]] = {"idle": valve.input_idle, "active": valve.input_active}
    if status not in inputs:
        raise Mismatch(where, f"a status of {sorted(inputs)}", status)
    inputs[status](channel)


def record_text(record: WatermarkRecord | IdleRecord) -> Any:
    """Return a time record as cases write it."""
    return record.timestamp if isinstance(record, WatermarkRecord) else STATUS[record.idle]


def run_watermark_output(case: dict[str, Any], options: Options) -> None:
    """Run a case: exact output of the whole series."""
    check_fields(case["id"], case, CASE_FIELDS | {"steps", "out", "expect_error"})
    records: list[WatermarkRecord | IdleRecord] = []
    output = WatermarkToDataOutput(records.append)

    def act(where: str, kind: str, step: dict[str, Any]) -> None:
        nonlocal output
        if kind == "emit":
            output.emit_watermark(step["emit"])
        elif (kind == "idle") == step[kind]:
            output.mark_idle()
        else:
            output.mark_active()
        output = options.after_step(output, partial(WatermarkToDataOutput, records.append))

    walk_steps(case, {"emit": (), "idle": (), "active": ()}, act)
    expect_equal("out", case["out"], [record_text(record) for record in records])

"""The public objects that a case describes: assigner, trigger, evictor, windows."""

from __future__ import annotations

from operator import add
from typing import Any

import pyarrow as pa

from tests.transcripts.case import Mismatch, check_fields
from tests.transcripts.doubles import HOOKS, CaseFunction, ScriptedAssigner, ScriptedMergingAssigner, ScriptedTrigger
from tidegate.windowing.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
    WindowStagger,
)
from tidegate.windowing.compute import Windows
from tidegate.windowing.evictors import CountEvictor, DeltaEvictor, Evictor, TimeEvictor
from tidegate.windowing.functions import ReduceElements
from tidegate.windowing.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EndOfStreamTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeoutTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
)

TRIGGER_FIELDS = {
    "event_time": set(),
    "processing_time": set(),
    "count": {"count"},
    "purging": {"of"},
    "continuous_event_time": {"interval"},
    "continuous_processing_time": {"interval"},
    "delta": {"threshold"},
    "processing_timeout": {"of", "timeout", "reset_timer_on_new_record", "clear_on_timeout"},
    "never": set(),
    "end_of_stream": set(),
    "scripted": set(HOOKS),
}


class DynamicGap:
    """The gap of the element that is being fed."""

    def __init__(self) -> None:
        self.gap = 0

    def __call__(self, element: Any) -> int:
        return self.gap


def delta(old: Any, new: Any) -> float:
    """The distance that cases mean: new value minus old value."""
    return float(new - old)


def build_assigner(raw: dict[str, Any], gap: DynamicGap) -> WindowAssigner:
    """The assigner of a case."""
    kind, event = raw["type"], raw.get("time", "event") == "event"
    if raw.get("time", "event") not in ("event", "processing"):
        raise Mismatch("assigner.time", "event or processing", raw["time"])
    if kind == "tumbling":
        check_fields("assigner", raw, {"type", "time", "size", "offset", "stagger"})
        stagger = WindowStagger(raw["stagger"]) if raw.get("stagger") else WindowStagger.ALIGNED
        tumbling = TumblingEventTimeWindows if event else TumblingProcessingTimeWindows
        return tumbling.of(raw["size"], raw.get("offset", 0), stagger)
    if kind == "sliding":
        check_fields("assigner", raw, {"type", "time", "size", "slide", "offset"})
        sliding = SlidingEventTimeWindows if event else SlidingProcessingTimeWindows
        return sliding.of(raw["size"], raw["slide"], raw.get("offset", 0))
    if kind == "session":
        check_fields("assigner", raw, {"type", "time", "gap"})
        return (EventTimeSessionWindows if event else ProcessingTimeSessionWindows).with_gap(raw["gap"])
    if kind == "dynamic_session":
        check_fields("assigner", raw, {"type", "time"})
        return (EventTimeSessionWindows if event else ProcessingTimeSessionWindows).with_dynamic_gap(gap)
    if kind == "global":
        check_fields("assigner", raw, {"type", "time", "end_of_stream"})
        return GlobalWindows(bool(raw.get("end_of_stream")))
    if kind == "scripted":
        check_fields("assigner", raw, {"type", "time", "merging", "merge"})
        if raw["merging"]:
            return ScriptedMergingAssigner(event, raw.get("merge") == "time_window")
        return ScriptedAssigner(event)
    raise Mismatch("assigner", "an assigner the runner knows", kind)


def build_trigger(raw: dict[str, Any] | None) -> Trigger | None:
    """The trigger of a case; None stands for the assigner's default."""
    if raw is None:
        return None
    kind = raw["type"]
    if kind not in TRIGGER_FIELDS:
        raise Mismatch("trigger", f"one of {sorted(TRIGGER_FIELDS)}", kind)
    check_fields(f"trigger {kind}", raw, TRIGGER_FIELDS[kind] | {"type"})
    rest = {name: value for name, value in raw.items() if name != "type"}
    nested = build_trigger(rest.pop("of")) if "of" in rest else None
    match kind:
        case "event_time":
            return EventTimeTrigger.create()
        case "processing_time":
            return ProcessingTimeTrigger.create()
        case "count":
            return CountTrigger.of(rest["count"])
        case "continuous_event_time":
            return ContinuousEventTimeTrigger.of(rest["interval"])
        case "continuous_processing_time":
            return ContinuousProcessingTimeTrigger.of(rest["interval"])
        case "delta":
            return DeltaTrigger.of(rest["threshold"], delta, pa.int64())
        case "never":
            return NeverTrigger()
        case "end_of_stream":
            return EndOfStreamTrigger()
        case "purging" if nested is not None:
            return PurgingTrigger.of(nested)
        case "processing_timeout" if nested is not None:
            return ProcessingTimeoutTrigger.of(nested, **rest)
        case _:
            return ScriptedTrigger(rest)


def build_evictor(raw: dict[str, Any] | None) -> Evictor | None:
    """The evictor of a case, or None."""
    if raw is None:
        return None
    after = bool(raw.get("evict_after"))
    match raw["type"]:
        case "count":
            check_fields("evictor", raw, {"type", "max", "evict_after"})
            return CountEvictor.of(raw["max"], after)
        case "time":
            check_fields("evictor", raw, {"type", "size", "evict_after"})
            return TimeEvictor.of(raw["size"], after)
        case "delta":
            check_fields("evictor", raw, {"type", "threshold", "evict_after"})
            return DeltaEvictor.of(raw["threshold"], delta, after)
        case kind:
            raise Mismatch("evictor", "count, time or delta", kind)


def build_windows(raw: dict[str, Any], gap: DynamicGap) -> Windows:
    """The windows of a case's `operator`."""
    check_fields("operator", raw, {"assigner", "trigger", "evictor", "allowed_lateness", "late_output", "function"})
    evictor, function = build_evictor(raw["evictor"]), raw["function"]
    shared: dict[str, Any] = {
        "assigner": build_assigner(raw["assigner"], gap),
        "trigger": build_trigger(raw["trigger"]),
        "evictor": evictor,
        "allowed_lateness": raw["allowed_lateness"],
    }
    if function == "reduce_sum":
        return Windows(**shared, reduce=add) if evictor is None else Windows(**shared, process=ReduceElements(add))
    return Windows(**shared, process=CaseFunction(function))

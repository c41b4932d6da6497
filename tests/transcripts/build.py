"""The public objects that a case describes: assigner, trigger, evictor, windows.

The fields of a description are parameters of the object's factory, which refuses unknown fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import add
from typing import Any, TypeVar

import pyarrow as pa

from tests.transcripts.case import Mismatch, check_fields
from tests.transcripts.doubles import CaseFunction, ScriptedAssigner, ScriptedMergingAssigner, ScriptedTrigger
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

T = TypeVar("T")


class DynamicGap:
    """Return the gap of the current element."""

    def __init__(self) -> None:
        self.gap = 0

    def __call__(self, element: Any) -> int:
        return self.gap


def delta(old: Any, new: Any) -> float:
    """Return the distance that cases mean: new value minus old value."""
    return float(new - old)


_ASSIGNERS: dict[str, dict[str, Callable[..., WindowAssigner]]] = {
    "tumbling": {"event": TumblingEventTimeWindows.of, "processing": TumblingProcessingTimeWindows.of},
    "sliding": {"event": SlidingEventTimeWindows.of, "processing": SlidingProcessingTimeWindows.of},
    "session": {"event": EventTimeSessionWindows.with_gap, "processing": ProcessingTimeSessionWindows.with_gap},
    "dynamic_session": {
        "event": EventTimeSessionWindows.with_dynamic_gap,
        "processing": ProcessingTimeSessionWindows.with_dynamic_gap,
    },
    "global": {"event": GlobalWindows, "processing": GlobalWindows},
    "scripted": {"event": partial(ScriptedAssigner, True), "processing": partial(ScriptedAssigner, False)},
    "scripted_merging": {
        "event": partial(ScriptedMergingAssigner, True),
        "processing": partial(ScriptedMergingAssigner, False),
    },
}
_TRIGGERS: dict[str, Callable[..., Trigger]] = {
    "event_time": EventTimeTrigger.create,
    "processing_time": ProcessingTimeTrigger.create,
    "count": CountTrigger.of,
    "purging": PurgingTrigger.of,
    "continuous_event_time": ContinuousEventTimeTrigger.of,
    "continuous_processing_time": ContinuousProcessingTimeTrigger.of,
    "delta": partial(DeltaTrigger.of, delta=delta, element_type=pa.int64()),
    "processing_timeout": ProcessingTimeoutTrigger.of,
    "never": NeverTrigger,
    "end_of_stream": EndOfStreamTrigger,
    "scripted": ScriptedTrigger,
}
_EVICTORS: dict[str, Callable[..., Evictor]] = {
    "count": CountEvictor.of,
    "time": TimeEvictor.of,
    "delta": partial(DeltaEvictor.of, delta=delta),
}
_PARAMETERS = {"count": "max_count", "max": "max_count", "of": "nested", "evict_after": "do_evict_after"}
"""Parameters whose names differ from the field's."""


def _made(what: str, factories: Mapping[str, Callable[..., T]], raw: dict[str, Any]) -> T:
    rest = dict(raw)
    kind = rest.pop("type")
    if kind not in factories:
        raise Mismatch(what, f"one of {sorted(factories)}", kind)
    return factories[kind](**{_PARAMETERS.get(name, name): value for name, value in rest.items()})


def build_assigner(raw: dict[str, Any], gap: DynamicGap) -> WindowAssigner:
    """Return the assigner of a case."""
    rest = dict(raw)
    time = rest.pop("time", "event")
    if time not in ("event", "processing"):
        raise Mismatch("assigner.time", "event or processing", time)
    if rest.get("stagger"):
        rest["stagger"] = WindowStagger(rest["stagger"])
    if rest["type"] == "dynamic_session":
        rest["gap_of"] = gap
    if rest.pop("merging", False):
        rest |= {"type": "scripted_merging", "touching": rest.pop("merge", None) == "time_window"}
    return _made("assigner", {kind: by_time[time] for kind, by_time in _ASSIGNERS.items()}, rest)


def build_trigger(raw: dict[str, Any] | None) -> Trigger | None:
    """Return the trigger of a case; None stands for the assigner's default."""
    if raw is None:
        return None
    return _made("trigger", _TRIGGERS, raw | {"of": build_trigger(raw["of"])} if "of" in raw else raw)


def build_evictor(raw: dict[str, Any] | None) -> Evictor | None:
    """Return the evictor of a case, or None."""
    return None if raw is None else _made("evictor", _EVICTORS, raw)


def build_windows(raw: dict[str, Any], gap: DynamicGap) -> Windows:
    """Return the windows of a case's `operator`."""
    check_fields("operator", raw, {"assigner", "trigger", "evictor", "allowed_lateness", "late_output", "function"})
    evictor, function = build_evictor(raw["evictor"]), raw["function"]
    shared: dict[str, Any] = {
        "assigner": build_assigner(raw["assigner"], gap),
        "trigger": build_trigger(raw["trigger"]),
        "evictor": evictor,
        "allowed_lateness": raw["allowed_lateness"],
    }
    if function == "reduce_sum":
        return Windows(**shared, reduce=add)
    return Windows(**shared, process=CaseFunction(function))

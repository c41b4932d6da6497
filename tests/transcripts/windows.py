"""Cases of kind `window_operator`."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.transcripts.build import DynamicGap, build_windows
from tests.transcripts.case import CASE_FIELDS, Mismatch, Options, check_fields, expect_equal
from tests.transcripts.columnar import GAP, VALUE, build_columnar
from tests.transcripts.doubles import (
    CaseFunction,
    ScriptedAssigner,
    ScriptedMergingAssigner,
    ScriptedTrigger,
    window_of,
    window_text,
)
from tests.transcripts.process import OperatorCase
from tests.transcripts.steps import built, expect_same
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.records import LateElement, Record, SideOutput, WindowResult
from tidegate.windowing.state.rows import WINDOW
from tidegate.windowing.testing import window_harness

_STEPS = {"element", "watermark", "processing_time", "snapshot_restore", "snapshot_rescale", "set_trigger", "set_merge"}
_PROBES = {
    "event_timers": "event_time_timers",
    "processing_timers": "processing_time_timers",
    "state_entries": "state_entries",
    "late_dropped": "late_dropped",
}
"""Attributes of a harness with numbers that cases compare, by the name that cases use."""


def run_window_operator(case: dict[str, Any], options: Options) -> None:
    """Run a case, and once more with its `also_with_evictor`."""
    check_fields(
        case["id"],
        case,
        CASE_FIELDS
        | {"operator", "steps", "expect", "probes", "ordered_within_step", "expect_error", "also_with_evictor"},
    )
    _run(case, case["operator"], options)
    # The columnar operator has run what it supports of the case: an evictor needs every element.
    if "also_with_evictor" in case and options.operator == "row":
        _run(case, case["operator"] | {"evictor": case["also_with_evictor"]}, options)


def _run(case: dict[str, Any], operator: dict[str, Any], options: Options) -> None:
    made = built(case, lambda: WindowCase(case, operator, options))
    if made is not None:
        made.run()


class WindowCase(OperatorCase):
    """A window operator that is fed the steps of a case."""

    def __init__(self, case: dict[str, Any], operator: dict[str, Any], options: Options) -> None:
        self.gap = DynamicGap()
        self.windows = build_windows(operator, self.gap)
        keys = [step["element"]["key"] for step in case["steps"] if "element" in step]
        key = KeySchema.inferred(keys[0]) if keys else None
        if options.operator == "columnar":
            harness = build_columnar(self.windows, operator, key)
        else:
            harness = window_harness(self.windows, key=key, late_output=operator["late_output"])
        super().__init__(case, options, harness, _STEPS)

    def feed(self, kind: str, raw: Any) -> None:
        match kind:
            case "element":
                self._element(raw)
            case "set_trigger":
                if not isinstance(self.windows.trigger, ScriptedTrigger):
                    raise Mismatch("set_trigger", "a scripted trigger", self.windows.trigger)
                self.windows.trigger.replace(raw)
            case "set_merge":
                if not isinstance(self.windows.assigner, ScriptedMergingAssigner):
                    raise Mismatch("set_merge", "a scripted merging assigner", self.windows.assigner)
                check_fields("set_merge", raw, {"sources", "result", "expect_windows"})
                self.windows.assigner.merge = raw
            case _:
                super().feed(kind, raw)
                if kind.startswith("snapshot_"):
                    self._forget_counts()

    def _element(self, element: dict[str, Any]) -> None:
        check_fields("element", element, {"key", "value", "ts", "gap", "windows"})
        self.gap.gap = element.get("gap", 0)
        if isinstance(self.windows.assigner, ScriptedAssigner):
            self.windows.assigner.windows = [window_of(raw) for raw in element["windows"]]
        value = element["value"]
        if self.options.operator == "columnar":
            value = {VALUE: value, GAP: self.gap.gap}
        self.harness.element(element["key"], value, element["ts"])

    def compare(self, where: str, expected: list[dict[str, Any]], records: list[Record]) -> None:
        came = [output for record in records if (output := _output(record)) is not None]
        # The output of an element has a fixed order; timers of the same time may fire in any order.
        if self.case.get("ordered_within_step") or not any("timer" in output for output in (*expected, *came)):
            expect_equal(where, expected, came)
        expect_same(where, expected, came)
        # Subtasks run in parallel, so the order is fixed only within one of them.
        for key in {repr(output["key"]) for output in came if "timer" in output}:
            timers = [output["timer"] for output in came if "timer" in output and repr(output["key"]) == key]
            expect_equal(f"order of timers of key {key} {where}", sorted(timers), timers)

    def probe(self, where: str, probe: dict[str, Any]) -> None:
        check_fields("probe", probe, {*_PROBES, "contents", "calls"})
        for name, value in probe.items():
            match name:
                case "calls":
                    calls = self._calls()
                    expect_equal(f"calls {where}", value, {hook: calls[hook] for hook in value})
                case "contents":
                    self._probe_contents(f"contents {where}", value)
                case _:
                    expect_equal(f"{name} {where}", value, getattr(self.harness, _PROBES[name]))

    def _probe_contents(self, where: str, expected: Any) -> None:
        """Return the number of windows with contents or, given a list, their contents."""
        rows = [row for subtask in self.harness.subtasks for row in subtask.state_rows()]
        held = [
            {"key": row.key, "window": window_text(row.window), "values": _values(row.contents[0])}
            for row in rows
            if row.namespace == WINDOW and row.window is not None and row.contents is not None
        ]
        if isinstance(expected, int):
            expect_equal(where, expected, len(held))
        elif all(isinstance(entry, dict) for entry in expected):
            expect_same(where, expected, held)
        else:
            held.sort(key=lambda entry: (repr(entry["key"]), entry["window"]))
            expect_equal(where, expected, [value for entry in held for value in entry["values"]])

    def _calls(self) -> Counter[str]:
        calls: Counter[str] = Counter()
        for double in (self.windows.trigger, self.windows.process):
            if isinstance(double, ScriptedTrigger | CaseFunction):
                calls += double.calls
        return calls

    def _forget_counts(self) -> None:
        """Cases count from the last restore that they ask for; those of --restore-every-step don't count."""
        self.harness.late_dropped_before = 0
        for double in (self.windows.trigger, self.windows.process):
            if isinstance(double, ScriptedTrigger | CaseFunction):
                double.calls.clear()


def _output(record: object) -> dict[str, Any] | None:
    """Return a record as cases write it."""
    if isinstance(record, WindowResult):
        output = {
            "key": record.key,
            "value": _plain(record.value),
            "ts": record.timestamp,
            "window": window_text(record.window),
        }
        return output if record.timer is None else output | {"timer": record.timer}
    if isinstance(record, LateElement):
        return {"late": {"key": record.key, "value": _plain(record.value), "ts": record.timestamp}}
    if isinstance(record, SideOutput):
        return {"side": {"tag": record.tag, "value": record.value, "ts": record.timestamp}}
    return None


def _plain(value: Any) -> Any:
    """Return the contents of a row of the columnar operator, as cases write them."""
    return value[VALUE] if isinstance(value, dict) else value


def _values(contents: Any) -> list[Any]:
    """Return the elements of a state row's contents, or the one value that they were reduced to."""
    return [element["value"] for element in contents] if isinstance(contents, list) else [contents]

"""Cases of kind `window_operator`."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from tests.transcripts.build import DynamicGap, build_windows
from tests.transcripts.case import CASE_FIELDS, Mismatch, Options, check_fields, expect_equal, only_field, run_expecting
from tests.transcripts.columnar import GAP, VALUE, build_columnar
from tests.transcripts.doubles import (
    CaseFunction,
    ScriptedAssigner,
    ScriptedMergingAssigner,
    ScriptedTrigger,
    window_of,
    window_text,
)
from tests.transcripts.steps import by_step, expect_same
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.records import LateElement, SideOutput, WindowResult
from tidegate.windowing.state.rows import WINDOW
from tidegate.windowing.testing import OperatorHarness, window_harness

_STEPS = {"element", "watermark", "processing_time", "snapshot_restore", "snapshot_rescale", "set_trigger", "set_merge"}
_PROBES = {"event_timers", "processing_timers", "state_entries", "late_dropped", "contents", "calls"}


def run_window_operator(case: dict[str, Any], options: Options) -> None:
    """Run a case, and once more with its `also_with_evictor`."""
    check_fields(
        case["id"],
        case,
        CASE_FIELDS
        | {"operator", "steps", "expect", "probes", "ordered_within_step", "expect_error", "also_with_evictor"},
    )
    WindowCase(case, case["operator"], options).run()
    # The columnar operator has run what it can of the case: an evictor needs every element.
    if "also_with_evictor" in case and options.operator == "row":
        WindowCase(case, case["operator"] | {"evictor": case["also_with_evictor"]}, options).run()


class WindowCase:
    """A window operator that is fed the steps of a case."""

    def __init__(self, case: dict[str, Any], operator: dict[str, Any], options: Options) -> None:
        self.case = case
        self.operator = operator
        self.options = options
        self.error = case.get("expect_error")
        self.forgets_time = "restore_watermark" in case.get("tags", ())
        self.gap = DynamicGap()
        self.harness: OperatorHarness | None = None

    def run(self) -> None:
        """Feed every step, and compare outputs and probes after each."""
        if run_expecting(self.error, "build", self._build):
            return
        assert self.harness is not None
        expected, probes = by_step(self.case, "expect"), by_step(self.case, "probes")
        for index, step in enumerate(self.case["steps"]):
            if run_expecting(self.error, index, partial(self._step, step)):
                return
            came = [output for record in self.harness.records() if (output := _output(record)) is not None]
            self._compare(index, expected.get(index, []), came)
            for probe in probes.get(index, ()):
                self._probe(index, probe)
            if self.options.restore_every_step:
                parallelism = self.options.rescale or len(self.harness.subtasks)
                self.harness.restore(self.harness.snapshot(), parallelism)
        if self.error is not None:
            raise Mismatch(self.case["id"], f"error {self.error['error']} at {self.error['at']}", "no error")

    def _build(self) -> None:
        windows = build_windows(self.operator, self.gap)
        keys = [step["element"]["key"] for step in self.case["steps"] if "element" in step]
        key = KeySchema.inferred(keys[0]) if keys else None
        self.windows = windows
        if self.options.operator == "columnar":
            self.harness = build_columnar(windows, self.operator, key)
        else:
            self.harness = window_harness(windows, key=key, late_output=self.operator["late_output"])

    def _step(self, step: dict[str, Any]) -> None:
        harness = self.harness
        assert harness is not None
        kind = only_field("step", step, _STEPS)
        check_fields("step", step, {kind})
        match kind:
            case "element":
                self._element(step["element"])
            case "watermark":
                harness.watermark(step["watermark"])
            case "processing_time":
                harness.processing_time(step["processing_time"])
            case "snapshot_restore":
                harness.restore(harness.snapshot(), len(harness.subtasks), not self.forgets_time)
                self._forget_counts()
            case "snapshot_rescale":
                check_fields("snapshot_rescale", step["snapshot_rescale"], {"parallelism"})
                parallelism = step["snapshot_rescale"]["parallelism"]
                harness.restore(harness.snapshot(), parallelism, not self.forgets_time)
                self._forget_counts()
            case "set_trigger":
                if not isinstance(self.windows.trigger, ScriptedTrigger):
                    raise Mismatch("set_trigger", "a scripted trigger", self.windows.trigger)
                self.windows.trigger.replace(step["set_trigger"])
            case "set_merge":
                if not isinstance(self.windows.assigner, ScriptedMergingAssigner):
                    raise Mismatch("set_merge", "a scripted merging assigner", self.windows.assigner)
                check_fields("set_merge", step["set_merge"], {"sources", "result", "expect_windows"})
                self.windows.assigner.merge = step["set_merge"]

    def _element(self, element: dict[str, Any]) -> None:
        check_fields("element", element, {"key", "value", "ts", "gap", "windows"})
        assert self.harness is not None
        self.gap.gap = element.get("gap", 0)
        if isinstance(self.windows.assigner, ScriptedAssigner):
            self.windows.assigner.windows = [window_of(raw) for raw in element["windows"]]
        value = element["value"]
        if self.options.operator == "columnar":
            value = {VALUE: value, GAP: self.gap.gap}
        self.harness.element(element["key"], value, element["ts"])

    def _compare(self, index: int, expected: list[dict[str, Any]], came: list[dict[str, Any]]) -> None:
        wanted = [_frozen(output) for output in expected]
        given = [_frozen(output) for output in came]
        # What an element causes has one order; timers of the same time may fire in any.
        if self.case.get("ordered_within_step") or not any("timer" in output for output in (*expected, *came)):
            expect_equal(f"after step {index}", wanted, given)
        if Counter(wanted) != Counter(given):
            raise Mismatch(f"after step {index}", expected, came)
        # Subtasks work side by side, so only the order within one of them is fixed.
        for key in {repr(output["key"]) for output in came if "timer" in output}:
            timers = [output["timer"] for output in came if "timer" in output and repr(output["key"]) == key]
            expect_equal(f"order of timers of key {key} after step {index}", sorted(timers), timers)

    def _probe(self, index: int, probe: dict[str, Any]) -> None:
        check_fields("probe", probe, _PROBES)
        harness = self.harness
        assert harness is not None
        for name, value in probe.items():
            where = f"{name} after step {index}"
            match name:
                case "event_timers":
                    expect_equal(where, value, harness.event_time_timers)
                case "processing_timers":
                    expect_equal(where, value, harness.processing_time_timers)
                case "state_entries":
                    expect_equal(where, value, harness.state_entries)
                case "late_dropped":
                    expect_equal(where, value, harness.late_dropped)
                case "calls":
                    calls = self._calls()
                    expect_equal(where, value, {hook: calls[hook] for hook in value})
                case "contents":
                    self._probe_contents(where, value)

    def _probe_contents(self, where: str, expected: Any) -> None:
        """The number of windows that hold something; or, given a list, what they hold."""
        assert self.harness is not None
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
        assert self.harness is not None
        self.harness.late_dropped_before = 0
        for double in (self.windows.trigger, self.windows.process):
            if isinstance(double, ScriptedTrigger | CaseFunction):
                double.calls.clear()


def _output(record: object) -> dict[str, Any] | None:
    """A record as cases write it."""
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
    """Elements of a state row's contents, or the one value that they were reduced to."""
    return [element["value"] for element in contents] if isinstance(contents, list) else [contents]


def _frozen(output: dict[str, Any]) -> str:
    return repr(sorted((name, value) for name, value in output.items()))

"""Cases of kind `trigger`: a single trigger with one key."""

from __future__ import annotations

from typing import Any

from tests.transcripts.build import build_trigger
from tests.transcripts.case import CASE_FIELDS, Mismatch, Options, check_fields, expect_equal
from tests.transcripts.doubles import ScriptedTrigger, window_of, window_text
from tests.transcripts.steps import built, expect_same, walk_steps
from tests.transcripts.timers import count, poll
from tidegate.windowing.operators.window.cleanup import WindowCell
from tidegate.windowing.operators.window.contexts import WindowTriggerContext
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.timers import InternalTimerService, Slot, TimerQueue
from tidegate.windowing.triggers import Trigger
from tidegate.windowing.windows import Window

_KEY = 1
_STEPS: dict[str, set[str]] = {
    "element": {"result"},
    "watermark": {"fired"},
    "processing_time": {"fired"},
    "merge": set(),
    "clear": set(),
    "invoke_event_time": {"result"},
    "invoke_processing_time": {"result"},
    "set_trigger": set(),
    "counts": set(),
}


def run_trigger(case: dict[str, Any], options: Options) -> None:
    """Run a case."""
    check_fields(case["id"], case, CASE_FIELDS | {"trigger", "steps", "can_merge", "expect_error"})
    trigger = built(case, lambda: build_trigger(case["trigger"]))
    if trigger is None:
        return
    if "can_merge" in case:
        expect_equal("can_merge", case["can_merge"], trigger.can_merge())
    walk_steps(case, _STEPS, TriggerCase(trigger).step)


class TriggerCase:
    """A trigger with the timers and state of its windows; both clocks start at the minimum."""

    def __init__(self, trigger: Trigger) -> None:
        self.trigger = trigger
        self.cells: dict[Window, WindowCell] = {}
        # The case fires the timers itself, so the service has nobody to call back.
        self.timers = InternalTimerService(self, _KEY)  # type: ignore[arg-type]
        self.context = WindowTriggerContext(self.timers)
        self.context.current_processing_time = MIN_TIMESTAMP

    def step(self, where: str, kind: str, step: dict[str, Any]) -> None:
        """Carry out one step, and compare."""
        raw = step[kind]
        match kind:
            case "element":
                check_fields(where, raw, {"window", "value", "ts"})
                self._expect_result(where, step, self._on_element(raw))
            case "watermark":
                self.context.current_watermark = max(self.context.current_watermark, raw)
                self._expect_fired(where, step, self.timers.event_time, raw)
            case "processing_time":
                self.context.current_processing_time = max(self.context.current_processing_time, raw)
                self._expect_fired(where, step, self.timers.processing_time, raw)
            case "merge":
                check_fields(where, raw, {"target", "sources"})
                self._merge(window_of(raw["target"]), [window_of(source) for source in raw["sources"]])
            case "clear":
                window = self._enter(window_of(raw))
                self.trigger.clear(window, self.context)
            case "invoke_event_time" | "invoke_processing_time":
                check_fields(where, raw, {"ts", "window"})
                window = self._enter(window_of(raw["window"]))
                hook = self.trigger.on_event_time if kind == "invoke_event_time" else self.trigger.on_processing_time
                self._expect_result(where, step, hook(raw["ts"], window, self.context).name)
            case "set_trigger":
                self._scripted().replace(raw)
            case "counts":
                self._expect_counts(where, raw)

    def _enter(self, window: Window) -> Window:
        self.context.slot = (_KEY, window)
        self.context.cell = self.cells.setdefault(window, WindowCell())
        return window

    def _on_element(self, raw: dict[str, Any]) -> str:
        window = self._enter(window_of(raw["window"]))
        # Flink shows triggers the smallest timestamp if an element has none.
        timestamp = MIN_TIMESTAMP if raw["ts"] is None else raw["ts"]
        return self.trigger.on_element(raw["value"], timestamp, window, self.context).name

    def _merge(self, target: Window, sources: list[Window]) -> None:
        self.context.merged = [self.cells.setdefault(source, WindowCell()) for source in sources]
        self.trigger.on_merge(self._enter(target), self.context)
        for source in sources:
            self.trigger.clear(self._enter(source), self.context)

    def _expect_fired(self, where: str, step: dict[str, Any], queue: TimerQueue, now: Millis) -> None:
        due: list[tuple[Millis, Slot]] = []
        while (time := queue.peek()) is not None and time <= now:
            due.append(poll(queue))
        hook = self.trigger.on_event_time if queue is self.timers.event_time else self.trigger.on_processing_time
        fired = []
        for time, (_, window) in due:
            result = hook(time, self._enter(window), self.context)
            fired.append({"window": window_text(window), "result": result.name})
        expect_same(f"fired at {where}", step.get("fired", []), fired)

    def _expect_result(self, where: str, step: dict[str, Any], came: str) -> None:
        expect_equal(f"result of {where}", step["result"], came)

    def _expect_counts(self, where: str, raw: dict[str, Any]) -> None:
        check_fields(where, raw, {"state", "event_timers", "processing_timers", "by_window"})
        for name, value in raw.items():
            if name != "by_window":
                expect_equal(f"{name} at {where}", value, self._count(name, None))
        for entry in raw.get("by_window", ()):
            check_fields(where, entry, {"window", "state", "event_timers", "processing_timers"})
            for name, value in entry.items():
                if name != "window":
                    came = self._count(name, window_of(entry["window"]))
                    expect_equal(f"{name} of {entry['window']} at {where}", value, came)

    def _count(self, name: str, window: Window | None) -> int:
        if name == "state":
            cells = self.cells.values() if window is None else [self.cells.get(window, WindowCell())]
            return sum(len(cell.trigger_state or ()) for cell in cells)
        queue = self.timers.event_time if name == "event_timers" else self.timers.processing_time
        return len(queue) if window is None else count(queue, window)

    def _scripted(self) -> ScriptedTrigger:
        for trigger in (self.trigger, getattr(self.trigger, "nested", None)):
            if isinstance(trigger, ScriptedTrigger):
                return trigger
        raise Mismatch("set_trigger", "a scripted trigger", self.trigger)

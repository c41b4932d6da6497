"""The user-defined parts that cases describe: a scripted assigner and trigger, and window functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, ClassVar

import pyarrow as pa

from tests.transcripts.case import Mismatch, check_fields, expect_equal
from tidegate.windowing.assigners import AssignerContext, MergingWindowAssigner, WindowAssigner
from tidegate.windowing.functions import ProcessWindowContext, ProcessWindowFunction
from tidegate.windowing.state.descriptors import StateDescriptor, ValueStateDescriptor
from tidegate.windowing.time import Millis
from tidegate.windowing.triggers import (
    EventTimeTrigger,
    OnMergeContext,
    ProcessingTimeTrigger,
    Trigger,
    TriggerContext,
    TriggerResult,
)
from tidegate.windowing.windows import GLOBAL_WINDOW, Merge, TimeWindow, Window, merge_time_windows

HOOKS = ("on_element", "on_event_time", "on_processing_time", "on_merge", "clear")
_HOOK_FIELDS = {
    "register_event",
    "register_processing",
    "delete_event",
    "delete_processing",
    "set_state",
    "clear_state",
    "result",
    "only_at",
    "late_fires",
}
_CELL = ValueStateDescriptor("cell", pa.bool_())


def window_of(raw: Any) -> Window:
    """A window as cases write it: `[start, end]` or `"global"`."""
    return GLOBAL_WINDOW if raw == "global" else TimeWindow(*raw)


def window_text(window: Window) -> Any:
    """Return a window as cases write it."""
    return list(window) if isinstance(window, TimeWindow) else "global"


class ScriptedAssigner(WindowAssigner):
    """Gives each element the windows that its step lists."""

    def __init__(self, event_time: bool) -> None:
        self._event_time = event_time
        self.windows: Sequence[Window] = ()

    def assign_windows(self, element: Any, timestamp: Millis | None, ctx: AssignerContext) -> Sequence[Window]:
        return self.windows

    def get_default_trigger(self) -> Trigger:
        return EventTimeTrigger() if self._event_time else ProcessingTimeTrigger()

    @property
    def is_event_time(self) -> bool:
        return self._event_time


class ScriptedMergingAssigner(ScriptedAssigner, MergingWindowAssigner):
    """As above, with windows that merge if they touch, or as the last `set_merge` says."""

    def __init__(self, event_time: bool, touching: bool) -> None:
        super().__init__(event_time)
        self._touching = touching
        self.merge: dict[str, Any] | None = None

    def merge_windows(self, windows: Collection[TimeWindow]) -> list[Merge]:
        if self._touching:
            return merge_time_windows(windows)
        if self.merge is None:
            return []
        sources = [TimeWindow(*source) for source in self.merge["sources"]]
        if not set(sources) <= set(windows):
            return []
        if "expect_windows" in self.merge:
            expect_equal(
                "windows to merge", sorted(map(tuple, self.merge["expect_windows"])), sorted(map(tuple, windows))
            )
        return [Merge(TimeWindow(*self.merge["result"]), sources)]


class ScriptedTrigger(Trigger):
    """A user's trigger whose hooks do what the case says."""

    def __init__(self, **hooks: dict[str, Any]) -> None:
        self.hooks: dict[str, dict[str, Any]] = {}
        self.calls: Counter[str] = Counter()
        self.replace(hooks)

    def replace(self, hooks: dict[str, Any]) -> None:
        """Use other hooks from now on."""
        check_fields("scripted trigger", hooks, HOOKS)
        for name, hook in hooks.items():
            check_fields(name, hook, _HOOK_FIELDS)
        self.hooks.update(hooks)

    def on_element(self, element: Any, timestamp: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        return self._run("on_element", None, window, ctx)

    def on_event_time(self, time: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        return self._run("on_event_time", time, window, ctx)

    def on_processing_time(self, time: Millis, window: Window, ctx: TriggerContext) -> TriggerResult:
        return self._run("on_processing_time", time, window, ctx)

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Window, ctx: OnMergeContext) -> None:
        self._run("on_merge", None, window, ctx)

    def clear(self, window: Window, ctx: TriggerContext) -> None:
        self._run("clear", None, window, ctx)

    def states(self) -> Sequence[StateDescriptor]:
        return (_CELL,)

    def _run(self, name: str, time: Millis | None, window: Window, ctx: TriggerContext) -> TriggerResult:
        self.calls[name] += 1
        hook = self.hooks.get(name, {})
        if "only_at" in hook and time not in _times(hook["only_at"], window):
            return TriggerResult.CONTINUE
        if hook.get("late_fires") and ctx.current_watermark >= window.max_timestamp:
            return TriggerResult.FIRE
        for action, act in (
            ("register_event", ctx.register_event_time_timer),
            ("register_processing", ctx.register_processing_time_timer),
            ("delete_event", ctx.delete_event_time_timer),
            ("delete_processing", ctx.delete_processing_time_timer),
        ):
            for moment in _times(hook.get(action, ()), window):
                act(moment)
        if hook.get("set_state"):
            ctx.get_partitioned_state(_CELL).update(True)
        if hook.get("clear_state"):
            ctx.get_partitioned_state(_CELL).clear()
        return TriggerResult[hook.get("result", "CONTINUE")]


def _times(raw: Iterable[Any], window: Window) -> list[Millis]:
    return [moment if isinstance(moment, int) else _named_time(moment, window) for moment in raw]


def _named_time(name: str, window: Window) -> Millis:
    base, plus, rest = name.partition("+")
    times = {"window_max": window.max_timestamp, "window_end": window.max_timestamp + 1}
    if base not in times:
        raise Mismatch("time", "an int, window_max or window_end", name)
    return times[base] + (int(rest) if plus else 0)


_OF_ELEMENTS: dict[str, Callable[[Sequence[Any]], Any]] = {"sum": sum, "collect": list, "sorted": sorted, "count": len}
"""Functions with one result."""


class CaseFunction(ProcessWindowFunction):
    """The window functions that cases name."""

    _FIELDS: ClassVar[dict[str, set[str]]] = {
        "emit": {"type", "values"},
        "query_time": {"type", "domain"},
        "side_output_first": {"type", "tags"},
        "window_state": {"type"},
    }

    def __init__(self, function: str | dict[str, Any]) -> None:
        self._function = {"type": function} if isinstance(function, str) else function
        self._type = self._function["type"]
        check_fields("function", self._function, self._FIELDS.get(self._type, {"type"}))
        if self._type not in {"passthrough", "none", *_OF_ELEMENTS, *self._FIELDS}:
            raise Mismatch("function", "a function the runner knows", self._type)
        self.calls: Counter[str] = Counter()

    def process(self, key: Any, ctx: ProcessWindowContext, elements: Sequence[Any]) -> Iterable[Any]:
        self.calls["process"] += 1
        kind, function = self._type, self._function
        if kind in _OF_ELEMENTS:
            return [_OF_ELEMENTS[kind](elements)]
        if kind == "passthrough":
            return list(elements)
        if kind == "emit":
            return list(function["values"])
        if kind == "query_time":
            return [ctx.current_watermark if function["domain"] == "event" else ctx.current_processing_time]
        if kind == "side_output_first":
            for tag in function["tags"]:
                ctx.output(tag, elements[0])
        if kind == "window_state":
            ctx.window_state.get_state(_CELL).update(True)
        return []

    def clear(self, ctx: ProcessWindowContext) -> None:
        self.calls["function_clear"] += 1
        if self._type == "window_state":
            ctx.window_state.get_state(_CELL).clear()

    def states(self) -> Sequence[StateDescriptor]:
        return (_CELL,) if self._type == "window_state" else ()

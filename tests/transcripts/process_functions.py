"""The process functions that cases name, for one input and for two."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from tests.transcripts.case import Mismatch, check_fields
from tidegate.windowing.functions import (
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OnTimerContext,
    ProcessContext,
)
from tidegate.windowing.state.descriptors import StateDescriptor, ValueStateDescriptor
from tidegate.windowing.time import Millis

_FIELDS: dict[str, set[str]] = {
    "emit_key": set(),
    "query_time": {"domain"},
    "timer_plus": {"domain", "delay"},
    "fixed_timers": {"domain", "t1", "t2"},
    "stateful_timer": {"domain"},
    "both_timers": set(),
    "side_output": {"tags"},
    "null_side_output": set(),
    "reregister": {"delay", "until"},
    "acts": {"again", "until"},
}
# Values of cases have any JSON type, and the keys of a case may have different ones.
_SEEN = ValueStateDescriptor("seen", pa.string())


class CaseHooks:
    """Behaviour of a case's function for an element of input 1 or 2, and for a timer."""

    def __init__(self, function: dict[str, Any], inputs: int) -> None:
        kind = function["type"]
        if kind not in _FIELDS:
            raise Mismatch("function", f"one of {sorted(_FIELDS)}", kind)
        check_fields(f"function {kind}", function, _FIELDS[kind] | {"type"})
        if function.get("domain", "event") not in ("event", "processing"):
            raise Mismatch("domain", "event or processing", function["domain"])
        self.kind = kind
        self.function = function
        self.inputs = inputs

    def element(self, number: int, value: Any, ctx: ProcessContext) -> Iterator[Any]:
        """Results of an element of input `number`."""
        function = self.function
        name = "INPUT" if self.inputs == 1 else f"INPUT{number}"
        match self.kind:
            case "emit_key":
                yield [value, ctx.current_key]
            case "query_time":
                yield [value, self._now(ctx), ctx.timestamp]
            case "timer_plus":
                yield ["INPUT", value]
                self._timer("register", ctx, self._now(ctx) + function["delay"])
            case "fixed_timers":
                yield [f"INPUT{number}", value]
                self._timer("register", ctx, function[f"t{number}"])
            case "stateful_timer":
                yield from self._remember(name, value, ctx)
            case "both_timers":
                self._set_both(number, ctx)
            case "side_output":
                for tag in function["tags"]:
                    ctx.output(tag, value)
            case "null_side_output":
                ctx.output(None, value)  # type: ignore[arg-type]
            case "acts":
                for act, *arguments in value:
                    yield from self._act(act, arguments, ctx)
            case _:
                if ctx.timestamp is not None:
                    ctx.timer_service().register_event_time_timer(ctx.timestamp)

    def timer(self, timestamp: Millis, ctx: OnTimerContext) -> Iterator[Any]:
        """Results of a timer."""
        function, domain = self.function, ctx.time_domain.value
        match self.kind:
            case "timer_plus" | "fixed_timers":
                yield ["TIMER", ctx.current_key, domain]
            case "stateful_timer":
                yield ["STATE", self._seen(ctx)]
            case "both_timers":
                yield [domain, ctx.current_key]
            case "reregister":
                yield ["TIMER", ctx.current_key, timestamp]
                if timestamp + function["delay"] <= function["until"]:
                    ctx.timer_service().register_event_time_timer(timestamp + function["delay"])
            case "acts":
                service = ctx.timer_service()
                now = [service.current_watermark(), service.current_processing_time()]
                yield ["TIMER", domain, timestamp, ctx.current_key, self._seen(ctx), *now]
                if "again" in function and timestamp + function["again"] <= function["until"]:
                    self._timer("register", ctx, timestamp + function["again"], domain)
            case _:
                raise Mismatch("timer", f"none of {self.kind}", timestamp)

    def _act(self, act: str, arguments: list[Any], ctx: ProcessContext) -> Iterator[Any]:
        state, service = ctx.get_state(_SEEN), ctx.timer_service()
        match act:
            case "register" | "delete":
                self._timer(act, ctx, arguments[1], arguments[0])
            case "add":
                state.update(json.dumps((self._seen(ctx) or 0) + arguments[0]))
            case "clear":
                state.clear()
            case "side":
                ctx.output(*arguments)
            case "emit":
                now = [service.current_watermark(), service.current_processing_time()]
                yield [ctx.current_key, self._seen(ctx), *now, ctx.timestamp]
            case _:
                raise Mismatch("act", "an act the runner knows", act)

    def _seen(self, ctx: ProcessContext) -> Any:
        seen = ctx.get_state(_SEEN).value()
        return None if seen is None else json.loads(seen)

    def _remember(self, name: str, value: Any, ctx: ProcessContext) -> Iterator[Any]:
        state = ctx.get_state(_SEEN)
        if state.value() is None:
            yield [name, value]
            state.update(json.dumps(value))
            self._timer("register", ctx, self._now(ctx) + 5)
        else:
            state.clear()
            self._timer("delete", ctx, self._now(ctx) + 4)

    def _set_both(self, number: int, ctx: ProcessContext) -> None:
        timers = ctx.timer_service()
        if self.inputs == 1 or number == 1:
            timers.register_processing_time_timer(3)
        if self.inputs == 1 or number == 2:
            timers.register_event_time_timer(4)
            timers.register_processing_time_timer(5)
        if self.inputs == 1 or number == 1:
            timers.register_event_time_timer(6)
            timers.delete_processing_time_timer(3)
        if self.inputs == 1 or number == 2:
            timers.delete_event_time_timer(4)

    def _now(self, ctx: ProcessContext) -> Millis:
        timers = ctx.timer_service()
        return timers.current_watermark() if self.function["domain"] == "event" else timers.current_processing_time()

    def _timer(self, verb: str, ctx: ProcessContext, time: Millis, domain: str | None = None) -> None:
        getattr(ctx.timer_service(), f"{verb}_{domain or self.function['domain']}_time_timer")(time)


class CaseKeyedFunction(KeyedProcessFunction):
    """The function of a case with one input."""

    def __init__(self, function: dict[str, Any]) -> None:
        self._hooks = CaseHooks(function, 1)

    def process_element(self, value: Any, ctx: ProcessContext) -> Iterable[Any]:
        return self._hooks.element(1, value, ctx)

    def on_timer(self, timestamp: Millis, ctx: OnTimerContext) -> Iterable[Any]:
        return self._hooks.timer(timestamp, ctx)

    def states(self) -> Sequence[StateDescriptor]:
        return (_SEEN,)


class CaseCoFunction(KeyedCoProcessFunction):
    """The function of a case with two inputs."""

    def __init__(self, function: dict[str, Any]) -> None:
        self._hooks = CaseHooks(function, 2)

    def process_element1(self, value: Any, ctx: ProcessContext) -> Iterable[Any]:
        return self._hooks.element(1, value, ctx)

    def process_element2(self, value: Any, ctx: ProcessContext) -> Iterable[Any]:
        return self._hooks.element(2, value, ctx)

    def on_timer(self, timestamp: Millis, ctx: OnTimerContext) -> Iterable[Any]:
        return self._hooks.timer(timestamp, ctx)

    def states(self) -> Sequence[StateDescriptor]:
        return (_SEEN,)

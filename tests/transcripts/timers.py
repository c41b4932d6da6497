"""Cases of kinds `timer_service` and `priority_queue`."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.transcripts.case import CASE_FIELDS, Options, check_fields, expect_equal
from tests.transcripts.keygroups import flink_group
from tests.transcripts.steps import expect_same, expect_subsequence, walk_steps
from tidegate.windowing.keys import DEFAULT_MAX_PARALLELISM, subtask_of
from tidegate.windowing.time import Millis
from tidegate.windowing.timers import VOID_NAMESPACE, InternalTimerService, Slot, TimerQueue, TimerService

_ACTIONS = ("register_event", "register_processing", "delete_event", "delete_processing")
_STEPS: dict[str, set[str]] = {
    **{action: set() for action in _ACTIONS},
    "key": set(),
    "watermark": {"fired", "ordered"},
    "processing_time": {"fired", "ordered"},
    "on_fire": set(),
    "counts": set(),
    "all_timers": set(),
    "current": set(),
    "next_wakeup": set(),
    "snapshot_restore": set(),
    "snapshot_rescale": set(),
}


def run_timer_service(case: dict[str, Any], options: Options) -> None:
    """Run a case."""
    check_fields(case["id"], case, CASE_FIELDS | {"steps", "max_parallelism", "expect_error"})
    walk_steps(case, _STEPS, TimerCase(case, options).step)


class Subtask:
    """One timer service with the context of its keys, which records what fires and does what the case says."""

    def __init__(self, case: TimerCase, number: int) -> None:
        self.case = case
        self.number = number
        self.service = InternalTimerService(self, case.key)
        self.fired: list[dict[str, Any]] = []

    def on_event_time(self, time: Millis, slot: Slot) -> None:
        self._fire("event", time, slot)

    def on_processing_time(self, time: Millis, slot: Slot) -> None:
        self._fire("processing", time, slot)

    def _fire(self, domain: str, time: Millis, slot: Slot) -> None:
        self.service.current_key = slot[0]
        self.fired.append({**_timer_text(self.case, time, slot), "subtask": self.number})
        for reaction in self.case.on_fire.get(domain, ()):
            if reaction.get("at", time) == time:
                for action in _ACTIONS:
                    if action in reaction:
                        act(self.service, action, reaction[action])


def act(service: InternalTimerService, action: str, raw: Any) -> None:
    """Register or delete timers of the current key; without a namespace, as user functions do."""
    if isinstance(raw, list):
        for timer in raw:
            act(service, action, timer)
        return
    check_fields(action, raw, {"ns", "ts"})
    verb, domain = action.split("_")
    if raw["ns"] is None:
        getattr(TimerService(service), f"{verb}_{domain}_time_timer")(raw["ts"])
    else:
        getattr(service, f"{verb}_{domain}_time_timer")(raw["ns"], raw["ts"])


def _timer_text(case: TimerCase, time: Millis, slot: Slot) -> dict[str, Any]:
    key, namespace = slot
    return {"key": case.raw_key(key), "ns": None if namespace == VOID_NAMESPACE else namespace, "ts": time}


def count(queue: TimerQueue, namespace: Any) -> int:
    """Return the number of timers in one namespace, over all keys."""
    return sum(1 for _, slot in queue if slot[1] == namespace)


def poll(queue: TimerQueue) -> tuple[Millis, Slot]:
    """Remove one timer with the smallest time; there must be one."""
    timer = next(iter(queue))
    queue.remove(*timer)
    return timer


class TimerCase:
    """Timer services, one for each subtask, that are fed the steps of a case."""

    def __init__(self, case: dict[str, Any], options: Options) -> None:
        self.options = options
        self.forgets_time = "restore_watermark" in case.get("tags", ())
        self.max_parallelism = case.get("max_parallelism", DEFAULT_MAX_PARALLELISM)
        self.on_fire: dict[str, list[dict[str, Any]]] = {}
        self.keys: dict[Any, Any] = {}
        self.key: Any = None
        self.rescaled = False
        self.subtasks = [Subtask(self, 0)]

    def raw_key(self, key: Any) -> Any:
        """Return a key as the case writes it."""
        return self.keys.get(key, key)

    def step(self, where: str, kind: str, step: dict[str, Any]) -> None:
        """Carry out one step, and compare."""
        raw = step[kind]
        match kind:
            case "key":
                self._set_key(raw)
            case "watermark" | "processing_time":
                self._move(where, kind, step)
            case "on_fire":
                check_fields(where, raw, {"event", "processing"})
                for reaction in [*raw.get("event", ()), *raw.get("processing", ())]:
                    check_fields(where, reaction, {"at", *_ACTIONS})
                self.on_fire = raw
            case "counts":
                self._expect_counts(where, raw)
            case "all_timers":
                self._expect_timers(where, raw)
            case "current":
                self._expect_current(where, raw)
            case "next_wakeup":
                # Return the earliest call of the clock that was requested, including restored timers.
                wakeups = [time for s in self.subtasks if (time := s.service.processing_time.peek()) is not None]
                expect_equal(f"next_wakeup at {where}", raw, min(wakeups, default=None))
            case "snapshot_restore":
                self._restore(1, not self.forgets_time)
                self.rescaled = False
            case "snapshot_rescale":
                check_fields(where, raw, {"parallelism"})
                self._restore(raw["parallelism"], not self.forgets_time)
                self.rescaled = True
            case _:
                act(self._owner().service, kind, raw)
        if self.options.restore_every_step:
            # A case that names subtasks has chosen the parallelism itself.
            parallelism = None if self.rescaled else self.options.rescale
            self._restore(parallelism or len(self.subtasks), True)

    def _set_key(self, raw: Any) -> None:
        self.key = ("long", raw["long"]) if isinstance(raw, dict) else raw
        self.keys[self.key] = raw
        for subtask in self.subtasks:
            subtask.service.current_key = self.key

    def _owner(self) -> Subtask:
        return self._owner_of(self.subtasks[0].service.current_key)

    def _owner_of(self, key: Any) -> Subtask:
        group = flink_group(self.raw_key(key), self.max_parallelism)
        return self.subtasks[subtask_of(group, len(self.subtasks), self.max_parallelism)]

    def _move(self, where: str, clock: str, step: dict[str, Any]) -> None:
        expected = step.get("fired", [])
        named = any("subtask" in timer for timer in expected)
        came = []
        for subtask in self.subtasks:
            subtask.fired.clear()
            if clock == "watermark":
                subtask.service.advance_watermark(step[clock])
            else:
                subtask.service.advance_processing_time(step[clock])
            fired = subtask.fired if named else [_without_subtask(timer) for timer in subtask.fired]
            if step.get("ordered"):
                expect_subsequence(f"of timers at {where}", expected, fired)
            came += fired
        expect_same(f"fired at {where}", expected, came)

    def _restore(self, parallelism: int, with_time: bool) -> None:
        old = self.subtasks
        slots = [item for subtask in old for item in subtask.service.snapshot().items()]
        self.key = old[0].service.current_key
        self.subtasks = [Subtask(self, number) for number in range(parallelism)]
        for slot, snapshot in slots:
            self._owner_of(slot[0]).service.restore(slot, snapshot)
        if with_time:
            for subtask in self.subtasks:
                subtask.service.current_watermark = old[0].service.current_watermark
                subtask.service.current_processing_time = old[0].service.current_processing_time

    def _expect_counts(self, where: str, raw: dict[str, Any]) -> None:
        check_fields(where, raw, {"event", "processing", "event_by_ns", "processing_by_ns"})
        for name, value in raw.items():
            domain = name.removesuffix("_by_ns")
            queues = self._queues(domain)
            if name == domain:
                came: Any = sum(map(len, queues))
            else:
                came = {ns: sum(count(queue, ns) for queue in queues) for ns in value}
            expect_equal(f"{name} at {where}", value, came)

    def _expect_timers(self, where: str, raw: dict[str, Any]) -> None:
        check_fields(where, raw, {"event", "processing"})
        for domain, expected in raw.items():
            came = [_timer_text(self, time, slot) for queue in self._queues(domain) for time, slot in queue]
            expect_same(f"{domain} timers at {where}", expected, came)

    def _queues(self, domain: str) -> list[TimerQueue]:
        services = [subtask.service for subtask in self.subtasks]
        return [service.event_time if domain == "event" else service.processing_time for service in services]

    def _expect_current(self, where: str, raw: dict[str, Any]) -> None:
        check_fields(where, raw, {"watermark", "processing_time"})
        for name, value in raw.items():
            for subtask in self.subtasks:
                expect_equal(f"current {name} at {where}", value, getattr(subtask.service, f"current_{name}"))


def _without_subtask(timer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in timer.items() if name != "subtask"}


_QUEUE_STEPS: dict[str, set[str]] = {
    "add": set(),
    "add_all": set(),
    "remove": {"result"},
    "poll": {"priority", "element"},
    "peek": {"priority"},
    "size": set(),
    "is_empty": set(),
    "elements": set(),
}


def run_priority_queue(case: dict[str, Any], options: Options) -> None:
    """Run a case: a set of (key, priority), smallest priority first."""
    check_fields(case["id"], case, CASE_FIELDS | {"steps", "expect_error"})
    walk_steps(case, _QUEUE_STEPS, partial(_queue_step, TimerQueue()))


def _queue_step(queue: TimerQueue, where: str, kind: str, step: dict[str, Any]) -> None:
    raw = step[kind]
    match kind:
        case "add" | "add_all":
            for key, priority in [raw] if kind == "add" else raw:
                queue.add(priority, (key, None))
        case "remove":
            removed = queue.remove(raw[1], (raw[0], None))
            expect_equal(f"result of {where}", step.get("result", removed), removed)
        case "peek":
            expect_equal(f"peek at {where}", step["priority"], queue.peek())
        case "poll":
            polled = poll(queue) if len(queue) else None
            if "element" in step:
                came = None if polled is None else [polled[1][0], polled[0]]
                expect_equal(f"polled at {where}", step["element"], came)
            if "priority" in step:
                expect_equal(f"priority at {where}", step["priority"], None if polled is None else polled[0])
        case "size":
            expect_equal(f"size at {where}", raw, len(queue))
        case "elements":
            expect_same(f"elements at {where}", raw, [[key, priority] for priority, (key, _) in queue])
        case _:
            expect_equal(f"is_empty at {where}", raw, len(queue) == 0)

"""Timers: a set, none early, none lost, a deleted one never fires, none left for closed windows."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tidegate.windowing import AfterCount, AfterProcessingTime, AfterWatermark, EventTimeSessionWindows, Windows
from tidegate.windowing.assigners import SlidingEventTimeWindows
from tidegate.windowing.testing import window_harness
from tidegate.windowing.time import MAX_TIMESTAMP, Millis
from tidegate.windowing.timers import InternalTimerService, Slot

KEYS, NAMESPACES, TIMES = st.sampled_from("ab"), st.sampled_from([(0, 5), (5, 9)]), st.integers(0, 40)
Timer = tuple[Millis, str, Any]


class TimersAreASet(RuleBasedStateMachine):
    """Against a Python set: register, delete, move time, with callbacks that do the same, and restores."""

    def __init__(self) -> None:
        super().__init__()
        self.model: set[Timer] = set()
        self.fired: list[Timer] = []
        self.on_fire: dict[Timer, list[tuple[bool, Timer]]] = {}
        self.service = self.made()

    def made(self) -> InternalTimerService:
        return InternalTimerService(self)

    def on_event_time(self, time: Millis, slot: Slot) -> None:
        timer = (time, *slot)
        assert timer in self.model, "a timer fired that was deleted, or never set"
        assert time <= self.service.current_watermark, "a timer fired early"
        assert time == min(other[0] for other in self.model), "a timer fired before an earlier one"
        self.model.remove(timer)
        self.fired.append(timer)
        for register, other in self.on_fire.pop(timer, ()):
            self.change(register, other)

    def on_processing_time(self, time: Millis, slot: Slot) -> None:
        raise AssertionError("no such timer was set")

    def change(self, register: bool, timer: Timer) -> None:
        time, key, namespace = timer
        self.service.current_key = key
        if register:
            self.service.register_event_time_timer(namespace, time)
            self.model.add(timer)
        else:
            self.service.delete_event_time_timer(namespace, time)
            self.model.discard(timer)

    @rule(time=TIMES, key=KEYS, namespace=NAMESPACES)
    def register(self, time: Millis, key: str, namespace: Any) -> None:
        self.change(True, (time, key, namespace))

    @rule(time=TIMES, key=KEYS, namespace=NAMESPACES)
    def delete(self, time: Millis, key: str, namespace: Any) -> None:
        self.change(False, (time, key, namespace))

    @rule(
        at=st.tuples(TIMES, KEYS, NAMESPACES),
        changes=st.lists(st.tuples(st.booleans(), st.tuples(TIMES, KEYS, NAMESPACES)), max_size=3),
    )
    def when_it_fires(self, at: Timer, changes: list[tuple[bool, Timer]]) -> None:
        self.on_fire[at] = changes

    @rule(to=TIMES)
    def move_time(self, to: Millis) -> None:
        self.service.advance_watermark(to)
        assert all(time > self.service.current_watermark for time, _, _ in self.model), "a due timer was lost"

    @rule()
    def restore(self) -> None:
        before, self.service = self.service, self.made()
        for slot, snapshot in before.snapshot().items():
            self.service.restore(slot, snapshot)
        self.service.current_watermark = before.current_watermark

    @invariant()
    def holds_exactly_the_model(self) -> None:
        queue = self.service.event_time
        assert {(time, *slot) for time, slot in queue} == self.model
        assert len(queue) == len(self.model)
        assert queue.peek() == min((time for time, _, _ in self.model), default=None)


TestTimersAreASet = TimersAreASet.TestCase


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 60), st.integers(0, 9)), max_size=30),
    st.sampled_from([EventTimeSessionWindows.with_gap(7), SlidingEventTimeWindows.of(10, 4)]),
    st.sampled_from([0, 8]),
)
def test_closed_windows_leave_no_timer(elements: list[tuple[str, int, int]], assigner: Any, lateness: int) -> None:
    trigger = AfterWatermark(early=AfterProcessingTime(5), late=AfterCount(2))
    run = window_harness(
        Windows(assigner, trigger, allowed_lateness=lateness, reduce=lambda a, b: a + b), account_for_all=True
    )
    clock = 0
    for key, timestamp, step in elements:
        clock += step
        run.processing_time(clock)
        run.element(key, 1, timestamp)
        run.watermark(clock)
        rows = [row for subtask in run.subtasks for row in subtask.state_rows()]
        for row in rows:
            cleanup = row.window.max_timestamp + lateness  # type: ignore[union-attr]
            assert cleanup > clock, "a closed window is still there"
            assert row.state_window is not None, "a window that was merged away still has timers"
    run.watermark(MAX_TIMESTAMP)
    assert (run.event_time_timers, run.processing_time_timers, run.state_entries) == (0, 0, 0)

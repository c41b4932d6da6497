"""Promises of the window operator to its assigner, trigger, evictor and function, in both time domains.

In the manner of Flink's WindowOperatorContractTest: a scripted trigger says what happens, and calls,
state entries and timers are asserted beside the results.
"""

from __future__ import annotations

import pytest

from tests.windowing.contracts.scripted import CONTINUE, FIRE, FIRE_AND_PURGE, FORMS, PURGE, Contract
from tidegate.windowing.errors import UnsupportedOperation
from tidegate.windowing.time import Millis
from tidegate.windowing.triggers import TriggerContext, TriggerResult
from tidegate.windowing.windows import TimeWindow, Window

EARLY, LATER, ELSEWHERE = TimeWindow(0, 10), TimeWindow(10, 20), TimeWindow(100, 110)

ALL_FORMS = pytest.mark.parametrize("form", FORMS)


@pytest.fixture(params=[True, False], ids=["event time", "processing time"])
def event_time(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@ALL_FORMS
@pytest.mark.parametrize("merging", [False, True])
def test_the_trigger_sees_an_element_once_for_each_of_its_windows(event_time: bool, form: str, merging: bool) -> None:
    it = Contract(event_time, merging, form)
    assert it.element(EARLY, ELSEWHERE) == []
    assert it.trigger.take_calls() == [("element", EARLY), ("element", ELSEWHERE)]
    assert it.timers == 2
    assert it.run.state_entries == 2 + merging


@ALL_FORMS
def test_continue_keeps_the_contents_and_emits_nothing(event_time: bool, form: str) -> None:
    it = Contract(event_time, False, form)
    it.element(EARLY)
    assert it.element(EARLY) == []
    assert (it.run.state_entries, it.timers) == (1, 1)


@ALL_FORMS
def test_fire_emits_and_keeps_the_contents(event_time: bool, form: str) -> None:
    it = Contract(event_time, False, form)
    it.trigger.element = lambda window, ctx: FIRE
    assert [it.element(EARLY), it.element(EARLY)] == [[(EARLY, 1)], [(EARLY, 2)]]
    assert it.run.state_entries == 1


@ALL_FORMS
def test_fire_and_purge_emits_and_drops_the_contents_but_not_the_cleanup_timer(event_time: bool, form: str) -> None:
    it = Contract(event_time, False, form)
    it.trigger.element = lambda window, ctx: FIRE_AND_PURGE
    assert [it.element(EARLY), it.element(EARLY)] == [[(EARLY, 1)], [(EARLY, 1)]]
    assert (it.run.state_entries, it.timers) == (0, 1)


@ALL_FORMS
def test_purge_drops_contents_only_and_calls_no_clear(event_time: bool, form: str) -> None:
    it = Contract(event_time, False, form)

    def purge_and_remember(window: Window, ctx: TriggerContext) -> TriggerResult:
        ctx.get_partitioned_state(it.trigger.state).update(7)
        return PURGE

    it.trigger.element = purge_and_remember
    assert it.element(EARLY) == []
    assert (it.run.state_entries, it.timers) == (1, 1)
    assert ("clear", EARLY) not in it.trigger.take_calls()


@ALL_FORMS
@pytest.mark.parametrize("result", [FIRE, FIRE_AND_PURGE])
def test_a_timer_fires_its_window_alone(event_time: bool, form: str, result: TriggerResult) -> None:
    it = Contract(event_time, False, form)

    def wait(window: Window, ctx: TriggerContext) -> TriggerResult:
        if window == EARLY:
            it.register(ctx, 5)
        return CONTINUE

    it.trigger.element = wait
    it.on_time(lambda window, ctx: result)
    it.element(EARLY, LATER)
    assert it.timers == 3
    assert it.move(4) == []
    assert it.move(5) == [(EARLY, 1)]
    assert it.timers == 2


@ALL_FORMS
def test_a_timer_of_an_empty_window_calls_the_hook_and_emits_nothing(event_time: bool, form: str) -> None:
    it = Contract(event_time, False, form)

    def purge_and_wait(window: Window, ctx: TriggerContext) -> TriggerResult:
        it.register(ctx, 5)
        return PURGE

    it.trigger.element = purge_and_wait
    it.on_time(lambda window, ctx: FIRE)
    it.element(EARLY)
    it.trigger.take_calls()
    assert it.move(5) == []
    assert it.trigger.take_calls() == [(it.timer_hook, EARLY)]


@ALL_FORMS
def test_deleted_timers_do_not_fire(event_time: bool, form: str) -> None:
    it = Contract(event_time, False, form)

    def set_and_delete(window: Window, ctx: TriggerContext) -> TriggerResult:
        it.register(ctx, 5)
        (ctx.delete_event_time_timer if event_time else ctx.delete_processing_time_timer)(5)
        return CONTINUE

    it.trigger.element = set_and_delete
    it.on_time(lambda window, ctx: FIRE)
    it.element(EARLY)
    assert it.timers == 1
    assert it.move(8) == []


@ALL_FORMS
@pytest.mark.parametrize("lateness", [0, 20])
def test_at_cleanup_time_the_hook_runs_and_then_everything_goes(event_time: bool, form: str, lateness: Millis) -> None:
    it = Contract(event_time, False, form, lateness)
    it.trigger.element = lambda window, ctx: ctx.get_partitioned_state(it.trigger.state).update(1) or CONTINUE
    it.element(EARLY)
    it.trigger.take_calls()
    assert (it.run.state_entries, it.timers) == (2, 1)
    cleanup = EARLY.max_timestamp + (lateness if event_time else 0)
    it.move(cleanup - 1)
    assert it.trigger.take_calls() == []
    it.move(cleanup)
    assert it.trigger.take_calls() == [(it.timer_hook, EARLY), ("clear", EARLY)]
    assert (it.run.state_entries, it.timers) == (0, 0)
    assert it.function is None or it.function.cleared == [EARLY]


@ALL_FORMS
def test_the_cleanup_timer_may_still_fire_the_window(event_time: bool, form: str) -> None:
    it = Contract(event_time, False, form)
    it.on_time(lambda window, ctx: FIRE)
    it.element(EARLY)
    assert it.move(9) == [(EARLY, 1)]
    assert it.run.state_entries == 0


@ALL_FORMS
def test_a_trigger_timer_at_cleanup_time_is_the_same_timer(event_time: bool, form: str) -> None:
    it = Contract(event_time, False, form)
    it.trigger.element = lambda window, ctx: it.register(ctx, window.max_timestamp) or CONTINUE
    it.on_time(lambda window, ctx: FIRE)
    it.element(EARLY)
    assert it.timers == 1
    assert it.move(9) == [(EARLY, 1)]
    assert [call for call, _ in it.trigger.take_calls()] == ["element", it.timer_hook, "clear"]


@ALL_FORMS
def test_an_element_that_is_late_for_all_its_windows_reaches_no_trigger(form: str) -> None:
    it = Contract(True, False, form, lateness=5)
    it.move(14)
    it.run.element("key", [EARLY], 3)
    (late,) = it.run.late()
    assert (late.key, late.timestamp, late.window) == ("key", 3, EARLY)
    assert it.trigger.take_calls() == []
    assert (it.run.state_entries, it.timers) == (0, 0)


@ALL_FORMS
def test_one_window_in_time_is_enough(form: str) -> None:
    it = Contract(True, False, form)
    it.move(14)
    it.element(EARLY, LATER, timestamp=3)
    assert it.trigger.take_calls() == [("element", LATER)]


@ALL_FORMS
def test_nothing_is_late_in_processing_time(form: str) -> None:
    it = Contract(False, False, form, lateness=5)
    it.run.watermark(1_000)
    it.element(EARLY, timestamp=3)
    assert it.trigger.take_calls() == [("element", EARLY)]


@ALL_FORMS
def test_an_element_without_windows_changes_nothing(event_time: bool, form: str) -> None:
    it = Contract(event_time, False, form)
    assert it.element() == []
    assert (it.run.state_entries, it.timers) == (0, 0)


@ALL_FORMS
def test_a_merge_calls_on_merge_for_the_result_then_clears_the_sources(event_time: bool, form: str) -> None:
    it = Contract(event_time, True, form)
    it.element(TimeWindow(0, 4))
    it.element(TimeWindow(6, 10))
    assert (it.run.state_entries, it.timers) == (3, 2)
    it.trigger.take_calls()
    it.trigger.element = lambda window, ctx: FIRE
    assert it.element(TimeWindow(4, 6)) == [(EARLY, 3)]
    assert it.trigger.take_calls() == [
        ("merge", EARLY),
        ("clear", TimeWindow(0, 4)),
        ("clear", TimeWindow(6, 10)),
        ("element", EARLY),
    ]
    assert (it.run.state_entries, it.timers) == (2, 1)


@ALL_FORMS
def test_a_window_inside_one_in_flight_calls_no_merge(event_time: bool, form: str) -> None:
    it = Contract(event_time, True, form)
    it.element(EARLY)
    it.element(TimeWindow(2, 5))
    assert it.trigger.take_calls() == [("element", EARLY), ("element", EARLY)]
    assert it.timers == 1


@ALL_FORMS
def test_a_timer_of_a_merged_away_window_is_ignored_without_calling_the_trigger(event_time: bool, form: str) -> None:
    it = Contract(event_time, True, form)
    it.trigger.element = lambda window, ctx: it.register(ctx, 2) or CONTINUE
    it.element(TimeWindow(0, 4))
    it.trigger.element = lambda window, ctx: CONTINUE
    it.element(TimeWindow(4, 10))
    it.trigger.take_calls()
    assert it.move(2) == []
    assert it.trigger.take_calls() == []


@ALL_FORMS
def test_merging_a_window_into_the_past_is_refused(event_time: bool, form: str) -> None:
    it = Contract(event_time, True, form)
    it.element(TimeWindow(0, 4))
    (it.run.subtasks[0].restore_time)(50, 50)
    with pytest.raises(UnsupportedOperation, match="merg"):
        it.run.element("key", [TimeWindow(3, 6)], 3)


@ALL_FORMS
def test_when_a_merged_window_closes_the_merging_set_goes_with_it(event_time: bool, form: str) -> None:
    it = Contract(event_time, True, form)
    it.element(TimeWindow(0, 4))
    it.element(TimeWindow(4, 10))
    it.move(9)
    assert (it.run.state_entries, it.timers) == (0, 0)


@pytest.mark.parametrize("merging", [False, True])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_restore_keeps_contents_trigger_state_timers_and_merging_sets(
    event_time: bool, merging: bool, parallelism: int
) -> None:
    # Elements of this suite are windows: only their number can be kept in a typed column.
    it = Contract(event_time, merging, "aggregate", lateness=5)
    it.trigger.element = lambda window, ctx: ctx.get_partitioned_state(it.trigger.state).update(3) or CONTINUE
    it.element(EARLY)
    it.element(ELSEWHERE)
    before = (it.run.state_entries, it.timers)
    it.run.restore(it.run.snapshot(), parallelism)
    assert (it.run.state_entries, it.timers) == before
    it.on_time(lambda window, ctx: FIRE if ctx.get_partitioned_state(it.trigger.state).value() == 3 else CONTINUE)
    assert it.move(14) == [(EARLY, 1)]

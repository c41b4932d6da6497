from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing.errors import IllegalArgument, IllegalState, IncompatibleSnapshot
from tidegate.windowing.testing import RecordingOutput
from tidegate.windowing.watermarks import WatermarkOutputMultiplexer

NAMES = ("a", "b", "c")
UPDATES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.booleans(), st.integers(0, 20) | st.just("idle") | st.just("active")),
    max_size=30,
)


def multiplexer(output: RecordingOutput, *names: str) -> WatermarkOutputMultiplexer:
    made = WatermarkOutputMultiplexer(output)
    for name in names:
        made.register_new_output(name)
    return made


def feed(multiplexer: WatermarkOutputMultiplexer, updates: list[tuple[str, bool, int | str]]) -> None:
    for name, immediate, update in updates:
        output = multiplexer.get_immediate_output(name) if immediate else multiplexer.get_deferred_output(name)
        if update == "idle":
            output.mark_idle()
        elif update == "active":
            output.mark_active()
        else:
            output.emit_watermark(update)  # type: ignore[arg-type]
        if not immediate:
            multiplexer.on_periodic_emit()


def test_the_same_output_may_be_got_again_and_in_both_forms() -> None:
    output = RecordingOutput()
    combined = multiplexer(output, "a")
    combined.get_deferred_output("a").emit_watermark(5)
    assert output.take() == []
    combined.get_immediate_output("a").emit_watermark(6)
    assert output.take() == [6]


def test_an_output_that_goes_idle_lets_the_others_drive() -> None:
    output = RecordingOutput()
    combined = multiplexer(output, "a", "b")
    combined.get_immediate_output("a").emit_watermark(2)
    combined.get_immediate_output("b").emit_watermark(5)
    combined.get_immediate_output("a").mark_idle()
    assert output.take() == [2, 5]


def test_when_all_outputs_are_idle_the_watermark_stays() -> None:
    """Flink 1.20; the valve, and Flink from 2.2 on, go to the largest."""
    output = RecordingOutput()
    combined = multiplexer(output, "a", "b")
    feed(combined, [("a", True, 5), ("b", True, 2), ("a", True, "idle"), ("b", True, "idle")])
    assert output.take() == [2, "idle"]


def test_nothing_goes_out_without_outputs() -> None:
    output = RecordingOutput()
    multiplexer(output).on_periodic_emit()
    assert output.take() == []


def test_removing_the_smallest_counts_with_the_next_update() -> None:
    output = RecordingOutput()
    combined = multiplexer(output, "a", "b")
    feed(combined, [("a", True, 1), ("b", True, 9)])
    combined.unregister_output("a")
    assert output.take() == [1]
    combined.on_periodic_emit()
    assert output.take() == [9]


def test_an_id_is_registered_once() -> None:
    with pytest.raises(IllegalState, match="'a' is already registered"):
        multiplexer(RecordingOutput(), "a", "a")


def test_an_unknown_id_has_no_output() -> None:
    combined = multiplexer(RecordingOutput(), "a")
    for get in (combined.get_immediate_output, combined.get_deferred_output):
        with pytest.raises(IllegalArgument, match="register it first"):
            get("b")
    assert combined.unregister_output("b") is False


@given(UPDATES)
def test_the_combined_watermark_never_goes_back_and_never_passes_an_active_output(
    updates: list[tuple[str, bool, int | str]],
) -> None:
    output = RecordingOutput()
    combined = multiplexer(output, *NAMES)
    marks: dict[str, int] = {}
    idle: set[str] = set()
    for update in updates:
        name, _, value = update
        before = combined.watermark
        feed(combined, [update])
        if isinstance(value, int):
            marks[name] = max(value, marks.get(name, value))
        (idle.add if value == "idle" else idle.discard)(name)
        assert combined.watermark >= before
        if combined.watermark > before:
            assert combined.watermark == min(marks[name] for name in NAMES if name not in idle)
    watermarks = [mark for mark in output.take() if isinstance(mark, int)]
    assert watermarks == sorted(set(watermarks))


@given(UPDATES, st.integers(0, 30))
def test_a_snapshot_at_any_point_changes_nothing(updates: list[tuple[str, bool, int | str]], cut: int) -> None:
    straight = RecordingOutput()
    feed(multiplexer(straight, *NAMES), updates)
    output = RecordingOutput()
    before, after = multiplexer(output, *NAMES), WatermarkOutputMultiplexer(output)
    feed(before, updates[:cut])
    after.restore(json.loads(json.dumps(before.snapshot())))
    feed(after, updates[cut:])
    assert output.take() == straight.take()


def test_a_snapshot_of_something_else_is_refused() -> None:
    with pytest.raises(IncompatibleSnapshot, match="inputs"):
        multiplexer(RecordingOutput()).restore({"watermark": 1, "idle": False})

from __future__ import annotations

import json
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing.errors import IllegalArgument, IllegalState, IncompatibleSnapshot
from tidegate.windowing.operators.records import IdleRecord, WatermarkRecord
from tidegate.windowing.testing import RecordingOutput
from tidegate.windowing.time import MIN_TIMESTAMP
from tidegate.windowing.watermarks import (
    StatusWatermarkValve,
    WatermarkOutputMultiplexer,
    WatermarkToDataOutput,
)

CHANNELS = 3
STEPS = st.lists(
    st.tuples(st.integers(0, CHANNELS - 1), st.integers(0, 20) | st.sampled_from(["idle", "active"])), max_size=40
)


def feed(valve: StatusWatermarkValve, steps: list[tuple[int, int | str]]) -> None:
    for channel, step in steps:
        if step == "idle":
            valve.input_idle(channel)
        elif step == "active":
            valve.input_active(channel)
        else:
            valve.input_watermark(step, channel)  # type: ignore[arg-type]


def run(channels: int, *steps: tuple[int, int | str]) -> list[object]:
    output = RecordingOutput()
    feed(StatusWatermarkValve(channels, output), list(steps))
    return output.take()


@given(st.lists(st.none() | st.integers(0, 20), min_size=1, max_size=4))
def test_the_order_in_which_channels_go_idle_does_not_matter(watermarks: list[int | None]) -> None:
    ends = set()
    for order in permutations(range(len(watermarks))):
        output = RecordingOutput()
        valve = StatusWatermarkValve(len(watermarks), output)
        feed(valve, [(channel, mark) for channel, mark in enumerate(watermarks) if mark is not None])
        feed(valve, [(channel, "idle") for channel in order])
        assert valve.idle
        assert output.out[-1] == "idle"
        ends.add(valve.watermark)
    assert ends == {max((mark for mark in watermarks if mark is not None), default=MIN_TIMESTAMP)}


@given(STEPS)
def test_watermarks_rise_while_the_valve_is_active_and_none_passes_an_active_channel(
    steps: list[tuple[int, int | str]],
) -> None:
    output = RecordingOutput()
    valve = StatusWatermarkValve(CHANNELS, output)
    for step in steps:
        feed(valve, [step])
        channels = [valve.channel(channel) for channel in range(CHANNELS)]
        assert all(channel.watermark >= valve.watermark for channel in channels if channel.aligned)
        assert valve.idle == all(channel.idle for channel in channels)
    watermarks = [mark for mark in output.out if isinstance(mark, int)]
    assert watermarks == sorted(set(watermarks))
    idle = False
    for record in output.out:
        assert record != ("idle" if idle else "active"), "a status is emitted when it changes"
        assert not (idle and isinstance(record, int))
        idle = record == "idle" or (idle and record != "active")


@given(STEPS, st.integers(0, 40))
def test_a_snapshot_at_any_point_changes_nothing(steps: list[tuple[int, int | str]], cut: int) -> None:
    output = RecordingOutput()
    before, after = StatusWatermarkValve(CHANNELS, output), StatusWatermarkValve(CHANNELS, output)
    feed(before, steps[:cut])
    after.restore(json.loads(json.dumps(before.snapshot())))
    feed(after, steps[cut:])
    assert output.take() == run(CHANNELS, *steps)


@pytest.mark.parametrize("channel", [-1, 2])
def test_an_unknown_channel_is_named(channel: int) -> None:
    valve = StatusWatermarkValve(2, RecordingOutput())
    for act in (valve.channel, valve.input_idle, valve.input_active, lambda c: valve.input_watermark(1, c)):
        with pytest.raises(IllegalArgument, match=rf"channel = {channel}: give 0 to 1"):
            act(channel)


def test_a_snapshot_of_another_number_of_channels_is_refused() -> None:
    snapshot = StatusWatermarkValve(2, RecordingOutput()).snapshot()
    with pytest.raises(IncompatibleSnapshot, match="channels: the snapshot has 2, this configuration has 3"):
        StatusWatermarkValve(3, RecordingOutput()).restore(snapshot)


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


def feed_outputs(multiplexer: WatermarkOutputMultiplexer, updates: list[tuple[str, bool, int | str]]) -> None:
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


@pytest.mark.parametrize("immediate", [True, False])
@pytest.mark.parametrize(("first", "second"), ["ab", "ba"])
def test_when_all_outputs_are_idle_the_largest_watermark_counts_in_any_order(
    first: str, second: str, immediate: bool
) -> None:
    output = RecordingOutput()
    combined = multiplexer(output, "a", "b")
    feed_outputs(combined, [(name, immediate, value) for name, value in (("a", 5), ("b", 2), (first, "idle"))])
    feed_outputs(combined, [(second, immediate, "idle")])
    assert output.take() == [2, 5, "idle"]


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
        feed_outputs(combined, [update])
        if isinstance(value, int):
            marks[name] = max(value, marks.get(name, value))
        (idle.add if value == "idle" else idle.discard)(name)
        assert combined.watermark >= before
        if combined.watermark > before:
            active = [marks[name] for name in NAMES if name not in idle]
            assert combined.watermark == (min(active) if active else max(marks.values()))
    watermarks = [mark for mark in output.take() if isinstance(mark, int)]
    assert watermarks == sorted(set(watermarks))


@given(UPDATES, st.integers(0, 30))
def test_a_snapshot_of_a_multiplexer_at_any_point_changes_nothing(
    updates: list[tuple[str, bool, int | str]], cut: int
) -> None:
    straight = RecordingOutput()
    feed_outputs(multiplexer(straight, *NAMES), updates)
    output = RecordingOutput()
    before, after = multiplexer(output, *NAMES), WatermarkOutputMultiplexer(output)
    feed_outputs(before, updates[:cut])
    after.restore(json.loads(json.dumps(before.snapshot())))
    feed_outputs(after, updates[cut:])
    assert output.take() == straight.take()


def test_a_snapshot_of_something_else_is_refused() -> None:
    with pytest.raises(IncompatibleSnapshot, match="inputs"):
        multiplexer(RecordingOutput()).restore({"watermark": 1, "idle": False})


OUTPUTS = st.lists(st.integers(-5, 5) | st.sampled_from(["idle", "active"]), max_size=20)


def emit_all(output: WatermarkToDataOutput, steps: list[int | str]) -> None:
    for step in steps:
        if step == "idle":
            output.mark_idle()
        elif step == "active":
            output.mark_active()
        else:
            output.emit_watermark(step)  # type: ignore[arg-type]


@given(OUTPUTS)
def test_watermarks_only_advance_and_status_only_changes(steps: list[int | str]) -> None:
    records: list[WatermarkRecord | IdleRecord] = []
    emit_all(WatermarkToDataOutput(records.append), steps)
    watermarks = [record.timestamp for record in records if isinstance(record, WatermarkRecord)]
    statuses = [record.idle for record in records if isinstance(record, IdleRecord)]
    assert watermarks == sorted(set(watermarks))
    assert statuses == [position % 2 == 0 for position in range(len(statuses))]
    idle = False
    for record in records:
        assert not (idle and isinstance(record, WatermarkRecord)), "no watermark is emitted while idle"
        idle = record.idle if isinstance(record, IdleRecord) else idle


@given(OUTPUTS, st.integers(0, 20))
def test_a_snapshot_of_an_output_at_any_point_changes_nothing(steps: list[int | str], cut: int) -> None:
    straight: list[WatermarkRecord | IdleRecord] = []
    emit_all(WatermarkToDataOutput(straight.append), steps)
    records: list[WatermarkRecord | IdleRecord] = []
    before, after = WatermarkToDataOutput(records.append), WatermarkToDataOutput(records.append)
    emit_all(before, steps[:cut])
    after.restore(before.snapshot())
    emit_all(after, steps[cut:])
    assert records == straight

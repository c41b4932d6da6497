from __future__ import annotations

import json
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing.errors import IllegalArgument, IncompatibleSnapshot
from tidegate.windowing.testing import RecordingOutput
from tidegate.windowing.time import MIN_TIMESTAMP
from tidegate.windowing.watermarks import ChannelStatus, StatusWatermarkValve

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


def test_the_step_table_of_the_module_holds() -> None:
    assert run(2, (0, 10), (1, 20), (0, "idle"), (1, "idle")) == [10, 20, "idle"]
    assert run(2, (0, 10), (1, 20), (1, "idle"), (0, "idle")) == [10, 20, "idle"]


def test_channels_move_on_as_others_go_idle_one_by_one() -> None:
    assert run(3, (0, 25), (1, 10), (2, 17), (1, "idle"), (2, "idle")) == [10, 17, 25]


def test_the_largest_watermark_is_flushed_when_the_last_channel_goes_idle() -> None:
    assert run(3, (0, 10), (1, 5), (2, 3), (0, "idle"), (1, "idle"), (2, "idle")) == [3, 10, "idle"]


def test_a_resumed_channel_counts_once_it_has_caught_up() -> None:
    output = RecordingOutput()
    valve = StatusWatermarkValve(2, output)
    feed(valve, [(0, 10), (1, 7), (1, "idle")])
    assert output.take() == [7, 10]
    feed(valve, [(1, "active"), (1, 8), (0, 15)])
    assert output.take() == [15]
    assert valve.channel(1) == ChannelStatus(8, False, False)
    feed(valve, [(1, 15), (0, 20)])
    assert valve.channel(1).aligned
    assert output.take() == []
    feed(valve, [(1, 18)])
    assert output.take() == [18]


def test_watermarks_of_idle_channels_are_ignored() -> None:
    assert run(2, (0, "idle"), (1, 5), (0, 100), (1, "idle"), (1, "active"), (1, 6)) == [5, "idle", "active", 6]


def test_any_channel_that_resumes_makes_the_valve_active() -> None:
    assert run(2, (0, "idle"), (1, "idle"), (1, "active"), (0, "active")) == ["idle", "active"]


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

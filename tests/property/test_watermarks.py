"""The watermark never goes back, whatever inputs do, and a restore on the way changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing import WatermarkStrategy
from tidegate.windowing.testing import ManualClock, RecordingOutput
from tidegate.windowing.watermarks import StatusWatermarkValve, WatermarkOutputMultiplexer

CHANNELS = 3
FLIPS = st.lists(
    st.tuples(st.integers(0, CHANNELS - 1), st.one_of(st.integers(0, 100), st.sampled_from(["idle", "active"]))),
    max_size=40,
)


def watermarks(output: RecordingOutput) -> list[int]:
    return [out for out in output.out if isinstance(out, int)]


def flip(valve: StatusWatermarkValve, channel: int, what: Any) -> None:
    match what:
        case "idle":
            valve.input_idle(channel)
        case "active":
            valve.input_active(channel)
        case _:
            valve.input_watermark(what, channel)


@given(FLIPS)
def test_the_valve_only_emits_rising_watermarks_that_no_active_aligned_channel_is_behind(flips: list[Any]) -> None:
    output = RecordingOutput()
    valve = StatusWatermarkValve(CHANNELS, output)
    for channel, what in flips:
        flip(valve, channel, what)
        out = watermarks(output)
        assert out == sorted(set(out))
        status = [valve.channel(number) for number in range(CHANNELS)]
        if out and not valve.idle:
            assert all(each.watermark >= out[-1] for each in status if each.aligned and not each.idle)
        assert valve.idle == all(each.idle for each in status)


@given(FLIPS, st.integers(0, 40))
def test_a_valve_restored_at_any_step_goes_on_as_if_nothing_happened(flips: list[Any], at: int) -> None:
    outputs = RecordingOutput(), RecordingOutput()
    straight, restored = (StatusWatermarkValve(CHANNELS, output) for output in outputs)
    for number, (channel, what) in enumerate(flips):
        if number == at:
            snapshot = json.loads(json.dumps(restored.snapshot()))
            restored = StatusWatermarkValve(CHANNELS, outputs[1])
            restored.restore(snapshot)
        flip(straight, channel, what)
        flip(restored, channel, what)
    assert outputs[0].out == outputs[1].out


@given(st.permutations(range(CHANNELS)), st.lists(st.integers(0, 100), min_size=CHANNELS, max_size=CHANNELS))
def test_the_order_in_which_channels_go_idle_does_not_matter(order: list[int], times: list[int]) -> None:
    output = RecordingOutput()
    valve = StatusWatermarkValve(CHANNELS, output)
    for channel, time in enumerate(times):
        valve.input_watermark(time, channel)
    for channel in order:
        valve.input_idle(channel)
    assert valve.watermark == max(times)
    assert watermarks(output)[-1] == max(times)


@given(FLIPS)
def test_the_multiplexer_never_goes_back(flips: list[Any]) -> None:
    output = RecordingOutput()
    multiplexer = WatermarkOutputMultiplexer(output)
    for channel in range(CHANNELS):
        multiplexer.register_new_output(str(channel))
    for channel, what in flips:
        part = multiplexer.get_immediate_output(str(channel))
        match what:
            case "idle":
                part.mark_idle()
            case "active":
                part.mark_active()
            case _:
                part.emit_watermark(what)
        out = watermarks(output)
        assert out == sorted(set(out))


STRATEGIES = [
    WatermarkStrategy.for_monotonous_timestamps(),
    WatermarkStrategy.for_bounded_out_of_orderness(7),
    WatermarkStrategy.for_bounded_out_of_orderness_with_idle_advance(7, 20, 5),
    WatermarkStrategy.for_bounded_out_of_orderness(7).with_idleness(15),
]


@given(
    st.sampled_from(STRATEGIES),
    st.lists(st.one_of(st.integers(0, 100), st.none()), max_size=40),
    st.integers(0, 40),
)
def test_a_generator_never_goes_back_and_survives_a_restore(
    strategy: WatermarkStrategy, steps: list[int | None], at: int
) -> None:
    """Numbers are timestamps of events, None is a periodic call 5 ms later."""
    outputs, clock = (RecordingOutput(), RecordingOutput()), ManualClock()
    straight, restored = (strategy.create_generator(clock) for _ in range(2))
    for number, step in enumerate(steps):
        if number == at:
            snapshot = json.loads(json.dumps(restored.snapshot()))
            restored = strategy.create_generator(clock)
            restored.restore(snapshot)
        clock.now += 5 if step is None else 0
        for generator, output in zip((straight, restored), outputs, strict=True):
            if step is None:
                generator.on_periodic_emit(output)
            else:
                generator.on_event("event", step, output)
    assert outputs[0].out == outputs[1].out
    assert watermarks(outputs[0]) == sorted(watermarks(outputs[0]))


@given(
    st.sampled_from(STRATEGIES),
    st.lists(st.one_of(st.integers(0, 100), st.none()), max_size=20),
    st.lists(st.integers(0, 30), min_size=1, max_size=5),
)
def test_calls_in_a_row_lead_where_they_lead_one_by_one(
    strategy: WatermarkStrategy, steps: list[int | None], pauses: list[int]
) -> None:
    outputs = RecordingOutput(), RecordingOutput()
    together, single = (replace(strategy, idle_timeout=None).create_generator(ManualClock()) for _ in range(2))
    for pause in pauses:
        for generator, output in zip((together, single), outputs, strict=True):
            for step in steps:
                if step is None:
                    generator.on_periodic_emit(output)
                else:
                    generator.on_event("event", step + 50 * pause, output)
        together.on_periodic_emits(pause, outputs[0])
        for _ in range(pause):
            single.on_periodic_emit(outputs[1])
        assert together.snapshot() == single.snapshot()
        assert watermarks(outputs[0])[-1:] == watermarks(outputs[1])[-1:]

"""The watermark never goes back, whatever inputs do, and a restore on the way changes nothing."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tidegate.windowing import WatermarkStrategy
from tidegate.windowing.testing import ManualClock, RecordingOutput


def watermarks(output: RecordingOutput) -> list[int]:
    return [out for out in output.out if isinstance(out, int)]


STRATEGIES = [
    WatermarkStrategy.for_monotonous_timestamps(),
    WatermarkStrategy.for_bounded_out_of_orderness(7),
    WatermarkStrategy.for_bounded_out_of_orderness_with_idle_advance(7, 10, 5),
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

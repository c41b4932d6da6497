"""Watermarks never go back, whatever the inputs do, and a restore on the way changes nothing. `watermark_by` is added,
removed and changed during a life: the watermark continues, for one input and for two.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tidegate.pipelines import DeltaSource, Input, Pipeline
from tidegate.pipelines.definition.recorded import Schemas
from tidegate.pipelines.epoch import event_times
from tidegate.pipelines.epoch.event_times import partitions_of, sides_of, step_of, times_of, watermarks_of
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.windowing import (
    Count,
    IntervalJoin,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.testing import ManualClock, RecordingOutput
from tidegate.windowing.time import MIN_TIMESTAMP
from tidegate.windowing.watermarks import EventTimes


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


COLUMNS = (None, "user", "place")

ROWS_BY = st.lists(
    st.fixed_dictionaries(
        {"user": st.sampled_from("ab"), "place": st.sampled_from(["", "x", "y"]), "time": st.integers(0, 1_000)}
    ),
    min_size=1,
    max_size=4,
)
STEPS_BY = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(0, 1), ROWS_BY),
        st.tuples(st.just("change"), st.integers(0, 1), st.sampled_from(COLUMNS)),
    ),
    min_size=4,
    max_size=14,
)


def pipeline_of(columns: Sequence[str | None]) -> Pipeline:
    """One input for each column, which defines its source partitions."""
    options: dict[str, Any] = {
        "name": "hours",
        "source": DeltaSource("events", timestamp="time", unit="ms"),
        "key": ("user",),
        "watermark": WatermarkStrategy.for_monotonous_timestamps(),
        "watermark_by": columns[0],
    }
    if len(columns) == 1:
        windows = Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate={"n": Count()})
        return Pipeline(**options, compute=windows)
    kind = pa.struct([("x", pa.int64())])
    join = IntervalJoin(timedelta(0), timedelta(hours=1), join=lambda left, right: {"x": 1}, result_type=kind)
    right = Input(source=DeltaSource("payments", timestamp="time", unit="ms"), watermark_by=columns[1])
    return Pipeline(**options, compute=join, right=right)


def manifest_of(pipeline: Pipeline, times: EventTimes, epoch: int) -> Manifest:
    """Write and read a snapshot, and return the event time in it."""
    manifest = Manifest(
        pipeline=pipeline.name,
        timeline=1,
        epoch=epoch,
        parent=None,
        line=((1, epoch),),
        kind="stream",
        order="arrival",
        positions={},
        watermark=times.watermark,
        partitions=partitions_of(times),
        inputs=watermarks_of(times),
        watermark_by={
            side: one.watermark_by
            for one, side in zip(pipeline.inputs, sides_of(pipeline), strict=True)
            if one.watermark_by is not None
        },
        processing_time=epoch,
        max_parallelism=1,
        shards=(),
        fingerprint="",
        schemas=Schemas(key={}, namespace="", contents={}),
        counters={},
        publish={},
        run_id="",
        started_at=0,
        library_version="",
        engine="local",
    )
    return Manifest.parse(manifest.model_dump_json())


def partition_of(row: Mapping[str, Any], column: str | None) -> str:
    return "" if column is None else str(row[column])


def live_by(inputs: int, steps: Sequence[tuple[Any, ...]]) -> None:
    """Compare event time with what the columns of the rows since each change imply. A column that was changed and
    changed back between two epochs never differed: no snapshot knows about it.
    """
    columns: list[str | None] = [None] * inputs
    used: list[str | None] = [None] * inputs
    since: list[dict[str, int]] = [{} for _ in range(inputs)]
    own, expected = [MIN_TIMESTAMP] * inputs, MIN_TIMESTAMP
    manifest: Manifest | None = None
    for epoch, (what, place, value) in enumerate(steps, start=1):
        number = place % inputs
        if what == "change":
            columns[number] = value
            continue
        for changed in range(inputs):
            if columns[changed] != used[changed]:
                used[changed], since[changed] = columns[changed], {}
        pipeline = pipeline_of(columns)
        times = times_of(pipeline, manifest)
        largest: dict[str, int] = {}
        for row in value:
            name = partition_of(row, columns[number])
            largest[name] = max(largest.get(name, 0), row["time"])
            since[number][name] = max(since[number].get(name, 0), row["time"])
        step_of(times, number, largest, epoch)
        own[number] = max(own[number], min(since[number].values()) - 1)
        expected = max(expected, min(own))
        assert times.watermark == expected, (columns, since)
        manifest = manifest_of(pipeline, times, epoch)


@given(st.integers(1, 2), STEPS_BY)
def test_the_watermark_is_that_of_the_partitions_since_the_column_changed(
    inputs: int, steps: list[tuple[Any, ...]]
) -> None:
    live_by(inputs, steps)


@pytest.mark.parametrize("inputs", [1, 2])
def test_the_draws_find_partitions_that_stay_behind(inputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_times, "replaced_partitions", lambda pipeline, manifest: set())

    @settings(database=None, phases=[Phase.generate], max_examples=300)
    @given(STEPS_BY)
    def drawn(steps: list[tuple[Any, ...]]) -> None:
        live_by(inputs, steps)

    with pytest.raises(AssertionError):
        drawn()

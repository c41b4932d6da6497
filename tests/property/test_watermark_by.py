"""`watermark_by` is added, removed and changed in mid-life: the watermark goes on, for one input and for two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tidegate.pipelines import DeltaSource, Input, Pipeline
from tidegate.pipelines.definition.recorded import Schemas
from tidegate.pipelines.epoch import event_times
from tidegate.pipelines.epoch.event_times import EventTimes, sides_of
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.windowing import Count, IntervalJoin, TumblingEventTimeWindows, WatermarkStrategy, Windows
from tidegate.windowing.time import MIN_TIMESTAMP

COLUMNS = (None, "user", "place")

ROWS = st.lists(
    st.fixed_dictionaries(
        {"user": st.sampled_from("ab"), "place": st.sampled_from(["", "x", "y"]), "time": st.integers(0, 1_000)}
    ),
    min_size=1,
    max_size=4,
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(0, 1), ROWS),
        st.tuples(st.just("change"), st.integers(0, 1), st.sampled_from(COLUMNS)),
    ),
    min_size=4,
    max_size=14,
)


def pipeline_of(columns: Sequence[str | None]) -> Pipeline:
    """One input for each column, which its source partitions are of."""
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
    """Return the event time in a snapshot after it was written and read again."""
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
        partitions=times.partitions,
        inputs=times.watermarks,
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
    )
    return Manifest.parse(manifest.model_dump_json())


def partition_of(row: Mapping[str, Any], column: str | None) -> str:
    return "" if column is None else str(row[column])


def live(inputs: int, steps: Sequence[tuple[Any, ...]]) -> None:
    """Hold event time against what the columns of the rows since each change say.

    A column that was changed and changed back between two epochs was never another one: no snapshot knows of it.
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
        times = EventTimes.of(pipeline, manifest)
        largest: dict[str, int] = {}
        for row in value:
            name = partition_of(row, columns[number])
            largest[name] = max(largest.get(name, 0), row["time"])
            since[number][name] = max(since[number].get(name, 0), row["time"])
        times.step(number, largest, epoch)
        own[number] = max(own[number], min(since[number].values()) - 1)
        expected = max(expected, min(own))
        assert times.watermark == expected, (columns, since)
        manifest = manifest_of(pipeline, times, epoch)


@given(st.integers(1, 2), STEPS)
def test_the_watermark_is_that_of_the_partitions_since_the_column_changed(
    inputs: int, steps: list[tuple[Any, ...]]
) -> None:
    live(inputs, steps)


@pytest.mark.parametrize("inputs", [1, 2])
def test_the_draws_find_partitions_that_stay_behind(inputs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_times, "replaced_partitions", lambda pipeline, manifest: set())

    @settings(database=None, phases=[Phase.generate], max_examples=300)
    @given(STEPS)
    def drawn(steps: list[tuple[Any, ...]]) -> None:
        live(inputs, steps)

    with pytest.raises(AssertionError):
        drawn()


@given(st.sampled_from(COLUMNS), st.lists(st.sampled_from(["", "a", "b"]), unique=True, max_size=3))
def test_an_older_manifest_tells_by_the_names_of_its_partitions_whether_it_has_any(
    column: str | None, names: list[str]
) -> None:
    pipeline = pipeline_of([None])
    times = EventTimes.of(pipeline, None)
    for name in names:
        times.step(0, {name: 5}, 1)
    older = manifest_of(pipeline, times, 1)
    assert "watermark_by" not in older.model_dump()
    only = set(names) <= {""}
    expected = only if column is None else not names or set(names) != {""}
    assert older.are_partitioned_by("", column) == expected

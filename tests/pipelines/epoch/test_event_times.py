"""Event time of a pipeline as manifests have it."""

from __future__ import annotations

from datetime import timedelta

from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.epoch.event_times import EventTimes
from tidegate.windowing import Count, TumblingEventTimeWindows, WatermarkStrategy, Windows

PIPELINE = Pipeline(
    name="hours",
    source=DeltaSource("events", timestamp="time", unit="ms"),
    key=("user",),
    watermark=WatermarkStrategy.for_bounded_out_of_orderness(10),
    watermark_by="user",
    compute=Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate={"n": Count()}),
)


def test_a_partition_behind_in_an_older_manifest_is_one_that_came_back() -> None:
    """They did not tell it from a new one, and waited for neither."""
    times = EventTimes.restored(PIPELINE, 0, 0, {}, {})
    step = times.step(0, {"a": 500, "b": 300}, 1_000)
    older = {name: partition.model_copy(update={"aligned": None}) for name, partition in times.partitions.items()}
    restored = EventTimes.restored(PIPELINE, 489, step.clock, older, {})
    assert restored.step(0, {"a": 800}, 1_010).watermark == 789
    assert restored.step(0, {"b": 850}, 1_020).watermark == 789, "from when it has caught up it counts"
    assert restored.step(0, {"a": 990}, 1_030).watermark == 839

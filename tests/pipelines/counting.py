"""A pipeline that counts the events of each hour, with whatever a test wants otherwise."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.windowing import Count, TumblingEventTimeWindows, WatermarkStrategy, Windows

HOURS = TumblingEventTimeWindows.of(timedelta(hours=1))


def counting(**options: Any) -> Pipeline:
    """Counts as `n`, by user; options are fields of the pipeline."""
    return Pipeline(
        **{
            "name": "hours",
            "source": DeltaSource("events", timestamp="at"),
            "key": ("user",),
            "watermark": WatermarkStrategy.for_monotonous_timestamps(),
            "compute": Windows(HOURS, aggregate={"n": Count()}),
            **options,
        }
    )

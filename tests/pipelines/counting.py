"""A pipeline that counts the events of each hour, with other settings that a test may choose."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.lake import hourly_pipeline
from tidegate.pipelines import Pipeline
from tidegate.windowing import Count, TumblingEventTimeWindows, WatermarkStrategy

HOURS = TumblingEventTimeWindows.of(timedelta(hours=1))


def counting(**options: Any) -> Pipeline:
    """Return a pipeline that counts events as `n`, by user; options are fields of the pipeline."""
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    return hourly_pipeline(**{"watermark": strategy, "aggregate": {"n": Count()}, **options})

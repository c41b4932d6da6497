"""Departures and delays of each airport, hour by hour."""

from __future__ import annotations

from datetime import timedelta

from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.windowing import Count, Max, Mean, TumblingEventTimeWindows, WatermarkStrategy, Windows

airport_hours = Pipeline(
    name="airport_hours",
    source=DeltaSource("flights", timestamp="departed_at"),
    key=("origin",),
    watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(hours=25)),
    compute=Windows(
        TumblingEventTimeWindows.of(timedelta(hours=1)),
        aggregate={
            "departures": Count(),
            "mean_delay": Mean("dep_delay"),
            "max_delay": Max("dep_delay"),
        },
    ),
)

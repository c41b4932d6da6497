"""Shifts of airlines: departures of one airline from one airport with at most three hours between them.

A shift begins in the morning and ends late in the evening in New York, after midnight in UTC.
"""

from __future__ import annotations

from datetime import timedelta

from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.windowing import Count, EventTimeSessionWindows, First, Last, Max, Sum, WatermarkStrategy, Windows

carrier_shifts = Pipeline(
    name="carrier_shifts",
    source=DeltaSource("flights", timestamp="departed_at", changes="correct"),
    key=("carrier", "origin"),
    # A record comes when the flight has landed, and one without an air time a day after departure.
    watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(hours=25)),
    compute=Windows(
        EventTimeSessionWindows.with_gap(timedelta(hours=3)),
        aggregate={
            "flights": Count(),
            "air_minutes": Sum("air_time"),
            "longest_leg": Max("distance"),
            "first_flight": First("flight"),
            "last_flight": Last("flight"),
        },
    ),
)

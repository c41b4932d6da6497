"""Duty sessions of aircraft: flights of one tail number with at most three hours between departures."""

from __future__ import annotations

from datetime import timedelta

from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.windowing import Count, EventTimeSessionWindows, First, Last, Max, Sum, WatermarkStrategy, Windows

aircraft_duty = Pipeline(
    name="aircraft_duty",
    source=DeltaSource("flights", timestamp="departed_at"),
    key=("tailnum",),
    # A record comes when the flight has landed, and one without an air time a day after departure.
    watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(hours=25)),
    compute=Windows(
        EventTimeSessionWindows.with_gap(timedelta(hours=3)),
        aggregate={
            "flights": Count(),
            "air_minutes": Sum("air_time"),
            "longest_leg": Max("distance"),
            "first_airport": First("origin"),
            "last_airport": Last("dest"),
        },
    ),
)

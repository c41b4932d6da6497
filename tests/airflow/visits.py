"""The pipelines of the project that a real Airflow runs. The file is copied into that project as a module."""

from dataclasses import replace
from datetime import timedelta

from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.windowing import Count, EventTimeSessionWindows, Sum, TumblingEventTimeWindows, WatermarkStrategy, Windows

GAP = timedelta(minutes=30)


def visits_of(name: str) -> Pipeline:
    """Visits of each user: events less than half an hour apart."""
    return Pipeline(
        name=name,
        source=DeltaSource(f"{name}_events", timestamp="at"),
        key=("user",),
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(hours=1)),
        compute=Windows(EventTimeSessionWindows.with_gap(GAP), aggregate={"events": Count(), "total": Sum("value")}),
    )


daily = visits_of("daily")
live = visits_of("live")
life = visits_of("life")
resting = visits_of("resting")
watched = visits_of("watched")
told = replace(
    visits_of("told"),
    source=DeltaSource("told_events", timestamp="at", changes="correct"),
    compute=Windows(
        TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate={"events": Count(), "total": Sum("value")}
    ),
)

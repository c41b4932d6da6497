"""Pipelines of every kind of window whose sources change, for random histories."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from tests.lake import hourly_pipeline, session_pipeline
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.windowing import (
    Accumulation,
    Count,
    CumulateEventTimeWindows,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GapColumn,
    Max,
    PurgingTrigger,
    SlidingEventTimeWindows,
    Sum,
    TimeEvictor,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
CORRECTING = DeltaSource("events", timestamp="at", changes="correct")
SUMS: dict[str, Any] = {"aggregate": {"events": Count(), "total": Sum("value"), "largest": Max("value")}}
OPTIONS: dict[str, Any] = {
    "source": CORRECTING,
    "max_ahead": timedelta(days=99),
    "watermark": WatermarkStrategy.for_bounded_out_of_orderness(20 * MINUTE),
    "parallelism": 2,
    # Commits are an hour apart. An epoch of the clock between them would take time and show nothing.
    "checkpoint_interval": timedelta(days=99),
}


def windows(assigner: Any, **options: Any) -> Pipeline:
    return hourly_pipeline(compute=Windows(assigner, **SUMS, **options), **OPTIONS)


HOURS = TumblingEventTimeWindows.of(HOUR)
PIPELINES = {
    "hours": windows(HOURS),
    "hours with lateness": windows(HOURS, allowed_lateness=2 * HOUR),
    "hours, discarding": windows(HOURS, accumulation=Accumulation.DISCARDING),
    "hours, discarding, with lateness": windows(HOURS, allowed_lateness=2 * HOUR, accumulation=Accumulation.DISCARDING),
    "hours, retracting": windows(HOURS, allowed_lateness=HOUR, accumulation=Accumulation.RETRACTING),
    "sliding": windows(SlidingEventTimeWindows.of(HOUR, 20 * MINUTE)),
    "sliding, a size that is no multiple": windows(
        SlidingEventTimeWindows.of(50 * MINUTE, 20 * MINUTE), allowed_lateness=15 * MINUTE
    ),
    "sliding with gaps": windows(SlidingEventTimeWindows.of(20 * MINUTE, 30 * MINUTE), allowed_lateness=HOUR),
    "cumulative": windows(CumulateEventTimeWindows.of(HOUR, 20 * MINUTE), allowed_lateness=25 * MINUTE),
    "sessions": session_pipeline(12 * MINUTE, **OPTIONS),
    "sessions with lateness": session_pipeline(12 * MINUTE, allowed_lateness=2 * HOUR, **OPTIONS),
    "sessions, retracting": windows(
        EventTimeSessionWindows.with_gap(25 * MINUTE), allowed_lateness=HOUR, accumulation=Accumulation.RETRACTING
    ),
    "gaps with lateness": windows(EventTimeSessionWindows.with_dynamic_gap(GapColumn("value")), allowed_lateness=HOUR),
    "sessions, discarding": windows(
        EventTimeSessionWindows.with_gap(12 * MINUTE), accumulation=Accumulation.DISCARDING
    ),
    "sessions, discarding, with lateness": windows(
        EventTimeSessionWindows.with_gap(12 * MINUTE), allowed_lateness=2 * HOUR, accumulation=Accumulation.DISCARDING
    ),
    "gaps": windows(EventTimeSessionWindows.with_dynamic_gap(GapColumn("value"))),
    "gaps by a function": windows(EventTimeSessionWindows.with_dynamic_gap(lambda row: row["value"])),
    "hours, purging": windows(HOURS, trigger=PurgingTrigger.of(EventTimeTrigger())),
    "hours, the last quarter": windows(HOURS, evictor=TimeEvictor.of(15 * MINUTE), allowed_lateness=HOUR),
    "sessions, the last quarter": windows(
        EventTimeSessionWindows.with_gap(12 * MINUTE), evictor=TimeEvictor.of(15 * MINUTE)
    ),
    "by user": replace(windows(HOURS), watermark_by="user"),
    "no key": replace(windows(HOURS), key=()),
    "where": replace(windows(HOURS), where="value > 700000", columns={"value": "value * 2"}),
}

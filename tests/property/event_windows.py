"""Windows of event time, one of each kind, which end within some hours."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from tidegate.windowing import (
    AfterCount,
    AfterWatermark,
    CalendarEventTimeWindows,
    Count,
    EventTimeSessionWindows,
    GapColumn,
    Max,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    Windows,
)

MINUTE = timedelta(minutes=1)
SUMS = {"events": Count(), "total": Sum("value"), "largest": Max("value")}

EVENT_TIME: dict[str, Callable[..., Windows]] = {
    "tumbling": lambda **more: Windows(TumblingEventTimeWindows.of(20 * MINUTE, 7 * MINUTE), **more),
    "sliding": lambda **more: Windows(SlidingEventTimeWindows.of(50 * MINUTE, 20 * MINUTE), **more),
    "sliding with gaps": lambda **more: Windows(SlidingEventTimeWindows.of(10 * MINUTE, 25 * MINUTE), **more),
    "sessions": lambda **more: Windows(EventTimeSessionWindows.with_gap(15 * MINUTE), **more),
    "gaps": lambda **more: Windows(EventTimeSessionWindows.with_dynamic_gap(GapColumn("value")), **more),
    "calendar": lambda **more: Windows(CalendarEventTimeWindows.days("Europe/Berlin"), **more),
    "early": lambda **more: Windows(
        TumblingEventTimeWindows.of(30 * MINUTE), AfterWatermark(early=AfterCount(2), late=AfterCount(1)), **more
    ),
}

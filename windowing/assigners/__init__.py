"""Assigners, which put each element into windows.

Ingestion time is the time of the source commit that brought an element. Its windows are aliases of the processing-time
windows: in a stream and in every replay, an operator's clock shows the time of the source commit whose elements it is
processing (docs/decisions/windows-and-time.md).
"""

from tidegate.windowing.assigners.aligned import (
    CumulateEventTimeWindows,
    CumulateIngestionTimeWindows,
    CumulateProcessingTimeWindows,
    SlidingEventTimeWindows,
    SlidingIngestionTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingIngestionTimeWindows,
    TumblingProcessingTimeWindows,
    WindowStagger,
)
from tidegate.windowing.assigners.base import (
    AssignerContext,
    GapColumn,
    GlobalWindows,
    MergingWindowAssigner,
    WindowAssigner,
)
from tidegate.windowing.assigners.calendar import (
    Calendar,
    CalendarEventTimeWindows,
    CalendarProcessingTimeWindows,
    CalendarUnit,
)
from tidegate.windowing.assigners.session import (
    DynamicEventTimeSessionWindows,
    DynamicIngestionTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
    EventTimeSessionWindows,
    IngestionTimeSessionWindows,
    ProcessingTimeSessionWindows,
)

__all__ = [
    "AssignerContext",
    "Calendar",
    "CalendarEventTimeWindows",
    "CalendarProcessingTimeWindows",
    "CalendarUnit",
    "CumulateEventTimeWindows",
    "CumulateIngestionTimeWindows",
    "CumulateProcessingTimeWindows",
    "DynamicEventTimeSessionWindows",
    "DynamicIngestionTimeSessionWindows",
    "DynamicProcessingTimeSessionWindows",
    "EventTimeSessionWindows",
    "GapColumn",
    "GlobalWindows",
    "IngestionTimeSessionWindows",
    "MergingWindowAssigner",
    "ProcessingTimeSessionWindows",
    "SlidingEventTimeWindows",
    "SlidingIngestionTimeWindows",
    "SlidingProcessingTimeWindows",
    "TumblingEventTimeWindows",
    "TumblingIngestionTimeWindows",
    "TumblingProcessingTimeWindows",
    "WindowAssigner",
    "WindowStagger",
]

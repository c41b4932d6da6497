"""Assigners: which windows an element belongs to."""

from windowing.assigners.base import AssignerContext, MergingWindowAssigner, WindowAssigner
from windowing.assigners.calendar import (
    Calendar,
    CalendarEventTimeWindows,
    CalendarProcessingTimeWindows,
    CalendarUnit,
)
from windowing.assigners.gap_column import GapColumn
from windowing.assigners.globals import GlobalWindows
from windowing.assigners.ingestion import (
    DynamicIngestionTimeSessionWindows,
    IngestionTimeSessionWindows,
    SlidingIngestionTimeWindows,
    TumblingIngestionTimeWindows,
)
from windowing.assigners.session import (
    DynamicEventTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
)
from windowing.assigners.sliding import SlidingEventTimeWindows, SlidingProcessingTimeWindows
from windowing.assigners.stagger import WindowStagger
from windowing.assigners.tumbling import TumblingEventTimeWindows, TumblingProcessingTimeWindows

__all__ = [
    "AssignerContext",
    "Calendar",
    "CalendarEventTimeWindows",
    "CalendarProcessingTimeWindows",
    "CalendarUnit",
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

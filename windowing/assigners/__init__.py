"""Assigners, which put each element into windows."""

from tidegate.windowing.assigners.base import AssignerContext, MergingWindowAssigner, WindowAssigner
from tidegate.windowing.assigners.calendar import (
    Calendar,
    CalendarEventTimeWindows,
    CalendarProcessingTimeWindows,
    CalendarUnit,
)
from tidegate.windowing.assigners.gap_column import GapColumn
from tidegate.windowing.assigners.globals import GlobalWindows
from tidegate.windowing.assigners.ingestion import (
    DynamicIngestionTimeSessionWindows,
    IngestionTimeSessionWindows,
    SlidingIngestionTimeWindows,
    TumblingIngestionTimeWindows,
)
from tidegate.windowing.assigners.session import (
    DynamicEventTimeSessionWindows,
    DynamicProcessingTimeSessionWindows,
    EventTimeSessionWindows,
    ProcessingTimeSessionWindows,
)
from tidegate.windowing.assigners.sliding import SlidingEventTimeWindows, SlidingProcessingTimeWindows
from tidegate.windowing.assigners.stagger import WindowStagger
from tidegate.windowing.assigners.tumbling import TumblingEventTimeWindows, TumblingProcessingTimeWindows

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

"""Assigners: which windows an element belongs to."""

from windowing.assigners.base import AssignerContext, MergingWindowAssigner, WindowAssigner
from windowing.assigners.globals import GlobalWindows
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
    "DynamicEventTimeSessionWindows",
    "DynamicProcessingTimeSessionWindows",
    "EventTimeSessionWindows",
    "GlobalWindows",
    "MergingWindowAssigner",
    "ProcessingTimeSessionWindows",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "WindowAssigner",
    "WindowStagger",
]

"""Flink's windows, timers and watermarks as a library: exact, snapshot as rows, no Spark needed."""

from windowing.aggregates import Aggregate, Count, First, Last, Max, Mean, Min, Sum
from windowing.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowStagger,
)
from windowing.compute import Windows
from windowing.evictors import CountEvictor, DeltaEvictor, TimeEvictor
from windowing.functions import AggregateFunction, ProcessWindowFunction
from windowing.panes import Accumulation
from windowing.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    ProcessingTimeoutTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
)
from windowing.windows import GlobalWindow, TimeWindow

__all__ = [
    "Accumulation",
    "Aggregate",
    "AggregateFunction",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "Count",
    "CountEvictor",
    "CountTrigger",
    "DeltaEvictor",
    "DeltaTrigger",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "First",
    "GlobalWindow",
    "GlobalWindows",
    "Last",
    "Max",
    "Mean",
    "Min",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "ProcessingTimeoutTrigger",
    "PurgingTrigger",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "Sum",
    "TimeEvictor",
    "TimeWindow",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "WindowStagger",
    "Windows",
]

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
from windowing.compute import CoProcess, IntervalJoin, KeyedProcess, Windows
from windowing.evictors import CountEvictor, DeltaEvictor, TimeEvictor
from windowing.functions import (
    AggregateFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessWindowFunction,
    TimeDomain,
)
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
from windowing.watermarks import WatermarkStrategy
from windowing.windows import GlobalWindow, TimeWindow

__all__ = [
    "Accumulation",
    "Aggregate",
    "AggregateFunction",
    "CoProcess",
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
    "IntervalJoin",
    "KeyedCoProcessFunction",
    "KeyedProcess",
    "KeyedProcessFunction",
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
    "TimeDomain",
    "TimeEvictor",
    "TimeWindow",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "WatermarkStrategy",
    "WindowStagger",
    "Windows",
]

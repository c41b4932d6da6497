"""Flink's exact windows, timers and watermarks as a library. It runs without Spark, and its snapshots are rows."""

from typing import TYPE_CHECKING

from tidegate.exports import exports

if TYPE_CHECKING:
    from tidegate.windowing.aggregates import *
    from tidegate.windowing.assigners import *
    from tidegate.windowing.compute import (
        CoProcess as CoProcess,
        IntervalJoin as IntervalJoin,
        KeyedProcess as KeyedProcess,
        WindowJoin as WindowJoin,
        Windows as Windows,
        count_windows as count_windows,
    )
    from tidegate.windowing.evictors import (
        CountEvictor as CountEvictor,
        DeltaEvictor as DeltaEvictor,
        TimeEvictor as TimeEvictor,
    )
    from tidegate.windowing.functions import *
    from tidegate.windowing.panes import Accumulation as Accumulation
    from tidegate.windowing.triggers import *
    from tidegate.windowing.watermarks import WatermarkStrategy as WatermarkStrategy
    from tidegate.windowing.windows import GlobalWindow as GlobalWindow, TimeWindow as TimeWindow
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            ".aggregates": (
                "Aggregate AllTrue AnyTrue ApproxCountDistinct ApproxQuantile CollectList CollectSet "
                "Count CountIf First Groups Last Max MaxBy Mean Min MinBy StandardDeviation Sum TopN "
                "Variance VectorisedAggregate"
            ),
            ".assigners": (
                "CalendarEventTimeWindows CalendarProcessingTimeWindows CumulateEventTimeWindows "
                "CumulateIngestionTimeWindows CumulateProcessingTimeWindows EventTimeSessionWindows "
                "GapColumn GlobalWindows IngestionTimeSessionWindows ProcessingTimeSessionWindows "
                "SlidingEventTimeWindows SlidingIngestionTimeWindows SlidingProcessingTimeWindows "
                "TumblingEventTimeWindows TumblingIngestionTimeWindows TumblingProcessingTimeWindows "
                "WindowStagger"
            ),
            ".compute": "CoProcess IntervalJoin KeyedProcess WindowJoin Windows count_windows",
            ".evictors": "CountEvictor DeltaEvictor TimeEvictor",
            ".functions": (
                "AggregateFunction KeepFirst KeyedCoProcessFunction KeyedProcessFunction "
                "ProcessWindowFunction TimeDomain"
            ),
            ".panes": "Accumulation",
            ".triggers": (
                "AfterAll AfterAny AfterCount AfterEach AfterProcessingTime AfterWatermark "
                "ContinuousEventTimeTrigger ContinuousProcessingTimeTrigger CountTrigger DeltaTrigger "
                "EndOfStreamTrigger EventTimeTrigger NeverTrigger OrFinally ProcessingTimeTrigger "
                "ProcessingTimeoutTrigger PurgingTrigger Repeatedly"
            ),
            ".watermarks": "WatermarkStrategy",
            ".windows": "GlobalWindow TimeWindow",
        },
    )

"""Assigners, which put each element into windows.

Ingestion time is the time of the source commit that brought an element. Its windows are aliases of the processing-time
windows: in a stream and in every replay, an operator's clock shows the time of the source commit whose elements it is
processing (docs/decisions/windows-and-time.md).
"""

from typing import TYPE_CHECKING

from tidegate.exports import exports

if TYPE_CHECKING:
    from tidegate.windowing.assigners.aligned import (
        CumulateEventTimeWindows as CumulateEventTimeWindows,
        CumulateIngestionTimeWindows as CumulateIngestionTimeWindows,
        CumulateProcessingTimeWindows as CumulateProcessingTimeWindows,
        SlidingEventTimeWindows as SlidingEventTimeWindows,
        SlidingIngestionTimeWindows as SlidingIngestionTimeWindows,
        SlidingProcessingTimeWindows as SlidingProcessingTimeWindows,
        TumblingEventTimeWindows as TumblingEventTimeWindows,
        TumblingIngestionTimeWindows as TumblingIngestionTimeWindows,
        TumblingProcessingTimeWindows as TumblingProcessingTimeWindows,
        WindowStagger as WindowStagger,
    )
    from tidegate.windowing.assigners.base import (
        AssignerContext as AssignerContext,
        GapColumn as GapColumn,
        GlobalWindows as GlobalWindows,
        MergingWindowAssigner as MergingWindowAssigner,
        WindowAssigner as WindowAssigner,
    )
    from tidegate.windowing.assigners.calendar import (
        Calendar as Calendar,
        CalendarEventTimeWindows as CalendarEventTimeWindows,
        CalendarProcessingTimeWindows as CalendarProcessingTimeWindows,
        CalendarUnit as CalendarUnit,
    )
    from tidegate.windowing.assigners.session import (
        DynamicEventTimeSessionWindows as DynamicEventTimeSessionWindows,
        DynamicIngestionTimeSessionWindows as DynamicIngestionTimeSessionWindows,
        DynamicProcessingTimeSessionWindows as DynamicProcessingTimeSessionWindows,
        EventTimeSessionWindows as EventTimeSessionWindows,
        IngestionTimeSessionWindows as IngestionTimeSessionWindows,
        ProcessingTimeSessionWindows as ProcessingTimeSessionWindows,
    )
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            ".aligned": (
                "CumulateEventTimeWindows CumulateIngestionTimeWindows CumulateProcessingTimeWindows "
                "SlidingEventTimeWindows SlidingIngestionTimeWindows SlidingProcessingTimeWindows "
                "TumblingEventTimeWindows TumblingIngestionTimeWindows TumblingProcessingTimeWindows "
                "WindowStagger"
            ),
            ".base": "AssignerContext GapColumn GlobalWindows MergingWindowAssigner WindowAssigner",
            ".calendar": "Calendar CalendarEventTimeWindows CalendarProcessingTimeWindows CalendarUnit",
            ".session": (
                "DynamicEventTimeSessionWindows DynamicIngestionTimeSessionWindows "
                "DynamicProcessingTimeSessionWindows EventTimeSessionWindows IngestionTimeSessionWindows "
                "ProcessingTimeSessionWindows"
            ),
        },
    )

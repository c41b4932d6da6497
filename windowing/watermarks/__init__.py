"""Watermarks, which measure event time, with idleness and alignment of sources."""

from typing import TYPE_CHECKING

from tidegate.exports import exports

if TYPE_CHECKING:
    from tidegate.windowing.watermarks.combined import (
        ChannelStatus as ChannelStatus,
        CombinedWatermark as CombinedWatermark,
        WatermarkOutputMultiplexer as WatermarkOutputMultiplexer,
    )
    from tidegate.windowing.watermarks.event_time import (
        EventTime as EventTime,
        EventTimes as EventTimes,
        InputTime as InputTime,
        SeenEvent as SeenEvent,
        WatermarkToDataOutput as WatermarkToDataOutput,
    )
    from tidegate.windowing.watermarks.generator import (
        AscendingTimestampsWatermarks as AscendingTimestampsWatermarks,
        BoundedOutOfOrdernessWatermarks as BoundedOutOfOrdernessWatermarks,
        BoundedOutOfOrdernessWithIdleAdvance as BoundedOutOfOrdernessWithIdleAdvance,
        NoWatermarks as NoWatermarks,
        PunctuatedWatermarks as PunctuatedWatermarks,
        WatermarkGenerator as WatermarkGenerator,
        WatermarkOutput as WatermarkOutput,
    )
    from tidegate.windowing.watermarks.idleness import (
        Clock as Clock,
        IdlenessTimer as IdlenessTimer,
        WatermarksWithIdleness as WatermarksWithIdleness,
    )
    from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot as WatermarkSnapshot
    from tidegate.windowing.watermarks.strategy import (
        GeneratorSupplier as GeneratorSupplier,
        TimestampAssigner as TimestampAssigner,
        WatermarkAlignmentParams as WatermarkAlignmentParams,
        WatermarkStrategy as WatermarkStrategy,
    )
    from tidegate.windowing.watermarks.valve import StatusWatermarkValve as StatusWatermarkValve
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            ".combined": "ChannelStatus CombinedWatermark WatermarkOutputMultiplexer",
            ".event_time": "EventTime EventTimes InputTime SeenEvent WatermarkToDataOutput",
            ".generator": (
                "AscendingTimestampsWatermarks BoundedOutOfOrdernessWatermarks "
                "BoundedOutOfOrdernessWithIdleAdvance NoWatermarks PunctuatedWatermarks "
                "WatermarkGenerator WatermarkOutput"
            ),
            ".idleness": "Clock IdlenessTimer WatermarksWithIdleness",
            ".snapshot": "WatermarkSnapshot",
            ".strategy": "GeneratorSupplier TimestampAssigner WatermarkAlignmentParams WatermarkStrategy",
            ".valve": "StatusWatermarkValve",
        },
    )

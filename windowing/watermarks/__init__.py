"""Watermarks, which measure event time, with idleness and alignment of sources."""

from tidegate.windowing.watermarks.combined import CombinedWatermark, PartialWatermark, WatermarkOutputMultiplexer
from tidegate.windowing.watermarks.event_time import EventTime, EventTimes, InputTime, SeenEvent, WatermarkToDataOutput
from tidegate.windowing.watermarks.generator import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    BoundedOutOfOrdernessWithIdleAdvance,
    NoWatermarks,
    PunctuatedWatermarks,
    WatermarkGenerator,
    WatermarkOutput,
)
from tidegate.windowing.watermarks.idleness import Clock, IdlenessTimer, WatermarksWithIdleness
from tidegate.windowing.watermarks.snapshot import WatermarkSnapshot
from tidegate.windowing.watermarks.strategy import (
    GeneratorSupplier,
    TimestampAssigner,
    WatermarkAlignment,
    WatermarkAlignmentParams,
    WatermarkStrategy,
)
from tidegate.windowing.watermarks.valve import ChannelStatus, StatusWatermarkValve

__all__ = [
    "AscendingTimestampsWatermarks",
    "BoundedOutOfOrdernessWatermarks",
    "BoundedOutOfOrdernessWithIdleAdvance",
    "ChannelStatus",
    "Clock",
    "CombinedWatermark",
    "EventTime",
    "EventTimes",
    "GeneratorSupplier",
    "IdlenessTimer",
    "InputTime",
    "NoWatermarks",
    "PartialWatermark",
    "PunctuatedWatermarks",
    "SeenEvent",
    "StatusWatermarkValve",
    "TimestampAssigner",
    "WatermarkAlignment",
    "WatermarkAlignmentParams",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkOutputMultiplexer",
    "WatermarkSnapshot",
    "WatermarkStrategy",
    "WatermarkToDataOutput",
    "WatermarksWithIdleness",
]

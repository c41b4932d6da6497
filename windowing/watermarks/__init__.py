"""Watermarks, which measure event time, with idleness and alignment of sources."""

from tidegate.windowing.watermarks.combined import ChannelStatus, CombinedWatermark, WatermarkOutputMultiplexer
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
    WatermarkAlignmentParams,
    WatermarkStrategy,
)
from tidegate.windowing.watermarks.valve import StatusWatermarkValve

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
    "PunctuatedWatermarks",
    "SeenEvent",
    "StatusWatermarkValve",
    "TimestampAssigner",
    "WatermarkAlignmentParams",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkOutputMultiplexer",
    "WatermarkSnapshot",
    "WatermarkStrategy",
    "WatermarkToDataOutput",
    "WatermarksWithIdleness",
]

"""Watermarks: how far event time has come, who is idle, and who has to wait."""

from windowing.watermarks.alignment import WatermarkAlignment, WatermarkAlignmentParams
from windowing.watermarks.bounded import AscendingTimestampsWatermarks, BoundedOutOfOrdernessWatermarks, NoWatermarks
from windowing.watermarks.combined import CombinedWatermark, PartialWatermark
from windowing.watermarks.generator import WatermarkGenerator, WatermarkOutput
from windowing.watermarks.idleness import Clock, IdlenessTimer, WatermarksWithIdleness
from windowing.watermarks.logical import BoundedOutOfOrdernessWithIdleAdvance
from windowing.watermarks.multiplexer import WatermarkOutputMultiplexer
from windowing.watermarks.operator import TimestampsAndWatermarksOperator
from windowing.watermarks.output import WatermarkToDataOutput
from windowing.watermarks.punctuated import PunctuatedWatermarks
from windowing.watermarks.snapshot import WatermarkSnapshot
from windowing.watermarks.strategy import GeneratorSupplier, TimestampAssigner, WatermarkStrategy
from windowing.watermarks.valve import ChannelStatus, StatusWatermarkValve

__all__ = [
    "AscendingTimestampsWatermarks",
    "BoundedOutOfOrdernessWatermarks",
    "BoundedOutOfOrdernessWithIdleAdvance",
    "ChannelStatus",
    "Clock",
    "CombinedWatermark",
    "GeneratorSupplier",
    "IdlenessTimer",
    "NoWatermarks",
    "PartialWatermark",
    "PunctuatedWatermarks",
    "StatusWatermarkValve",
    "TimestampAssigner",
    "TimestampsAndWatermarksOperator",
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

"""Evictors, which remove elements of a window before or after its function."""

from tidegate.windowing.evictors.base import Evictor, EvictorContext, TimestampedValue
from tidegate.windowing.evictors.count import CountEvictor
from tidegate.windowing.evictors.delta import DeltaEvictor
from tidegate.windowing.evictors.time import TimeEvictor

__all__ = ["CountEvictor", "DeltaEvictor", "Evictor", "EvictorContext", "TimeEvictor", "TimestampedValue"]

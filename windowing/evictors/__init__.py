"""Evictors: which elements of a window its function sees, and which stay."""

from windowing.evictors.base import Evictor, EvictorContext, TimestampedValue
from windowing.evictors.count import CountEvictor
from windowing.evictors.delta import DeltaEvictor
from windowing.evictors.time import TimeEvictor

__all__ = ["CountEvictor", "DeltaEvictor", "Evictor", "EvictorContext", "TimeEvictor", "TimestampedValue"]

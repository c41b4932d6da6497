"""Timers of keys and namespaces, in event time and in processing time."""

from tidegate.windowing.timers.queue import Slot, TimerQueue
from tidegate.windowing.timers.service import (
    VOID_NAMESPACE,
    InternalTimerService,
    KeyContext,
    TimerService,
    TimersSnapshot,
    Triggerable,
)

__all__ = [
    "VOID_NAMESPACE",
    "InternalTimerService",
    "KeyContext",
    "Slot",
    "TimerQueue",
    "TimerService",
    "TimersSnapshot",
    "Triggerable",
]

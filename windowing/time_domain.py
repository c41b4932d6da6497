"""The two clocks that windows, timers and triggers run by."""

from __future__ import annotations

from enum import Enum


class TimeDomain(Enum):
    """A clock: the watermark, or processing time."""

    EVENT_TIME = "event"
    PROCESSING_TIME = "processing"


EVENT_TIME, PROCESSING_TIME = TimeDomain

"""The two time domains of windows, timers and triggers."""

from __future__ import annotations

from enum import Enum


class TimeDomain(Enum):
    """A time domain: event time follows the watermark, processing time follows the clock."""

    EVENT_TIME = "event"
    PROCESSING_TIME = "processing"


EVENT_TIME, PROCESSING_TIME = TimeDomain

"""Triggers, which decide when a window fires."""

from tidegate.windowing.triggers.base import ArrayFiring, OnMergeContext, Trigger, TriggerContext, TriggerResult
from tidegate.windowing.triggers.by_time import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    EndOfStreamTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
)
from tidegate.windowing.triggers.combinators import (
    AfterAll,
    AfterAny,
    AfterCount,
    AfterEach,
    AfterProcessingTime,
    AfterWatermark,
    OrFinally,
    Repeatedly,
)
from tidegate.windowing.triggers.count import CountTrigger, DeltaTrigger
from tidegate.windowing.triggers.terms import Term
from tidegate.windowing.triggers.timeout import ProcessingTimeoutTrigger, PurgingTrigger

__all__ = [
    "AfterAll",
    "AfterAny",
    "AfterCount",
    "AfterEach",
    "AfterProcessingTime",
    "AfterWatermark",
    "ArrayFiring",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountTrigger",
    "DeltaTrigger",
    "EndOfStreamTrigger",
    "EventTimeTrigger",
    "NeverTrigger",
    "OnMergeContext",
    "OrFinally",
    "ProcessingTimeTrigger",
    "ProcessingTimeoutTrigger",
    "PurgingTrigger",
    "Repeatedly",
    "Term",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
]

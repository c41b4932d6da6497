"""Triggers: when a window fires."""

from windowing.triggers.after import AfterCount, AfterProcessingTime, AfterWatermark
from windowing.triggers.base import OnMergeContext, Trigger, TriggerContext, TriggerResult
from windowing.triggers.combinators import AfterAll, AfterAny, AfterEach, OrFinally, Repeatedly
from windowing.triggers.continuous import ContinuousEventTimeTrigger, ContinuousProcessingTimeTrigger
from windowing.triggers.count import CountTrigger
from windowing.triggers.delta import DeltaTrigger
from windowing.triggers.event_time import EventTimeTrigger
from windowing.triggers.limits import EndOfStreamTrigger, NeverTrigger
from windowing.triggers.processing_time import ProcessingTimeTrigger
from windowing.triggers.purging import PurgingTrigger
from windowing.triggers.terms import Term
from windowing.triggers.timeout import ProcessingTimeoutTrigger

__all__ = [
    "AfterAll",
    "AfterAny",
    "AfterCount",
    "AfterEach",
    "AfterProcessingTime",
    "AfterWatermark",
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

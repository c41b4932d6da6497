"""Triggers, which decide when a window fires."""

from typing import TYPE_CHECKING

from tidegate.exports import exports

if TYPE_CHECKING:
    from tidegate.windowing.triggers.base import (
        ArrayFiring as ArrayFiring,
        OnMergeContext as OnMergeContext,
        Trigger as Trigger,
        TriggerContext as TriggerContext,
        TriggerResult as TriggerResult,
    )
    from tidegate.windowing.triggers.by_time import (
        ContinuousEventTimeTrigger as ContinuousEventTimeTrigger,
        ContinuousProcessingTimeTrigger as ContinuousProcessingTimeTrigger,
        EndOfStreamTrigger as EndOfStreamTrigger,
        EventTimeTrigger as EventTimeTrigger,
        NeverTrigger as NeverTrigger,
        ProcessingTimeTrigger as ProcessingTimeTrigger,
    )
    from tidegate.windowing.triggers.combinators import (
        AfterAll as AfterAll,
        AfterAny as AfterAny,
        AfterCount as AfterCount,
        AfterEach as AfterEach,
        AfterProcessingTime as AfterProcessingTime,
        AfterWatermark as AfterWatermark,
        OrFinally as OrFinally,
        Repeatedly as Repeatedly,
    )
    from tidegate.windowing.triggers.count import CountTrigger as CountTrigger, DeltaTrigger as DeltaTrigger
    from tidegate.windowing.triggers.terms import Term as Term
    from tidegate.windowing.triggers.timeout import (
        ProcessingTimeoutTrigger as ProcessingTimeoutTrigger,
        PurgingTrigger as PurgingTrigger,
    )
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            ".base": "ArrayFiring OnMergeContext Trigger TriggerContext TriggerResult",
            ".by_time": (
                "ContinuousEventTimeTrigger ContinuousProcessingTimeTrigger EndOfStreamTrigger "
                "EventTimeTrigger NeverTrigger ProcessingTimeTrigger"
            ),
            ".combinators": (
                "AfterAll AfterAny AfterCount AfterEach AfterProcessingTime AfterWatermark OrFinally Repeatedly"
            ),
            ".count": "CountTrigger DeltaTrigger",
            ".terms": "Term",
            ".timeout": "ProcessingTimeoutTrigger PurgingTrigger",
        },
    )

"""Functions: base classes for user code (aggregate, process window, keyed process, co-process), and deduplication."""

from typing import TYPE_CHECKING

from tidegate.exports import exports

if TYPE_CHECKING:
    from tidegate.windowing.functions.aggregate import (
        AggregateFunction as AggregateFunction,
        TimedAggregateFunction as TimedAggregateFunction,
    )
    from tidegate.windowing.functions.process import (
        KeepFirst as KeepFirst,
        KeyedCoProcessFunction as KeyedCoProcessFunction,
        KeyedProcessFunction as KeyedProcessFunction,
        OnTimerContext as OnTimerContext,
        ProcessContext as ProcessContext,
    )
    from tidegate.windowing.functions.process_window import (
        ProcessWindowContext as ProcessWindowContext,
        ProcessWindowFunction as ProcessWindowFunction,
    )
    from tidegate.windowing.time import TimeDomain as TimeDomain
else:
    __all__, __getattr__, __dir__ = exports(
        __name__,
        {
            ".aggregate": "AggregateFunction TimedAggregateFunction",
            ".process": "KeepFirst KeyedCoProcessFunction KeyedProcessFunction OnTimerContext ProcessContext",
            ".process_window": "ProcessWindowContext ProcessWindowFunction",
            "..time": "TimeDomain",
        },
    )

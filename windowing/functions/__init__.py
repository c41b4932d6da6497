"""Functions: base classes for user code (aggregate, process window, keyed process, co-process), and deduplication."""

from tidegate.windowing.functions.aggregate import AggregateFunction, TimedAggregateFunction
from tidegate.windowing.functions.process import (
    KeepFirst,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OnTimerContext,
    ProcessContext,
)
from tidegate.windowing.functions.process_window import (
    ProcessWindowContext,
    ProcessWindowFunction,
)
from tidegate.windowing.time import TimeDomain

__all__ = [
    "AggregateFunction",
    "KeepFirst",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "OnTimerContext",
    "ProcessContext",
    "ProcessWindowContext",
    "ProcessWindowFunction",
    "TimeDomain",
    "TimedAggregateFunction",
]

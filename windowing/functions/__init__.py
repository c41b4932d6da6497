"""What a user subclasses: aggregate, process window, keyed process and co-process functions."""

from windowing.functions.aggregate import AggregateFunction
from windowing.functions.co_process import KeyedCoProcessFunction
from windowing.functions.elements import AggregateElements, ReduceElements
from windowing.functions.keyed_process import KeyedProcessFunction, OnTimerContext, ProcessContext, TimeDomain
from windowing.functions.process_window import ProcessWindowContext, ProcessWindowFunction
from windowing.functions.timed import TimedAggregateFunction

__all__ = [
    "AggregateElements",
    "AggregateFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "OnTimerContext",
    "ProcessContext",
    "ProcessWindowContext",
    "ProcessWindowFunction",
    "ReduceElements",
    "TimeDomain",
    "TimedAggregateFunction",
]

"""What a user subclasses: aggregate, process window, keyed process and co-process functions."""

from tidegate.windowing.functions.aggregate import AggregateFunction
from tidegate.windowing.functions.co_process import KeyedCoProcessFunction
from tidegate.windowing.functions.elements import AggregateElements, ReduceElements
from tidegate.windowing.functions.keyed_process import KeyedProcessFunction, OnTimerContext, ProcessContext
from tidegate.windowing.functions.process_window import ProcessWindowContext, ProcessWindowFunction
from tidegate.windowing.functions.timed import TimedAggregateFunction
from tidegate.windowing.time_domain import TimeDomain

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

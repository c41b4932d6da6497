"""Window functions that fold all elements when the window fires, for windows with an evictor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from tidegate.windowing.functions.aggregate import AggregateFunction
from tidegate.windowing.functions.process_window import ProcessWindowContext, ProcessWindowFunction


@dataclass(frozen=True)
class ReduceElements(ProcessWindowFunction):
    """Function that reduces a window's elements to one value; no result for a window without elements.

    Source: Flink's `ReduceApplyWindowFunction`.
    """

    reduce: Callable[[Any, Any], Any]
    result_type: Any = None

    def process(self, key: Any, ctx: ProcessWindowContext, elements: Sequence[Any]) -> Iterable[Any]:
        return (reduce(self.reduce, elements),) if elements else ()


@dataclass(frozen=True)
class AggregateElements(ProcessWindowFunction):
    """Function that aggregates a window's elements; it has a result for a window without elements too.

    The elements come without timestamps, so aggregates by time can't be used. Source: Flink's
    `AggregateApplyWindowFunction`.
    """

    aggregate: AggregateFunction
    result_type: Any = None

    def process(self, key: Any, ctx: ProcessWindowContext, elements: Sequence[Any]) -> Iterable[Any]:
        accumulator = self.aggregate.create_accumulator()
        for element in elements:
            accumulator = self.aggregate.add_at(element, None, accumulator)
        return (self.aggregate.get_result(accumulator),)

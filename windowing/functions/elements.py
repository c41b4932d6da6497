"""Window functions that fold all elements at the firing: what an evictor leaves, say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from tidegate.windowing.functions.aggregate import AggregateFunction
from tidegate.windowing.functions.process_window import ProcessWindowContext, ProcessWindowFunction


@dataclass(frozen=True)
class ReduceElements(ProcessWindowFunction):
    """The reduced value of a window's elements; nothing for a window without any.

    Source: Flink's `ReduceApplyWindowFunction`.
    """

    reduce: Callable[[Any, Any], Any]
    result_type: Any = None

    def process(self, key: Any, ctx: ProcessWindowContext, elements: Sequence[Any]) -> Iterable[Any]:
        return (reduce(self.reduce, elements),) if elements else ()


@dataclass(frozen=True)
class AggregateElements(ProcessWindowFunction):
    """The aggregate of a window's elements, also of none. Source: Flink's `AggregateApplyWindowFunction`.

    The elements come without their timestamps, so an aggregate by time finds none.
    """

    aggregate: AggregateFunction
    result_type: Any = None

    def process(self, key: Any, ctx: ProcessWindowContext, elements: Sequence[Any]) -> Iterable[Any]:
        accumulator = self.aggregate.create_accumulator()
        for element in elements:
            accumulator = self.aggregate.add_at(element, None, accumulator)
        return (self.aggregate.get_result(accumulator),)

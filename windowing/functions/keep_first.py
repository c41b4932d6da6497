"""Deduplication by event time: the first element of each key. Windows deduplicate with `TopN`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.functions.process import KeyedProcessFunction, OnTimerContext, ProcessContext
from tidegate.windowing.state.descriptors import StateDescriptor, ValueStateDescriptor
from tidegate.windowing.time import Duration, Millis, positive_millis

_FIRST = ValueStateDescriptor("first", pa.int64())


@dataclass(frozen=True)
class KeepFirst(KeyedProcessFunction):
    """Yields the first element of each key, and drops the others.

    In `KeyedProcess(KeepFirst(...))`, "first" is by event time and depends only on the set of elements: elements of
    equal time are ordered by their columns. Source: Flink's deduplication, `ROW_NUMBER() OVER (PARTITION BY key ORDER
    BY rowtime ASC) = 1`, and for `within` Spark's `dropDuplicatesWithinWatermark`.

    Args:
        result_type: Arrow struct type of a result: columns of an element, without the key, which results have anyway.
        within: how long, in event time, elements after the first are dropped. The next element is a first one again.
            None drops them forever, and the state keeps a time for each key.

    Raises:
        IllegalArgument: `result_type` is not a struct type, or `within` is not a duration above zero.
    """

    result_type: pa.StructType
    within: Duration | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.result_type, pa.StructType) or not self.result_type.num_fields:
            example = 'give the columns to keep, such as pa.struct([("amount", pa.int64())])'
            raise IllegalArgument("KeepFirst.result_type", self.result_type, example)
        if self.within is not None:
            object.__setattr__(self, "within", positive_millis(self.within, "KeepFirst.within"))

    def process_element(self, value: Any, ctx: ProcessContext) -> Iterable[Any] | None:
        first = ctx.get_state(_FIRST)
        if first.value() is not None:
            return None
        # Without a time there is no order, and the element that arrives first is first.
        first.update(0 if ctx.timestamp is None else ctx.timestamp)
        if self.within is not None and ctx.timestamp is not None:
            # Elements of the timer's millisecond come before it, so the timer precedes the next first element.
            ctx.timer_service().register_event_time_timer(ctx.timestamp + positive_millis(self.within, "within") - 1)
        return [{name: value[name] for name in self.result_type.names}]

    def on_timer(self, timestamp: Millis, ctx: OnTimerContext) -> None:
        ctx.get_state(_FIRST).clear()

    def states(self) -> Sequence[StateDescriptor]:
        return (_FIRST,)

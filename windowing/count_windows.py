"""Count windows, which hold a fixed number of elements of a key. Source: Flink's `KeyedStream.countWindow`.

>>> from tidegate.windowing import Count, count_windows
>>> from tidegate.windowing.testing import window_harness
>>> harness = window_harness(count_windows(2, aggregate={"n": Count()}))
>>> for value in range(5):
...     harness.element("a", {}, None)
>>> [result.value for result in harness.results()]
[{'n': 2}, {'n': 2}]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tidegate.windowing.aggregates.bound import Aggregate, AggregateColumns
from tidegate.windowing.assigners import GlobalWindows
from tidegate.windowing.compute import Windows
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.evictors import CountEvictor
from tidegate.windowing.functions import AggregateElements, AggregateFunction, ProcessWindowFunction, ReduceElements
from tidegate.windowing.triggers import CountTrigger, PurgingTrigger


def count_windows(
    size: int,
    slide: int | None = None,
    *,
    aggregate: Mapping[str, Aggregate] | AggregateFunction | None = None,
    reduce: Callable[[Any, Any], Any] | None = None,
    process: ProcessWindowFunction | None = None,
) -> Windows:
    """Return windows of `size` elements of a key: disjoint, or a firing with the last ones every `slide` elements.

    Args:
        size: number of elements in a window.
        slide: number of elements from one firing to the next. The first firings have fewer than `size` elements. An
            evictor selects the last elements, so the state keeps all elements of a window. None puts each element into
            a single window.
        aggregate: as in `Windows`.
        reduce: as in `Windows`.
        process: as in `Windows`. With `slide`, give exactly one of aggregate, reduce and process.

    Raises:
        IllegalArgument: size or slide is below 1, or `Windows` refuses the combination.
    """
    for field, value in (("size", size), ("slide", slide)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise IllegalArgument(field, value, "give a whole number of elements, 1 or more")
    if slide is None:
        trigger = PurgingTrigger.of(CountTrigger.of(size))
        return Windows(GlobalWindows.create(), trigger, aggregate=aggregate, reduce=reduce, process=process)
    if sum(part is not None for part in (aggregate, reduce, process)) != 1:
        raise IllegalArgument("process", process, "give one of aggregate=, reduce= and process=")
    if aggregate is not None:
        function = aggregate if isinstance(aggregate, AggregateFunction) else AggregateColumns.of(aggregate)
        process = AggregateElements(function, function.result_type)
    elif reduce is not None:
        process = ReduceElements(reduce)
    return Windows(GlobalWindows.create(), CountTrigger.of(slide), CountEvictor.of(size), process=process)

"""The contents of a window: a list of its elements, a reduced value, or an accumulator.

The contents of an empty window are None. The function of the window receives the result of `values`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import add as concatenated
from typing import Any

from tidegate.windowing.aggregates.bound import AggregateColumns
from tidegate.windowing.compute import Windows
from tidegate.windowing.evictors import TimestampedValue
from tidegate.windowing.functions.aggregate import AggregateFunction, checked
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class Contents:
    """A way to store the elements of a window, in memory and in state rows.

    Args:
        add: returns the contents with another element, which is given with its timestamp.
        merge: returns the merged contents of two windows; neither is None.
        values: returns the values that the window's function receives.
        encode: returns contents as values of the contents columns.
        decode: returns the contents that `encode` wrote.
    """

    add: Callable[[Any, Any, Millis | None], Any]
    merge: Callable[[Any, Any], Any]
    values: Callable[[Any], Sequence[Any]]
    encode: Callable[[Any], list[Any]]
    decode: Callable[[Sequence[Any]], Any]


def contents_of(windows: Windows) -> Contents:
    """Return the kind of contents that windows have."""
    if windows.aggregate is not None:
        folded = _aggregated(windows.bound_aggregate)
    elif windows.reduce is not None:
        folded = _reduced(windows.reduce)
    else:
        return _elements(have_times=windows.evictor is not None)
    return folded if windows.evictor is None else _folded_at_firing(folded)


def _folded_at_firing(folded: Contents) -> Contents:
    """Return the contents that are all elements, as an evictor needs them, and are aggregated or reduced at a firing.

    Source: Flink's `AggregateApplyWindowFunction` and `ReduceApplyWindowFunction`.
    """

    def values(elements: list[TimestampedValue]) -> Sequence[Any]:
        contents = None
        for element in elements:
            contents = folded.add(contents, element.value, element.timestamp)
        return folded.values(contents)

    return replace(_elements(have_times=True), values=values)


def _elements(have_times: bool) -> Contents:
    """Return the contents that are all elements, in arrival order; an evictor needs their timestamps."""

    def add(contents: list[Any] | None, value: Any, timestamp: Millis | None) -> list[Any]:
        element = TimestampedValue(value, timestamp) if have_times else value
        if contents is None:
            return [element]
        contents.append(element)
        return contents

    def values(contents: list[Any]) -> list[Any]:
        return [element.value for element in contents] if have_times else contents

    def encode(contents: list[Any]) -> list[Any]:
        if have_times:
            return [[{"timestamp": element.timestamp, "value": element.value} for element in contents]]
        return [[{"timestamp": None, "value": value} for value in contents]]

    def decode(columns: Sequence[Any]) -> list[Any]:
        if have_times:
            return [TimestampedValue(element["value"], element["timestamp"]) for element in columns[0]]
        return [element["value"] for element in columns[0]]

    return Contents(add, concatenated, values, encode, decode)


def _reduced(reduce: Callable[[Any, Any], Any]) -> Contents:
    def add(contents: Any, value: Any, timestamp: Millis | None) -> Any:
        return value if contents is None else reduce(contents, value)

    def values(contents: Any) -> Sequence[Any]:
        return () if contents is None else (contents,)

    def encode(contents: Any) -> list[Any]:
        return [contents]

    def decode(columns: Sequence[Any]) -> Any:
        return columns[0]

    return Contents(add, reduce, values, encode, decode)


def _aggregated(aggregate: AggregateFunction) -> Contents:
    function, is_single = checked(aggregate), not isinstance(aggregate, AggregateColumns)
    functions = aggregate.functions if isinstance(aggregate, AggregateColumns) else (aggregate,)
    # The columns of accumulators are followed by those of the remainders of accumulators that have one.
    resting = [index for index, part in enumerate(functions) if part.rest_type is not None]
    create, add_at = aggregate.create_accumulator, function.add_at

    def add(contents: Any, value: Any, timestamp: Millis | None) -> Any:
        return add_at(value, timestamp, create() if contents is None else contents)

    def values(contents: Any) -> Sequence[Any]:
        return (function.get_result(create() if contents is None else contents),)

    def encode(contents: Any) -> list[Any]:
        stored, rests = [contents] if is_single else list(contents), []
        for index in resting:
            stored[index], rest = functions[index].stored(stored[index])
            rests.append(rest)
        return stored + rests

    def decode(columns: Sequence[Any]) -> Any:
        accumulators = list(columns[: len(functions)])
        for index, rest in zip(resting, columns[len(functions) :], strict=True):
            accumulators[index] = functions[index].restored(accumulators[index], rest)
        return accumulators[0] if is_single else accumulators

    return Contents(add, function.merge, values, encode, decode)

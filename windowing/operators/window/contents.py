"""The contents of a window: a list of its elements, a reduced value, or an accumulator.

The contents of an empty window are None. The function of the window receives the result of `values`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tidegate.windowing.compute import Windows
from tidegate.windowing.evictors import TimestampedValue
from tidegate.windowing.functions.aggregate import AggregateFunction, checked
from tidegate.windowing.time import Millis


class Contents(Protocol):
    """A way to store the elements of a window."""

    def add(self, contents: Any, value: Any, timestamp: Millis | None) -> Any:
        """Return the contents with another element."""

    def merge(self, contents: Any, other: Any) -> Any:
        """Return the merged contents; neither argument is None."""

    def values(self, contents: Any) -> Sequence[Any]:
        """Return the values that the window's function receives."""


class ListContents:
    """All elements, in arrival order."""

    __slots__ = ()

    def add(self, contents: list[Any] | None, value: Any, timestamp: Millis | None) -> list[Any]:
        if contents is None:
            return [value]
        contents.append(value)
        return contents

    def merge(self, contents: list[Any], other: list[Any]) -> list[Any]:
        return contents + other

    def values(self, contents: list[Any]) -> Sequence[Any]:
        return contents


class TimestampedContents(ListContents):
    """All elements with their timestamps, for an evictor."""

    __slots__ = ()

    def add(self, contents: list[Any] | None, value: Any, timestamp: Millis | None) -> list[Any]:
        element = TimestampedValue(value, timestamp)
        if contents is None:
            return [element]
        contents.append(element)
        return contents

    def values(self, contents: list[TimestampedValue]) -> Sequence[Any]:
        return [element.value for element in contents]


class ReducedContents:
    """A single value into which every element is reduced."""

    __slots__ = ("_reduce",)

    def __init__(self, reduce: Callable[[Any, Any], Any]) -> None:
        self._reduce = reduce

    def add(self, contents: Any, value: Any, timestamp: Millis | None) -> Any:
        return value if contents is None else self._reduce(contents, value)

    def merge(self, contents: Any, other: Any) -> Any:
        return self._reduce(contents, other)

    def values(self, contents: Any) -> Sequence[Any]:
        return (contents,)


class AggregatedContents:
    """An accumulator to which every element is added."""

    __slots__ = ("_aggregate", "merge")

    def __init__(self, aggregate: AggregateFunction) -> None:
        self._aggregate = aggregate
        self.merge = aggregate.merge

    def add(self, contents: Any, value: Any, timestamp: Millis | None) -> Any:
        aggregate = self._aggregate
        return aggregate.add(value, aggregate.create_accumulator() if contents is None else contents)

    def values(self, contents: Any) -> Sequence[Any]:
        return (self._aggregate.get_result(contents),)


class TimedAggregatedContents(AggregatedContents):
    """An accumulator to which every element is added, with its timestamp."""

    __slots__ = ("_add", "_create")

    def __init__(self, aggregate: AggregateFunction) -> None:
        super().__init__(aggregate)
        self._create, self._add = aggregate.create_accumulator, aggregate.add_at

    def add(self, contents: Any, value: Any, timestamp: Millis | None) -> Any:
        return self._add(value, timestamp, self._create() if contents is None else contents)


def contents_of(windows: Windows) -> Contents:
    """Return the kind of contents that windows have."""
    if windows.evictor is not None:
        return TimestampedContents()
    if windows.reduce is not None:
        return ReducedContents(windows.reduce)
    if windows.aggregate is not None:
        aggregate = checked(windows.bound_aggregate)
        return TimedAggregatedContents(aggregate) if aggregate.takes_time else AggregatedContents(aggregate)
    return ListContents()

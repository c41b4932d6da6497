"""Elements that wait for the watermark, so that a process function gets them in event order.

An element is held until the watermark reaches its time: after that, every earlier element is late. Elements of the same
millisecond and key are fed in the order of their values, so neither the order of arrival nor the division into epochs
matters. Sources: Flink's `CepOperator`, which buffers and sorts in the same way, and Beam's `@RequiresTimeSortedInput`.

    watermark 100, held: ann @ 103, ann @ 101        watermark 103: ann @ 101, ann @ 103
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from math import copysign
from typing import Any, TypeAlias

import pyarrow as pa

from tidegate.windowing.errors import IllegalState
from tidegate.windowing.state.rows import HELD
from tidegate.windowing.time import Millis

Side: TypeAlias = str | None

Held: TypeAlias = tuple[Side, Any]
"""The input and the value of an element that waits."""

ElementTypes: TypeAlias = Mapping[Side, pa.StructType | None]
"""Type of each input's elements; None if it is unknown, as in tests of an operator."""

_VALUE = "value"


class HeldElements:
    """The elements of an operator that wait for the watermark.

    Elements of the same millisecond are fed in the order of the inputs.
    """

    def __init__(self, types: ElementTypes) -> None:
        self._times: list[Millis] = []
        self._by_time: dict[Millis, dict[Any, list[Held]]] = {}
        self._sides = {side: number for number, side in enumerate(types)}
        self._columns = {side: None if kind is None else tuple(kind.names) for side, kind in types.items()}
        self._orders = {side: value_order(kind) for side, kind in types.items()}

    def add(self, key: Any, time: Millis, side: Side, value: Any) -> None:
        """Hold an element until the watermark reaches `time`."""
        keys = self._by_time.get(time)
        if keys is None:
            keys = self._by_time[time] = {}
            heappush(self._times, time)
        keys.setdefault(key, []).append((side, value))

    def next_time(self) -> Millis | None:
        """Return the smallest time of the waiting elements, or None."""
        return self._times[0] if self._times else None

    def take(self) -> Iterator[tuple[Any, Held]]:
        """Remove the elements of the smallest time, and yield each with its key, in feeding order."""
        for key, elements in self._by_time.pop(heappop(self._times)).items():
            for element in self._in_order(elements):
                yield key, element

    def by_key(self) -> dict[Any, list[Any]]:
        """Return the contents of the state row of each key with elements, in the columns of `held_contents`."""
        rows: dict[Any, list[list[Any]]] = {}
        columns = 1 + (len(self._sides) > 1) + sum(map(len, (names or (_VALUE,) for names in self._columns.values())))
        for time in sorted(self._times):
            for key, elements in self._by_time[time].items():
                row = rows.get(key)
                if row is None:
                    row = rows[key] = [[] for _ in range(columns)]
                for side, value in self._in_order(elements):
                    for column, part in zip(row, self._parts(time, side, value), strict=True):
                        column.append(part)
        return dict(rows)

    def restore(self, key: Any, contents: Sequence[Any]) -> None:
        """Restore the held elements from the contents of a state row.

        Raises:
            IllegalState: the row names an input that does not exist.
        """
        times, *columns = contents
        # A column that was added after the row was written is entirely null.
        parts = zip(*([None] * len(times) if column is None else column for column in columns), strict=True)
        for time, part in zip(times, parts if columns else [()] * len(times), strict=True):
            self.add(key, time, *self._element(part))

    def __len__(self) -> int:
        return sum(len(elements) for keys in self._by_time.values() for elements in keys.values())

    def _in_order(self, elements: list[Held]) -> list[Held]:
        """Sort elements by input, then by value. Elements of an unknown type keep their order of arrival."""
        if len(elements) == 1:
            return elements
        return sorted(elements, key=lambda element: (self._sides[element[0]], self._orders[element[0]](element[1])))

    def _parts(self, time: Millis, side: Side, value: Any) -> Iterator[Any]:
        """Yield the time, side and columns of an element; the columns of the other input are null."""
        yield time
        if len(self._sides) > 1:
            yield side
        for owner, names in self._columns.items():
            if names is None:
                yield value if owner == side else None
            else:
                yield from [value[name] for name in names] if owner == side else [None] * len(names)

    def _element(self, parts: tuple[Any, ...]) -> Held:
        side = None
        if len(self._sides) > 1:
            side, *rest = parts
            parts = tuple(rest)
        if side not in self._sides:
            raise IllegalState(f"a held element belongs to input {side!r}; the inputs are {list(self._sides)}")
        begin = 0
        for owner, names in self._columns.items():
            end = begin + len(names or (_VALUE,))
            if owner == side:
                value = parts[begin] if names is None else dict(zip(names, parts[begin:end], strict=True))
                return side, value
            begin = end
        raise AssertionError


def held_contents(types: ElementTypes) -> tuple[tuple[str, pa.DataType | None], ...]:
    """Return the name and type of each column of a state row that holds elements. The columns are parallel lists.

    Each column of an element has its own list, instead of one list of structs, so that a source may gain columns.
    """
    columns: list[tuple[str, pa.DataType | None]] = [(HELD, pa.list_(pa.int64()))]
    if len(types) > 1:
        columns.append((f"{HELD}_side", pa.list_(pa.string())))
    for side, kind in types.items():
        prefix = f"{HELD}_" if side is None else f"{HELD}_{side}_"
        if kind is None:
            columns.append((f"{prefix}{_VALUE}", None))
        else:
            columns += [(f"{prefix}{field.name}", pa.list_(field.type)) for field in kind]
    return tuple(columns)


def value_order(kind: pa.StructType | None) -> Callable[[Any], tuple[Any, ...]]:
    """Return the sort key of a total order of values: Arrow's order of their columns, then what Arrow can't sort.

    Arrow sorts nulls last and NaN after the numbers. It treats -0.0 and 0.0 as equal and does not sort nested columns.
    A function can distinguish such values, so they break the ties here. The values are mappings. Values of an unknown
    type have no order.
    """
    fields = list(kind or ())
    plain_names = [field.name for field in fields if not pa.types.is_nested(field.type)]
    nested_names = [field.name for field in fields if pa.types.is_nested(field.type)]

    def key(value: Any) -> tuple[Any, ...]:
        plain = [value[name] for name in plain_names]
        signs = [copysign(1, item) for item in plain if isinstance(item, float)]
        nested = [_nested_key(value[name]) for name in nested_names]
        return (*map(_plain_key, plain), *nested, *signs)

    return key


def _plain_key(value: Any) -> tuple[Any, ...]:
    if value is None:
        return (2,)
    return (1,) if value != value else (0, value)  # only NaN differs from itself


def _nested_key(value: Any) -> tuple[Any, ...]:
    """Return a sort key of a nested value; the order of a map's entries does not matter."""
    if value is None:
        return (2,)
    if isinstance(value, Mapping):
        return (0, sorted((_nested_key(name), _nested_key(item)) for name, item in value.items()))
    if isinstance(value, list | tuple):
        return (0, [_nested_key(item) for item in value])
    return (*_plain_key(value), copysign(1, value)) if isinstance(value, float) else _plain_key(value)

"""State that user code declares with a descriptor: its name, its type, and its kind, such as value, list or map.

A cell is a dict of raw values by state name, one cell for each (key, namespace). An empty state has no entry.
Descriptors bind a cell to the handles that user code uses. Every state is typed and nothing is pickled, because a
snapshot is a table that any engine can read.

A state with a time to live expires if it is not touched for that length of processing time. Time during which no job
runs counts too. A snapshot leaves out expired values (`without_expired`), as Flink's cleanup in full snapshots does.
Source: Flink's `StateTtlConfig`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from tidegate.windowing.declared import fitting, fitting_key, key_to_find
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.time import Millis, positive_millis


class UpdateType(Enum):
    """Operations that renew the time to live."""

    ON_CREATE_AND_WRITE = "on_create_and_write"
    ON_READ_AND_WRITE = "on_read_and_write"


@dataclass(frozen=True, slots=True)
class StateTtlConfig:
    """Time to live of a state, and the operations that renew it.

    Args:
        ttl: processing time, a timedelta or int milliseconds.
        update: operations that renew it: writes only, or reads too.
        return_expired: True lets user code read an expired value until a snapshot leaves it out.

    Raises:
        IllegalArgument: the time is not greater than zero.
    """

    ttl: Millis
    update: UpdateType = UpdateType.ON_CREATE_AND_WRITE
    return_expired: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "ttl", positive_millis(self.ttl, "ttl"))


class StateTtl:
    """A time-to-live rule with its clock. A raw value is `{"value": …, "at": time of the last renewal}`."""

    __slots__ = ("_clock", "_config", "_millis")

    def __init__(self, config: StateTtlConfig, clock: Callable[[], Millis]) -> None:
        self._config, self._clock = config, clock
        self._millis = config.ttl

    @classmethod
    def of(cls, config: StateTtlConfig | None, clock: Callable[[], Millis]) -> StateTtl | None:
        """Return the rule, or None for a state that never expires."""
        return None if config is None else cls(config, clock)

    def write(self, value: Any) -> dict[str, Any]:
        """Return the raw value to store."""
        return {"value": value, "at": self._clock()}

    def read(self, raw: dict[str, Any]) -> Any:
        """Return the value, or None if it has expired and expired values must not be read."""
        if not self._config.return_expired and self.is_expired(raw):
            return None
        if self._config.update is UpdateType.ON_READ_AND_WRITE:
            raw["at"] = self._clock()
        return raw["value"]

    def is_expired(self, raw: dict[str, Any]) -> bool:
        """Return True if the time to live of a raw value has passed."""
        return bool(raw["at"] + self._millis <= self._clock())

    def read_all(self, raws: Iterable[dict[str, Any]]) -> list[Any]:
        """Return the readable values of a list."""
        return [value for raw in raws if (value := self.read(raw)) is not None]


Cell: TypeAlias = dict[str, Any]
Clock: TypeAlias = Callable[[], Millis]


def without_expired(cell: Cell | None, declared: Iterable[StateDescriptor], clock: Clock) -> Cell | None:
    """Return a cell without expired values, or None if nothing is left. The cell is not changed."""
    if not cell:
        return None
    kept = dict(cell)
    for descriptor in declared:
        ttl = StateTtl.of(getattr(descriptor, "ttl", None), clock)
        if ttl is None or descriptor.name not in kept:
            continue
        raw = kept.pop(descriptor.name)
        alive = _alive(raw, descriptor, ttl)
        if alive:
            kept[descriptor.name] = alive
    return kept or None


def _alive(raw: Any, descriptor: StateDescriptor, ttl: StateTtl) -> Any:
    if isinstance(descriptor, ListStateDescriptor):
        return [entry for entry in raw if not ttl.is_expired(entry)]
    if isinstance(descriptor, MapStateDescriptor):
        return {key: entry for key, entry in raw.items() if not ttl.is_expired(entry)}
    return None if ttl.is_expired(raw) else raw


class StateDescriptor(Protocol):
    """Interface of state descriptors, for operators and snapshots."""

    @property
    def name(self) -> str:
        """Name of the state within the function or trigger that declares it."""

    @property
    def arrow_type(self) -> pa.DataType:
        """Type of the snapshot's column for the state."""

    def bind(self, cell: Cell, clock: Clock, owner: object = None) -> Any:
        """Return a handle on this state in a cell; `owner` is the function that uses it, for errors."""

    def merge(self, target: Cell, source: Cell) -> None:
        """Merge the value of this state from cell `source` into cell `target`, when windows merge."""


class Accumulating(Protocol):
    """The members of an `AggregateFunction` that aggregating state needs."""

    accumulator_type: pa.DataType | None

    def create_accumulator(self) -> Any:
        """Return a new accumulator."""

    def add(self, value: Any, accumulator: Any) -> Any:
        """Return the accumulator with one more value."""

    def merge(self, accumulator: Any, other: Any) -> Any:
        """Return the merged accumulator."""

    def get_result(self, accumulator: Any) -> Any:
        """Return the result of an accumulator."""


class _State:
    """Handle on one state of a cell: its name, and the declared type of its values."""

    __slots__ = ("_cell", "_kind", "_name", "_owner", "_ttl")

    def __init__(self, cell: Cell, name: str, kind: pa.DataType, ttl: StateTtl | None, owner: object) -> None:
        self._cell, self._name, self._kind, self._ttl, self._owner = cell, name, kind, ttl, owner

    def clear(self) -> None:
        """Remove everything that the state holds."""
        self._cell.pop(self._name, None)

    def _raw(self) -> Any:
        """Return the single value as stored in the cell, or None if there is none or it has expired."""
        raw = self._cell.get(self._name)
        return raw if self._ttl is None or raw is None else self._ttl.read(raw)

    def _put(self, value: Any) -> None:
        value = self._fitting(value)
        self._cell[self._name] = value if self._ttl is None else self._ttl.write(value)

    def _fitting(self, value: Any) -> Any:
        return fitting(value, self._kind, self._name, self._owner)


class ValueState(_State):
    """Handle on a single value, or None."""

    def value(self) -> Any:
        """Return the value, or None if there is none or it has expired."""
        return self._raw()

    def update(self, value: Any) -> None:
        """Set the value. None clears it.

        Raises:
            IllegalArgument: the value does not fit the declared type.
        """
        if value is None:
            self.clear()
        else:
            self._put(value)


class ListState(_State):
    """Handle on a list of values, in the order in which they were added."""

    def get(self) -> list[Any]:
        """Return the values; an empty list if there are none."""
        raw = self._cell.get(self._name, [])
        return list(raw) if self._ttl is None else self._ttl.read_all(raw)

    def add(self, value: Any) -> None:
        """Append a value.

        Raises:
            IllegalArgument: the value does not fit the declared type.
        """
        value = self._fitting(value)
        self._cell.setdefault(self._name, []).append(value if self._ttl is None else self._ttl.write(value))

    def update(self, values: Iterable[Any]) -> None:
        """Replace all values by `values`."""
        values = list(values)
        self.clear()
        for value in values:
            self.add(value)


class MapState(_State):
    """Handle on a map of values by key."""

    __slots__ = ("_key_kind",)

    def __init__(
        self, cell: Cell, name: str, kinds: tuple[pa.DataType, pa.DataType], ttl: StateTtl | None, owner: object
    ) -> None:
        self._key_kind, kind = kinds
        super().__init__(cell, name, kind, ttl, owner)

    def get(self, key: Any) -> Any:
        """Return the value of `key`, or None if there is none or it has expired."""
        entries = self._cell.get(self._name)
        raw = None if entries is None else entries.get(key_to_find(key, self._key_kind))
        return raw if self._ttl is None or raw is None else self._ttl.read(raw)

    def put(self, key: Any, value: Any) -> None:
        """Set the value of `key`.

        Raises:
            IllegalArgument: the key or the value does not fit its declared type.
        """
        key = fitting_key(key, self._key_kind, self._name, self._owner)
        value = self._fitting(value)
        entries = self._cell.setdefault(self._name, {})
        if self._ttl is None:
            entries[key] = value
            return
        # A snapshot leaves out an expired entry, so putting its key again must move it to the end of the order.
        if key in entries and self._ttl.is_expired(entries[key]):
            del entries[key]
        entries[key] = self._ttl.write(value)

    def remove(self, key: Any) -> None:
        """Remove the value of `key`."""
        entries = self._cell.get(self._name)
        if entries is not None:
            entries.pop(key_to_find(key, self._key_kind), None)
            if not entries:
                self.clear()

    def items(self) -> list[tuple[Any, Any]]:
        """Return all (key, value) pairs, in the order in which the keys were first put."""
        entries = self._cell.get(self._name, {})
        if self._ttl is None:
            return list(entries.items())
        return [(key, value) for key, raw in entries.items() if (value := self._ttl.read(raw)) is not None]

    def keys(self) -> list[Any]:
        """Return all keys."""
        return [key for key, _ in self.items()]

    def values(self) -> list[Any]:
        """Return all values."""
        return [value for _, value in self.items()]

    def __contains__(self, key: Any) -> bool:
        return self.get(key) is not None

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())


class MergingState(_State):
    """Handle on a reducing or aggregating state: a value into which additions are folded."""

    __slots__ = ("_add", "_result")

    def __init__(
        self,
        cell: Cell,
        name: str,
        kind: pa.DataType,
        ttl: StateTtl | None,
        owner: object,
        *,
        add: Callable[[Any, Any], Any],
        result: Callable[[Any], Any],
    ) -> None:
        super().__init__(cell, name, kind, ttl, owner)
        self._add, self._result = add, result

    def get(self) -> Any:
        """Return the folded value, or None if nothing was added."""
        raw = self._raw()
        return None if raw is None else self._result(raw)

    def add(self, value: Any) -> None:
        """Fold a value into the state.

        Raises:
            IllegalArgument: the folded value does not fit the declared type.
        """
        self._put(self._add(self._raw(), value))


def _check(name: str, **types: object) -> None:
    if not isinstance(name, str) or not name.isidentifier():
        raise IllegalArgument("name", name, "give the state a name that is a Python identifier: it names a column")
    for field_name, kind in types.items():
        if not isinstance(kind, pa.DataType):
            raise IllegalArgument(field_name, kind, "give a pyarrow type, such as pyarrow.int64()")


def _stamped(kind: pa.DataType, ttl: StateTtlConfig | None) -> pa.DataType:
    return kind if ttl is None else pa.struct([("value", kind), ("at", pa.int64())])


@dataclass(frozen=True, slots=True)
class ValueStateDescriptor:
    """Descriptor of a value for each key and namespace."""

    name: str
    type: pa.DataType
    ttl: StateTtlConfig | None = None

    def __post_init__(self) -> None:
        _check(self.name, type=self.type)

    @property
    def arrow_type(self) -> pa.DataType:
        return _stamped(self.type, self.ttl)

    def bind(self, cell: Cell, clock: Clock, owner: object = None) -> ValueState:
        return ValueState(cell, self.name, self.type, StateTtl.of(self.ttl, clock), owner)

    def merge(self, target: Cell, source: Cell) -> None:
        raise IllegalArgument("state", self.name, "value state can't merge: use reducing, aggregating or list state")


@dataclass(frozen=True, slots=True)
class ListStateDescriptor:
    """Descriptor of a list for each key and namespace."""

    name: str
    element_type: pa.DataType
    ttl: StateTtlConfig | None = None

    def __post_init__(self) -> None:
        _check(self.name, element_type=self.element_type)

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.list_(_stamped(self.element_type, self.ttl))

    def bind(self, cell: Cell, clock: Clock, owner: object = None) -> ListState:
        return ListState(cell, self.name, self.element_type, StateTtl.of(self.ttl, clock), owner)

    def merge(self, target: Cell, source: Cell) -> None:
        if self.name in source:
            target.setdefault(self.name, []).extend(source.pop(self.name))


@dataclass(frozen=True, slots=True)
class MapStateDescriptor:
    """Descriptor of a map for each key and namespace."""

    name: str
    key_type: pa.DataType
    value_type: pa.DataType
    ttl: StateTtlConfig | None = None

    def __post_init__(self) -> None:
        _check(self.name, key_type=self.key_type, value_type=self.value_type)
        if pa.types.is_nested(self.key_type):
            raise IllegalArgument("key_type", self.key_type, "give a type without fields: Python can't use such keys")

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.map_(self.key_type, _stamped(self.value_type, self.ttl))

    def bind(self, cell: Cell, clock: Clock, owner: object = None) -> MapState:
        return MapState(cell, self.name, (self.key_type, self.value_type), StateTtl.of(self.ttl, clock), owner)

    def merge(self, target: Cell, source: Cell) -> None:
        raise IllegalArgument("state", self.name, "map state can't merge: use reducing, aggregating or list state")


@dataclass(frozen=True, slots=True)
class ReducingStateDescriptor:
    """Descriptor of a value into which additions are reduced."""

    name: str
    reduce: Callable[[Any, Any], Any]
    type: pa.DataType
    ttl: StateTtlConfig | None = None

    def __post_init__(self) -> None:
        _check(self.name, type=self.type)

    @property
    def arrow_type(self) -> pa.DataType:
        return _stamped(self.type, self.ttl)

    def bind(self, cell: Cell, clock: Clock, owner: object = None) -> MergingState:
        ttl = StateTtl.of(self.ttl, clock)
        return MergingState(cell, self.name, self.type, ttl, owner, add=self._fold, result=lambda folded: folded)

    def merge(self, target: Cell, source: Cell) -> None:
        if self.name in source:
            target[self.name] = _merged(self, target.get(self.name), source.pop(self.name), self._fold)

    def _fold(self, folded: Any, value: Any) -> Any:
        return value if folded is None else self.reduce(folded, value)


@dataclass(frozen=True, slots=True)
class AggregatingStateDescriptor:
    """Descriptor of an accumulator for additions. Reads return the aggregate's result."""

    name: str
    aggregate: Accumulating
    ttl: StateTtlConfig | None = None
    type: pa.DataType = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "type", self.aggregate.accumulator_type)
        _check(self.name, accumulator_type=self.type)

    @property
    def arrow_type(self) -> pa.DataType:
        return _stamped(self.type, self.ttl)

    def bind(self, cell: Cell, clock: Clock, owner: object = None) -> MergingState:
        ttl = StateTtl.of(self.ttl, clock)
        return MergingState(cell, self.name, self.type, ttl, owner, add=self._fold, result=self.aggregate.get_result)

    def merge(self, target: Cell, source: Cell) -> None:
        if self.name in source:
            target[self.name] = _merged(self, target.get(self.name), source.pop(self.name), self.aggregate.merge)

    def _fold(self, folded: Any, value: Any) -> Any:
        return self.aggregate.add(value, self.aggregate.create_accumulator() if folded is None else folded)


def _merged(
    state: ReducingStateDescriptor | AggregatingStateDescriptor,
    target: Any,
    source: Any,
    merge: Callable[[Any, Any], Any],
) -> Any:
    """Merge two raw values. With a time to live, it has the later renewal time."""
    if target is None:
        return source
    if state.ttl is None:
        return fitting(merge(target, source), state.type, state.name)
    value = fitting(merge(target["value"], source["value"]), state.type, state.name)
    return {"value": value, "at": max(target["at"], source["at"])}

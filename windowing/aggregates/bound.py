"""Aggregates, first as untyped values and then as functions bound to the columns of their input.

`Sum("air_time")` is a value without types. Binding it to a schema gives an `AggregateFunction` with the Arrow types of
its accumulator and its result. Several bound aggregates become one function whose result is a row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.facts import check_together
from tidegate.windowing.functions.aggregate import AggregateFunction, TimedAggregateFunction, checked
from tidegate.windowing.time import Millis
from tidegate.windowing.type_names import name_of


class Aggregate(ABC):
    """A result column of windows. Subclasses are frozen dataclasses."""

    @abstractmethod
    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        """Return the function for elements that are mappings with these columns (None if the types are unknown).

        Raises:
            IllegalArgument: a column is missing, or has a type that this aggregate does not support.
        """

    @property
    @abstractmethod
    def columns(self) -> Sequence[str]:
        """Input columns that the aggregate reads."""


@dataclass(frozen=True, slots=True)
class OfColumn(Aggregate):
    """An aggregate that reads one column."""

    column: str

    @property
    def columns(self) -> Sequence[str]:
        return (self.column,)


def column_type(schema: pa.Schema | None, column: str, aggregate: str) -> pa.DataType | None:
    """Return the type of an input column, or None if types are unknown.

    Raises:
        IllegalArgument: the input has no such column.
    """
    if schema is None:
        return None
    if column not in schema.names:
        raise IllegalArgument(aggregate, column, f"the input has no such column; it has {schema.names}")
    return schema.field(column).type


def boolean(schema: pa.Schema | None, column: str, aggregate: str) -> str:
    """Return the name of a column after checking that it is boolean.

    Raises:
        IllegalArgument: the column has another type.
    """
    kind = column_type(schema, column, aggregate)
    if kind is not None and not pa.types.is_boolean(kind):
        raise IllegalArgument(aggregate, column, f"it has type {name_of(kind)}; give a boolean column")
    return column


class AggregateColumns(TimedAggregateFunction):
    """Several aggregates as one function: the accumulator is a list, the result a dict by column name."""

    def __init__(self, functions: Mapping[str, AggregateFunction]) -> None:
        self.names = tuple(functions)
        self.functions = tuple(functions.values())
        for function in self.functions:
            check_together(function, AggregateFunction, "stored", "restored")
        parts = {name: checked(function, name) for name, function in functions.items()}
        self._plain = [(i, f.add) for i, f in enumerate(parts.values()) if not f.takes_time]
        self._timed = [(i, f.add_at) for i, f in enumerate(parts.values()) if f.takes_time]
        self._merges = [f.merge for f in parts.values()]
        self._results = [(i, name, function.get_result) for i, (name, function) in enumerate(parts.items())]
        empty = [f.create_accumulator() for f in self.functions]
        # Copying a list of immutable accumulators is cheap, and most windows get only a few elements.
        self._empty = empty if all(isinstance(part, int | float | str | None) for part in empty) else None
        if all(f.accumulator_type is not None for f in self.functions):
            self.accumulator_type = pa.struct(
                [(name, f.accumulator_type) for name, f in zip(self.names, self.functions, strict=True)]
            )
        if all(f.result_type is not None for f in self.functions):
            self.result_type = pa.struct(
                [(name, f.result_type) for name, f in zip(self.names, self.functions, strict=True)]
            )

    @property
    def sees_order(self) -> bool:
        return any(function.sees_order for function in self.functions)

    @property
    def has_array_form(self) -> bool:
        return all(function.has_array_form for function in self.functions)

    @classmethod
    def of(cls, aggregates: Mapping[str, Aggregate], schema: pa.Schema | None = None) -> AggregateColumns:
        """Bind every aggregate to the columns of its input.

        Raises:
            IllegalArgument: an aggregate can't be bound; the error names it.
        """
        functions = {}
        for name, aggregate in aggregates.items():
            try:
                functions[name] = aggregate.bind(schema)
            except IllegalArgument as error:
                raise IllegalArgument(f"aggregate[{name!r}], {error.field}", error.value, error.remedy) from error
        return cls(functions)

    def create_accumulator(self) -> list[Any]:
        if self._empty is not None:
            return self._empty.copy()
        return [function.create_accumulator() for function in self.functions]

    def add_at(self, value: Any, timestamp: Millis | None, accumulator: list[Any]) -> list[Any]:
        for i, add in self._plain:
            accumulator[i] = add(value, accumulator[i])
        for i, add_at in self._timed:
            accumulator[i] = add_at(value, timestamp, accumulator[i])
        return accumulator

    def merge(self, accumulator: list[Any], other: list[Any]) -> list[Any]:
        for i, merge in enumerate(self._merges):
            accumulator[i] = merge(accumulator[i], other[i])
        return accumulator

    def get_result(self, accumulator: list[Any]) -> dict[str, Any]:
        return {name: result(accumulator[i]) for i, name, result in self._results}

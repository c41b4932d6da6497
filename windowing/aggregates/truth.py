"""Any and all of a boolean column, which are its maximum and its minimum. Nulls are ignored."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tidegate.windowing.aggregates.bound import OfColumn, column_type
from tidegate.windowing.aggregates.extremes import Extreme
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.functions.aggregate import AggregateFunction
from tidegate.windowing.type_names import name_of


@dataclass(frozen=True, slots=True)
class AnyTrue(OfColumn):
    """True if `column` is true for any element; null if all values are null. Spark calls it `bool_or`."""

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return Extreme(boolean(schema, self.column, "AnyTrue.column"), pa.bool_(), largest=True)


@dataclass(frozen=True, slots=True)
class AllTrue(OfColumn):
    """True if `column` is true for every element; null if all values are null. Spark calls it `bool_and`."""

    def bind(self, schema: pa.Schema | None) -> AggregateFunction:
        return Extreme(boolean(schema, self.column, "AllTrue.column"), pa.bool_(), largest=False)


def boolean(schema: pa.Schema | None, column: str, aggregate: str) -> str:
    """Return the name of a column after checking that it is boolean.

    Raises:
        IllegalArgument: the column has another type.
    """
    kind = column_type(schema, column, aggregate)
    if kind is not None and not pa.types.is_boolean(kind):
        raise IllegalArgument(aggregate, column, f"it has type {name_of(kind)}; give a boolean column")
    return column

"""Order of values of any type, as Spark sorts them: a sort key for single values, and int64 ranks for arrays.

Values are equal if and only if their ranks are equal. Nulls rank first, NaN ranks last and equals itself, -0.0 ranks
before 0.0.
"""

from __future__ import annotations

from math import copysign
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.aggregates.bound import column_type
from tidegate.windowing.aggregates.vectorised import Bools, Groups, Int64s
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.type_names import name_of

_LOWEST = np.iinfo(np.int64).min


def orderable(schema: pa.Schema | None, column: str, aggregate: str) -> pa.DataType | None:
    """Return the type of a column whose values can be compared, or None if types are unknown.

    Raises:
        IllegalArgument: the values have no order.
    """
    kind = column_type(schema, column, aggregate)
    if kind is not None and pa.types.is_nested(kind):
        raise IllegalArgument(
            aggregate,
            column,
            f"it has type {name_of(kind)}, which has no order: use one of its values, derived in columns=, such as a "
            "field of a struct or an element of an array, or all of them as a string, "
            f'columns={{"{column}_json": "to_json({column})"}}',
        )
    return kind


def order_key(value: Any) -> tuple[int, Any]:
    """Return a key that sorts `value` among values of its type. For floats, -0.0 precedes 0.0."""
    if value is None:
        return (0, 0)
    if value != value:
        return (2, 0)
    return (1, (value, copysign(1, value))) if type(value) is float else (1, value)


def without_sign(value: Any) -> Any:
    """Return a float with -0.0 replaced by 0.0, and any other value unchanged."""
    return value + 0.0 if type(value) is float else value


def without_signs(values: pa.Array) -> pa.Array:
    """Return floats and doubles with -0.0 replaced by 0.0, and other values unchanged."""
    is_plain = not pa.types.is_floating(values.type) or pa.types.is_float16(values.type)
    return values if is_plain else pc.add(values, pa.scalar(0, values.type))


def ranks(values: pa.Array) -> Int64s:
    """Return an int64 for each value, in the order of `order_key`. Nulls get the smallest int64."""
    kind = values.type
    if pa.types.is_floating(kind):
        rank = _float_ranks(values)
    elif pa.types.is_boolean(kind):
        rank = values.cast(pa.int8()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    elif pa.types.is_integer(kind) and kind.bit_width < 64:
        rank = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    elif pa.types.is_date32(kind):
        rank = values.view(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    else:
        rank = _dense_ranks(values)
    if values.null_count:
        rank = np.where(values.is_valid().to_numpy(zero_copy_only=False), rank, _LOWEST)
    return rank


def _float_ranks(values: pa.Array) -> Int64s:
    numbers = values.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
    bits = np.where(np.isnan(numbers), np.nan, numbers).view(np.int64)
    # The bits of negative doubles, read as integers, are in descending order.
    return np.where(bits < 0, bits ^ np.iinfo(np.int64).max, bits)


def _dense_ranks(values: pa.Array) -> Int64s:
    encoded = values.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    if not len(rank):
        return np.zeros(len(values), np.int64)
    return np.asarray(rank[encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)])


def first_rows(chosen: Bools, groups: Groups) -> Int64s:
    """Return the first selected row of each group. Every group must have at least one."""
    rows = np.flatnonzero(chosen)
    ids = groups.ids[rows]
    first = np.ones(len(rows), np.bool_)
    first[1:] = ids[1:] != ids[:-1]
    return rows[first]

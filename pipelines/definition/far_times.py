"""Times before the year 1 and after 9999, at any depth of a value. Spark has such times; Python's datetime doesn't."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Bools = npt.NDArray[np.bool_]

MICROS = (-62_135_596_800_000_000, 253_402_300_800_000_000)
"""Range of a datetime in microseconds since 1970: the start of the year 1, and the end of 9999 (exclusive)."""
DAYS = (-719_162, 2_932_897)
"""Range of a date in days since 1970; the end is exclusive."""


def parts_of(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yield the leaf types that make up a type: fields, elements, keys and values, in order."""
    if pa.types.is_struct(kind):
        for field in kind:
            yield from parts_of(field.type)
    elif pa.types.is_map(kind):
        yield from parts_of(kind.key_type)
        yield from parts_of(kind.item_type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        yield from parts_of(kind.value_type)
    else:
        yield kind


def holds_times(kind: pa.DataType) -> bool:
    """Return True if values of a type are timestamps or dates, or contain them."""
    return any(pa.types.is_timestamp(part) or pa.types.is_date(part) for part in parts_of(kind))


def far_rows(column: pa.ChunkedArray) -> Bools:
    """Return a flag for each row: whether its value is not null and contains a time that Python can't represent."""
    flags = [_far(chunk) for chunk in column.chunks]
    return np.concatenate(flags) if flags else np.zeros(0, np.bool_)


def as_text(rows: pa.Table, only_nested: bool = False) -> pa.Table:
    """Return rows in which columns with a time that Python can't represent hold text instead of times.

    Args:
        rows: rows of any table.
        only_nested: True leaves columns of timestamps and dates unchanged, and converts only nested columns.
    """
    for place, field in enumerate(rows.schema):
        is_asked = pa.types.is_nested(field.type) or not only_nested
        if is_asked and holds_times(field.type) and far_rows(rows[field.name]).any():
            kind = _with_text(field.type)
            rows = rows.set_column(place, field.with_type(kind), rows[field.name].cast(kind))
    return rows


def within(column: pa.ChunkedArray | pa.Array, first: int, end: int) -> Bools:
    """Return a flag for each value: True if it is in `[first, end)` or null."""
    bounds = pc.min_max(column).as_py()
    if bounds["min"] is None or (bounds["min"] >= first and bounds["max"] < end):
        return np.ones(len(column), np.bool_)
    inside = pc.and_(pc.greater_equal(column, first), pc.less(column, end)).fill_null(True)
    return np.asarray(inside.to_numpy(zero_copy_only=False) if isinstance(inside, pa.Array) else inside.to_numpy())


def _far(array: pa.Array) -> Bools:
    kind, far = array.type, np.zeros(len(array), np.bool_)
    if not holds_times(kind):
        return far
    if pa.types.is_timestamp(kind):
        times = array.cast(pa.timestamp("us", tz=kind.tz))
        # A time in another zone is shown as its wall-clock time there.
        shown = times if kind.tz in (None, "UTC") else pc.local_timestamp(times)
        return ~within(shown.cast(pa.int64()), *MICROS)
    if pa.types.is_date(kind):
        return ~within(array.cast(pa.date32()).cast(pa.int32()), *DAYS)
    if pa.types.is_struct(kind):
        for part in array.flatten():
            far |= _far(part)
        return far
    if pa.types.is_map(kind):
        # Arrow returns the parents of entries only for lists, so a map is converted to a list.
        array = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
    parents = pc.list_parent_indices(array).to_numpy()
    far[parents[_far(pc.list_flatten(array))]] = True
    return far


def _with_text(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_text(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_with_text(kind.key_type), _with_text(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_with_text(kind.value_type)))
    return pa.string() if pa.types.is_timestamp(kind) or pa.types.is_date(kind) else kind

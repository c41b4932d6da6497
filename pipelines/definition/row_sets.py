"""Comparison of the rows of tables: order, distinct rows, groups of equal rows, multisets. Nulls are equal.

Arrow's joins don't treat nulls as equal, and its `group_by` and `sort_by` read a name that begins with a dot as a path.
So columns get plain names while they are grouped or sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.event_columns import plain
from tidegate.windowing.aggregates.vectorised import Bools, Int64s

_LARGEST_CODE = 2**62


def distinct(rows: pa.Table) -> pa.Table:
    """Return each distinct row once, in order of first occurrence."""
    named = rows.rename_columns(_plain_names(rows))
    return named.group_by(named.column_names, use_threads=False).aggregate([]).rename_columns(rows.column_names)


def sorted_by(rows: pa.Table, by: Sequence[str], order: Literal["ascending", "descending"] = "ascending") -> pa.Table:
    """Return the rows sorted by columns without nested values."""
    named = rows.select(by)
    named = named.rename_columns(_plain_names(named))
    return rows.take(pc.sort_indices(named, sort_keys=[(name, order) for name in named.column_names]))


def with_largest(rows: pa.Table, column: str) -> pa.Table:
    """Return the rows that are distinct apart from the given column, each with that column's largest value."""
    by = rows.drop_columns([column])
    named = by.rename_columns(_plain_names(by)).append_column("value", rows[column])
    largest = named.group_by(_plain_names(by), use_threads=False).aggregate([("value", "max")])
    return largest.select([*_plain_names(by), "value_max"]).rename_columns([*by.column_names, column])


def one_of_each(by: pa.Table, numbers: pa.Array, function: Literal["min", "max"]) -> pa.ChunkedArray:
    """Return the smallest or largest number in each group of equal rows.

    Args:
        by: the columns that define the groups.
        numbers: a number for each row.
        function: which of a group's numbers to return.
    """
    named = by.rename_columns(_plain_names(by)).append_column("value", numbers)
    return named.group_by(_plain_names(by), use_threads=False).aggregate([("value", function)])[f"value_{function}"]


def _plain_names(rows: pa.Table) -> list[str]:
    return [f"column{place}" for place in range(rows.num_columns)]


def surplus(left: pa.Table, right: pa.Table, names: Sequence[str]) -> tuple[Bools, Bools]:
    """Return a flag for each row of `left`: whether it is surplus, comparing the tables as multisets.

    Args:
        left: rows.
        right: rows with the same columns.
        names: columns to compare.
    """
    if not len(left) or not len(right):
        return np.ones(len(left), np.bool_), np.ones(len(right), np.bool_)
    of_left, of_right = numbered([left, right], names)
    size = int(max(of_left.max(), of_right.max())) + 1
    counts = [np.bincount(part, minlength=size) for part in (of_left, of_right)]
    return _ranks(of_left) >= counts[1][of_left], _ranks(of_right) >= counts[0][of_right]


def numbered(tables: Sequence[pa.Table], names: Sequence[str]) -> list[Int64s]:
    """Return a number for each row of each table: rows with equal values in the named columns have equal numbers.

    The numbers begin at 0 and have no gaps. Without columns all rows are equal.
    """
    codes, size = np.zeros(sum(map(len, tables)), np.int64), 1
    for name in names if len(codes) else ():
        column = comparable(pa.chunked_array([chunk for each in tables for chunk in plain(each[name]).chunks]))
        values = column.dictionary_encode(null_encoding="encode").indices
        number = np.asarray(values.to_numpy(zero_copy_only=False), np.int64)
        width = int(number.max(initial=0)) + 1
        if size * width > _LARGEST_CODE:
            codes, size = _dense(codes)
        codes, size = codes * width + number, size * width
    codes, _ = _dense(codes)
    return np.split(codes, np.cumsum([len(each) for each in tables])[:-1])


def _dense(codes: Int64s) -> tuple[Int64s, int]:
    """Return codes from 0 without gaps, and the number of distinct codes."""
    distinct, dense = np.unique(codes, return_inverse=True)
    return dense, len(distinct)


def _ranks(codes: Int64s) -> Int64s:
    """Return for each row how many earlier rows have the same code."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    ranks = np.empty(len(codes), np.int64)
    ranks[order] = np.arange(len(codes)) - np.searchsorted(ordered, ordered)
    return ranks


def comparable(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as an array that can be dictionary-encoded: numbers by their bits, nested values as text."""
    array = pa.concat_arrays(column.chunks)
    kind = array.type
    if pa.types.is_nested(kind):
        return pa.array(texts_of(pa.table({"value": array})), pa.string())
    if pa.types.is_float64(kind) or pa.types.is_float32(kind):
        return array.view(pa.int64() if pa.types.is_float64(kind) else pa.int32())
    return array


def texts_of(rows: pa.Table) -> list[str]:
    """Return each row as text; only equal rows have equal texts.

    Arrow's own text can't be used: in it, a list of two strings may look like a list of one.
    """
    columns = [column.cast(_in_python(column.type)).to_pylist() for column in rows.columns]
    return [repr(row) for row in zip(*columns, strict=True)]


def _in_python(kind: pa.DataType) -> pa.DataType:
    """Return a type with numbers for times and dates at any depth: Python's don't cover all of Arrow's."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_python(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_python(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(_in_python(kind.key_type), _in_python(kind.item_type))
    return kind

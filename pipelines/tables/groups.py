"""Groups of equal rows of a table whose columns may have any names; nulls are equal.

A join of Arrow takes no null for equal to another, and its group_by takes a name that begins with a dot for a path. So
the columns have other names while they are grouped.
"""

from __future__ import annotations

from typing import Literal

import pyarrow as pa


def distinct(rows: pa.Table) -> pa.Table:
    """Return each different row once, in the order of their first ones."""
    named = rows.rename_columns(_names(rows))
    return named.group_by(named.column_names, use_threads=False).aggregate([]).rename_columns(rows.column_names)


def with_largest(rows: pa.Table, column: str) -> pa.Table:
    """Return each row once that differs in another column than the given one, with that one's largest value."""
    by = rows.drop_columns([column])
    named = by.rename_columns(_names(by)).append_column("value", rows[column])
    largest = named.group_by(_names(by), use_threads=False).aggregate([("value", "max")])
    return largest.select([*_names(by), "value_max"]).rename_columns([*by.column_names, column])


def one_of_each(by: pa.Table, numbers: pa.Array, function: Literal["min", "max"]) -> pa.ChunkedArray:
    """Return the smallest or largest of the numbers of each group of equal rows.

    Args:
        by: the columns whose values make a group.
        numbers: a number for each row.
        function: the number to return.
    """
    named = by.rename_columns(_names(by)).append_column("value", numbers)
    return named.group_by(_names(by), use_threads=False).aggregate([("value", function)])[f"value_{function}"]


def _names(rows: pa.Table) -> list[str]:
    return [f"column{place}" for place in range(rows.num_columns)]

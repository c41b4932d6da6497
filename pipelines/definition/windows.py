"""Table `windows`: one row for each window that has a result, so that `SELECT *` requires no knowledge of panes.

It is derived from table `results`: a window is in it while its newest pane is not retracted and, unless the table
includes early panes, did not fire early. So the table can always be rebuilt.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.columns import TIMESTAMP, column
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.definition.row_sets import one_of_each
from tidegate.pipelines.errors import Refused
from tidegate.windowing.time import to_millis
from tidegate.windowing.timestamps import epoch_millis

NAME = "windows"

EARLY = "tidegate.early"
"""Property of the table: `true` if it includes speculative panes."""

PARTITIONS = {"day": "window_day", "month": "window_month"}
"""Column by which the table is partitioned: the first day of the day or month, in UTC, in which a window starts."""


def check_partitions(pipeline: str, names: Collection[str], wanted: WindowsTable) -> None:
    """Refuse a key or result with the name of the column by which the table is partitioned.

    Raises:
        Refused: there is one; the message names it.
    """
    column = PARTITIONS.get(wanted.partition_by)
    if wanted.enabled and column is not None and column in {name.casefold() for name in names}:
        raise Refused(
            f"pipelines.{pipeline}.windows.partition_by = {wanted.partition_by!r} adds a column {column!r}, but the "
            'pipeline already has one: rename it, or set partition_by = "none"'
        )


_BOUNDS = ("window_start", "window_end")
_TRAILING = ("final_at", "epoch")
Places = np.ndarray[Any, np.dtype[np.int64]]
_NO_DAY = np.iinfo(np.int32).max
_APART = 5_000
"""Smallest number of windows that are written into a file apart from the replaced ones."""
_MOST_PARTS = 8
"""A file is cut into parts of at least one eighth of its rows, so that few files are small."""


def schema(rows: pa.Schema, key: Sequence[str], unit: str) -> pa.Schema:
    """Return the columns of the table: key, bounds, results, `final_at`, `epoch`, and the partition column.

    Args:
        rows: columns of table results.
        key: names of the key columns.
        unit: `day`, `month` or `none`.
    """
    ours = {*key, *results.RESERVED}
    names = [*key, *_BOUNDS, *(name for name in rows.names if name not in ours), *_TRAILING]
    fields = [rows.field(name) for name in names]
    if unit in PARTITIONS:
        fields.append(column(PARTITIONS[unit], pa.date32(), f"the {unit} in which it starts, in UTC"))
    return pa.schema(fields)


def current_panes(rows: pa.Table, key: Sequence[str], early: bool) -> pa.Table:
    """Return the newest pane of each window that belongs in the table, from rows of table results.

    The first pane of a window is its newest if there is no later one, so only windows with later panes are compared.
    """
    rows = rows.filter(pc.invert(rows["stale"]))
    later = pc.or_(pc.equal(rows["op"], "-"), pc.greater(rows["pane"], 0))
    compared = pc.is_in(rows["window_id"], value_set=rows["window_id"].filter(later).combine_chunks())
    alone, newest = rows.filter(pc.invert(compared)), results.newest(rows.filter(compared), key)
    panes = pa.concat_tables([alone, newest])
    return panes if early else panes.filter(pc.not_equal(panes["timing"], "early"))


def are_first_panes(file: dict[str, Any], early: bool) -> bool:
    """Return True if a file's statistics show that each row of results is the first pane of a window in the table."""
    return (
        file.get("max.pane") == 0
        and file.get("max.op") == "+"
        and (early or file.get("min.timing") in ("late", "on_time"))
    )


def partition_of_all(file: dict[str, Any], unit: str) -> dict[str, str | None] | None:
    """Return the partition of all windows of a file if its statistics show that there is only one; otherwise None."""
    if unit not in PARTITIONS:
        return {}
    bounds = [file.get(f"{kind}.window_start") for kind in ("min", "max")]
    if None in bounds or file.get("null_count.window_start") != 0:
        return None
    first, last = _days(pa.array(bounds, TIMESTAMP), unit).to_pylist()
    return {PARTITIONS[unit]: first.isoformat()} if first == last else None


def identities(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the columns that identify windows of the table. No two current windows of a key have the same bounds."""
    return rows.select([*key, *_BOUNDS])


def replacing(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return the identities of windows that may already be in the table, from rows that were added to table results.

    A retraction repeats the bounds of the pane that it retracts, and only the first pane of a window has number 0.
    """
    return identities(rows.filter(pc.or_(pc.equal(rows["op"], "-"), pc.greater(rows["pane"], 0))), key)


def without(rows: pa.Table, replaced: pa.Table, key: Sequence[str]) -> list[pa.Table] | None:
    """Return the rows of a file whose windows are not replaced, in parts; None if no window is replaced.

    Many rows whose starts lie between those of replaced windows become a part of their own. The next late rows are
    mostly for windows near the replaced ones, and then such a part is neither written again nor in the change feed.
    """
    both = pa.concat_tables([identities(rows, key), replaced.cast(identities(rows, key).schema)])
    last = one_of_each(both, pa.array(np.arange(len(both))), "max").to_numpy()
    stays = np.zeros(len(both), np.bool_)
    stays[last] = True
    stays = stays[: len(rows)]
    if stays.all():
        return None
    places = _places(rows["window_start"], ~stays)
    order = np.argsort(places, kind="stable")
    order = order[stays[order]]
    ordered = places[order]
    is_apart = (ordered % 2 == 0) & (np.bincount(ordered)[ordered] >= max(_APART, len(rows) // _MOST_PARTS))
    cuts = np.flatnonzero((np.diff(ordered) != 0) & (is_apart[1:] | is_apart[:-1])) + 1
    return [rows.take(pa.array(part)) for part in np.split(order, cuts) if len(part)]


def _places(starts: pa.ChunkedArray, replaced: np.ndarray[Any, np.dtype[np.bool_]]) -> Places:
    """Number windows by their starts: odd if a replaced window has the same start, even between two such starts.

    Windows without a start come last and have an odd number, so that they stay together.
    """
    times, has_start = epoch_millis(starts).fill_null(0).to_numpy(), starts.is_valid().to_numpy()
    touched = np.unique(times[replaced & has_start])
    before, upto = np.searchsorted(touched, times), np.searchsorted(touched, times, "right")
    return np.where(has_start, before + upto, 2 * len(touched) + 1)


def starts_of(replaced: pa.Table) -> tuple[np.ndarray[Any, np.dtype[np.int64]], bool]:
    """Return the starts of windows (int64 epoch milliseconds) in ascending order, and whether any window has none."""
    starts = replaced["window_start"]
    return np.unique(epoch_millis(starts.drop_null()).to_numpy()), starts.null_count > 0


def may_hold(file: dict[str, Any], starts: np.ndarray[Any, np.dtype[np.int64]], without_start: bool) -> bool:
    """Return True if the statistics of a file allow windows with one of these starts."""
    low, high = file.get("min.window_start"), file.get("max.window_start")
    if low is None or high is None:
        # Times outside Python's range have no statistics.
        return True
    first, last = to_millis(low), to_millis(high) + 1
    return bool(
        np.searchsorted(starts, first) < np.searchsorted(starts, last, "right")
        or (without_start and file.get("null_count.window_start") != 0)
    )


def by_partition(rows: pa.Table, unit: str) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """Yield the rows of each partition with its value, in the order of their starts."""
    rows = rows.take(pc.array_sort_indices(rows["window_start"].combine_chunks()))
    if unit not in PARTITIONS or not len(rows):
        yield {}, rows
        return
    days = _days(rows["window_start"].combine_chunks(), unit)
    # Nulls come last, and starts without their own partition share that of nulls.
    numbers = days.cast(pa.int32()).fill_null(_NO_DAY).to_numpy()
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1), len(rows)]
    texts = days.cast(pa.string())
    for first, last in pairwise(edges):
        yield {PARTITIONS[unit]: texts[int(first)].as_py()}, rows.slice(first, last - first)


def _days(starts: pa.Array, unit: str) -> pa.Array:
    """Return the first day of each start's partition, or null if there is no start or Python can't represent it."""
    first, last = (pa.scalar(moment.replace(tzinfo=UTC), TIMESTAMP) for moment in (datetime.min, datetime.max))
    is_day = pc.and_(pc.greater_equal(starts, first), pc.less_equal(starts, last))
    local = pc.if_else(is_day, starts, None).cast(pa.timestamp("us"))
    return (pc.floor_temporal(local, unit="month") if unit == "month" else local).cast(pa.date32(), safe=False)

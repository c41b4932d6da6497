"""Changes of the views between two offsets, as rows of files: what a stream reads in a batch.

A batch between two offsets has the same rows whenever it is read, because a query that fails in a batch reads it again.
Within a timeline, epochs only add rows, so the current files suffice for both offsets. A restore, or an interval that
is rerun, removes rows and starts a new timeline. Then each offset is read from the version of the table that it names.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.row_sets import one_of_each
from tidegate.pipelines.observe.reading.places import Files, bits_by_file, without
from tidegate.pipelines.observe.reading.reached import Reached, as_time
from tidegate.pipelines.observe.reading.views import (
    STALE_AND_EPOCH,
    FileRows,
    View,
    all_rows,
    final,
    identity,
    latest,
    windows_with_several_panes,
)
from tidegate.windowing.time import MAX_TIMESTAMP


def changes_in_timeline(files: Files, key: Sequence[str], start: Reached, end: Reached, only_final: bool) -> View:
    """Return what changed in view `final` or `latest` between two offsets of the timeline of the files.

    Column `op` is `+` for an added row and `-` for a removed one.
    """
    if not start.epoch:
        return final(files, key, end) if only_final else latest(files, key, end)
    if not results.has_panes(files.schema):
        # Rows that are not panes are only added.
        return appended(files, start, end)
    columns = _columns(key)
    changed = files.places(
        columns, lambda rows: _may_change(rows, start, end, only_final), _numbers_of_changes(files, start, end)
    )
    windows = windows_with_several_panes(files, end, changed["window_id"].unique())
    if len(windows):
        others = files.places(
            columns,
            lambda rows: pc.and_(
                pc.is_in(rows["window_id"], value_set=windows), pc.less_equal(rows["epoch"], end.epoch)
            ),
        )
        single = changed.filter(pc.invert(pc.is_in(changed["window_id"], value_set=windows)))
        changed = pa.concat_tables([single, others])
    before, after = (_shown(changed, key, at, only_final) for at in (start, end))
    return _masked((files, without(before, after), "-"), (files, without(after, before), "+"))


def changes_of_versions(
    before: Files, after: Files, key: Sequence[str], start: Reached, end: Reached, only_final: bool
) -> View:
    """Return what `changes_in_timeline` returns, for offsets of any timelines, from the files at each of them.

    The earlier offset may be before the first epoch.
    """
    panes = results.has_panes(before.schema)
    columns = _columns(key) if panes else [*STALE_AND_EPOCH, "timeline"]
    was, now = (
        _shown(files.places(columns, lambda rows, at=at: pa.array(at.shows(rows))), key, at, only_final)  # type: ignore[misc]
        for files, at in ((before, start), (after, end))
    )
    if panes:
        by = [*key, "window_id", "pane", "epoch", "timeline"]
        left, came = _panes_not_in(was, now, by), _panes_not_in(now, was, by)
    else:
        # An epoch publishes all its rows or none. So if an epoch is in both offsets, all of its rows are.
        left, came = _of_epochs_not_in(was, now), _of_epochs_not_in(now, was)
    return _masked((before, left, "-"), (after, came, "+"))


def appended(files: Files, start: Reached, end: Reached) -> View:
    """Return the rows of the epochs after one offset and up to another, in one timeline."""
    number = pc.field("epoch")
    where = (number > start.epoch) & (number <= end.epoch)
    return all_rows(files.some(files.of_epochs(start.epoch, end.epoch)), where)


def _columns(key: Sequence[str]) -> list[str]:
    return [*identity(key), *STALE_AND_EPOCH, "timeline", "final_at"]


def _shown(rows: pa.Table, key: Sequence[str], at: Reached, only_final: bool) -> pa.Table:
    shown = results.newest(rows.filter(pa.array(at.shows(rows))), tuple(key))
    return shown.filter(pa.array(at.finals(shown))) if only_final and "final_at" in shown.column_names else shown


def _may_change(rows: pa.Table, start: Reached, end: Reached, only_final: bool) -> pa.Array:
    """Return a flag for each row: whether it may be in the view at only one of two offsets."""
    numbers = np.asarray(rows["epoch"].to_numpy())
    may = numbers > start.epoch
    if only_final:
        may |= start.finals(rows) != end.finals(rows)
    return pa.array((numbers <= end.epoch) & may)


def _numbers_of_changes(files: Files, start: Reached, end: Reached) -> list[int]:
    """Return the indices of files that may have a row for which `_may_change` is True, by statistics."""
    numbers = files.of_epochs(start.epoch, end.epoch)
    low, high = sorted((start.watermark, end.watermark))
    if low == high:
        return numbers
    from_time, to_time = (as_time(value).as_py() if value != MAX_TIMESTAMP else None for value in (low, high))
    becomes_final = [
        number
        for number, file in enumerate(files.active)
        if file.get("max.final_at") is None
        or to_time is None
        or ((from_time is None or file["max.final_at"] > from_time) and file["min.final_at"] <= to_time)
    ]
    return sorted({*numbers, *becomes_final})


def _panes_not_in(rows: pa.Table, others: pa.Table, by: Sequence[str]) -> pa.Table:
    """Return the panes that are not in `others`, by the columns that identify a pane."""
    both = pa.concat_tables([rows.select(by), others.select(by)])
    places = np.concatenate([np.arange(len(rows)), np.full(len(others), -1)])
    numbers = one_of_each(both, pa.array(places, pa.int64()), "min")
    return rows.take(numbers.filter(pc.greater_equal(numbers, 0)))


def _of_epochs_not_in(rows: pa.Table, others: pa.Table) -> pa.Table:
    """Return the rows of epochs that have no row in `others`."""
    these, those = (
        (np.asarray(table["timeline"].to_numpy()) << 40) | np.asarray(table["epoch"].to_numpy())
        for table in (rows, others)
    )
    return rows.filter(pa.array(~np.isin(these, those)))


def _masked(*parts: tuple[Files, pa.Table, str]) -> View:
    """Return the rows at some places in files, each with its `op`."""
    changed = []
    for files, rows, op in parts:
        masks = bits_by_file(rows, files)
        changed += [FileRows(files.active[n]["path"], files.active[n]["size_bytes"], masks[n], op) for n in masks]
    return View(tuple(changed))

"""Reopening of the late rows that can be reopened, and the reasons why the others can't.

All selected rows are reopened in one epoch if possible. If it is refused, the error often knows which windows it is
about. So the selection is first divided at the bounds of these windows, and only then by halves, until each part either
has an epoch or belongs to a single window.

    01:00 | 02:00 03:00 | 14:00 15:00    the file with the rows of 01:00 and that of 14:00 are missing
    02:00 03:00, and 15:00               are reopened, each part in one epoch
    01:00, and 14:00                     remain in table late, with the reason
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.correct.corrections import reopen
from tidegate.pipelines.correct.recompute_plan import Selection, check_reopenable
from tidegate.pipelines.correct.spans import have_window
from tidegate.pipelines.definition import late
from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.epoch.driver import Driver
from tidegate.pipelines.errors import NotReopenable, NoWindow
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.head import required
from tidegate.pipelines.ledger.tables.keys import are_of_key, key_of_texts
from tidegate.pipelines.ledger.tables.late_rows import within
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.windowing.time import Millis, to_millis
from tidegate.windowing.timestamps import epoch_millis


@dataclass(frozen=True, slots=True)
class LeftLate:
    """Late rows that can't be reopened.

    Args:
        kind: name of the reason, as `NotReopenable.kind`.
        rows: number of late rows; 0 if only windows that missed an earlier row are affected.
        start: start of their window, int64 epoch milliseconds; None if they belong to no single window.
        reason: the error, with the remedy.
    """

    kind: str
    rows: int
    start: Millis | None
    reason: str


@dataclass(slots=True)
class ReopenedRows:
    """What a reopening did.

    Args:
        manifests: the manifests of its epochs, in order.
        rows: number of late rows that were added to their windows.
        left: the late rows that can't be reopened.
    """

    manifests: list[Manifest] = field(default_factory=list)
    rows: int = 0
    left: list[LeftLate] = field(default_factory=list)


def reopen_possible(driver: Driver, selection: Selection) -> ReopenedRows:
    """Reopen the selected late rows that can be reopened, and return what was done and what was left.

    Raises:
        Refused: no late row of the pipeline can be reopened, whatever the selection; see `reopen`.
    """
    done, parts = ReopenedRows(), [selection]
    while parts:
        part = parts.pop()
        try:
            manifest, rows = reopen(driver, part)
        except NotReopenable as error:
            starts = epoch_millis(_waiting(driver, part)["window_start"])
            if not (smaller := _divided(driver.pipeline, part, starts.drop_null(), error)):
                first = starts[0].as_py() if len(starts) else None
                done.left.append(LeftLate(error.kind, len(starts), first, str(error)))
                continue
            parts += smaller
            if part.start is None and part.end is None and starts.null_count:
                # A selection by time leaves out the rows that belong to no window.
                done.left.append(LeftLate(error.kind, starts.null_count, None, str(error)))
            continue
        if manifest is not None:
            done.manifests.append(manifest)
            done.rows += rows
    # Windows that miss a row are no window of a late row, so all those with the same reason are one entry.
    done.left = list(dict.fromkeys([*done.left, *_without_window(driver, selection)]))
    done.left.sort(key=lambda each: (each.start is not None, each.start or 0))
    return done


def check_windows_exist(driver: Driver, selection: Selection) -> None:
    """Check that every selected late row belongs to a window.

    Raises:
        NoWindow: a row belongs to none.
    """
    for each in _without_window(driver, selection):
        raise NoWindow(each.reason)


def _without_window(driver: Driver, selection: Selection) -> list[LeftLate]:
    """Return the late rows that belong to no window of the pipeline, by the window that they were late for."""
    windows = check_reopenable(driver.pipeline)
    rows = _waiting(driver, selection)
    rows = rows.filter(pa.array(~have_window(windows, late.event_times(rows))))
    name = driver.pipeline.name
    return [
        LeftLate(
            NoWindow.kind,
            count,
            None if start is None else to_millis(start),
            f"late rows of pipeline {name!r} belong to no window, because its windows have gaps since compute.assigner "
            "changed. Undo the change, or backfill the pipeline under another name",
        )
        for start, count in Counter(rows["window_start"].to_pylist()).items()
    ]


def _divided(pipeline: Pipeline, part: Selection, starts: pa.ChunkedArray, error: NotReopenable) -> list[Selection]:
    """Return the parts of a selection to reopen separately, or none if it can't be divided further.

    Args:
        pipeline: the pipeline.
        part: the selection, which was refused.
        starts: starts of the windows of its late rows.
        error: the reason.
    """
    known = {bound for span in error.concerns for bound in span if _is_inside(part, bound)}
    if known:
        return _cut(part, sorted(known))
    distinct: Sequence[Millis] = pc.unique(starts).sort().to_pylist()
    if len(distinct) > 1:
        return _cut(part, [distinct[len(distinct) // 2]])
    windows = check_reopenable(pipeline)
    grid = windows.assigner.window_grid
    if distinct and (windows.assigner.forms_sessions or (grid is not None and grid.windows_of_an_element > 1)):
        # Other windows, without a late row, may be what can't be corrected.
        (only,) = distinct
        return _cut(part, [bound for bound in (only, only + 1) if _is_inside(part, bound)])
    return []


def _is_inside(part: Selection, bound: Millis) -> bool:
    """Return True if windows of a selection begin before a time, and others at it or later."""
    return (FIRST_TIME if part.start is None else part.start) < bound < (LAST_TIME if part.end is None else part.end)


def _cut(part: Selection, bounds: Sequence[Millis]) -> list[Selection]:
    edges = [part.start, *bounds, part.end] if bounds else []
    return [replace(part, start=start, end=end) for start, end in pairwise(edges)]


def _waiting(driver: Driver, selection: Selection) -> pa.Table:
    """Return the selected late rows that are in no window, in ascending order of their windows."""
    tables = driver.tables
    rows = read_table(tables.warehouse, tables.newest(late.NAME), where=pc.field(late.REOPENED).is_null())
    rows = rows.filter(late.is_open(rows))
    if selection.key is not None:
        key = required(tables, driver.recover()).key
        rows = rows.filter(are_of_key(rows, key.names, key_of_texts(key, selection.key)))
    return rows.filter(within(epoch_millis(rows["window_start"]), selection.start, selection.end)).sort_by(
        "window_start"
    )

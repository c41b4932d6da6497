"""Reopening of the late rows that can be reopened, and the reasons why the others can't.

All selected rows are reopened in one epoch if possible. If it is refused because of some rows, the selection is divided
by time, again and again, until each part either has an epoch or belongs to a single window.

    01:00 02:00 | 14:00 15:00    the file of 01:00 is missing: the halves are tried one after the other
    01:00 | 02:00                the half from 14:00 on is reopened in one epoch, and so is 02:00
    01:00                        remains in table late, with the reason
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import late
from tidegate.pipelines.epoch.recompute_plan import Selection
from tidegate.pipelines.errors import NotReopenable
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.head import required
from tidegate.pipelines.ledger.tables.keys import are_of_key, key_of_texts
from tidegate.pipelines.run.corrections import reopen
from tidegate.pipelines.run.driver import Driver
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.windowing.time import Millis
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
            starts = _starts(driver, part)
            of_window = starts.drop_null()
            if (middle := _middle(of_window)) is None:
                first = of_window[0].as_py() if len(of_window) else None
                done.left.append(LeftLate(error.kind, len(starts), first, str(error)))
                continue
            parts += [replace(part, end=middle), replace(part, start=middle)]
            if starts.null_count:
                # A selection by time leaves out the rows that belong to no window.
                done.left.append(LeftLate(error.kind, starts.null_count, None, str(error)))
            continue
        if manifest is not None:
            done.manifests.append(manifest)
            done.rows += rows
    done.left.sort(key=lambda each: (each.start is not None, each.start or 0))
    return done


def _starts(driver: Driver, selection: Selection) -> pa.Array:
    """Return the start of the window of each selected late row that is in no window, in ascending order."""
    tables = driver.tables
    rows = read_table(tables.warehouse, tables.newest(late.NAME), where=pc.field(late.REOPENED).is_null())
    rows = rows.filter(late.is_open(rows))
    if selection.key is not None:
        key = required(tables, driver.recover()).key
        rows = rows.filter(are_of_key(rows, key.names, key_of_texts(key, selection.key)))
    starts = epoch_millis(rows["window_start"]).combine_chunks()
    inside = pa.array([True] * len(starts), pa.bool_())
    if selection.start is not None:
        inside = pc.and_(inside, pc.fill_null(pc.greater_equal(starts, selection.start), False))
    if selection.end is not None:
        inside = pc.and_(inside, pc.fill_null(pc.less(starts, selection.end), False))
    starts = starts.filter(inside)
    return starts.take(pc.sort_indices(starts))


def _middle(starts: pa.Array) -> Millis | None:
    """Return the start that divides ascending starts in two parts, or None if all are the same."""
    distinct: Sequence[Millis] = starts.unique().to_pylist()
    return distinct[len(distinct) // 2] if len(distinct) > 1 else None

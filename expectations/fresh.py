"""The new windows of a check, which became final since the last check that passed, and their event time.

A check covers all windows that became final since the last check that passed, however many epochs ago that was. After a
failed check, the next one covers the same windows again.
"""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import results
from tidegate.pipelines.ledger.snapshots.published import PinnedEpoch
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.windowing.timestamps import epoch_millis


def since_of(tables: PipelineTables, pinned: PinnedEpoch) -> int | None:
    """Return the newest epoch before the pinned one whose check passed; None if there is none.

    Epochs that a restore or a re-run replaced are ignored.
    """
    numbers = pinned.epochs["epoch"]
    return quality.newest_passed(tables, numbers.filter(pc.less(numbers, pinned.snapshot.manifest.epoch)).to_pylist())


def fresh_windows(windows: pa.Table, epochs: pa.Table, since: int | None, by_clock: bool = False) -> pa.Table:
    """Select the windows that became final after an epoch, or that got a new pane after it.

    Args:
        windows: the windows that are final now.
        epochs: rows of table `epochs`.
        since: the epoch; None for all windows.
        by_clock: True if the clock ends the windows, False if the watermark does.
    """
    if since is None:
        return windows
    through = _final_through(epochs, since, by_clock)
    is_new = pc.greater(windows["epoch"], since)
    if results.has_panes(windows.schema) and through.is_valid:
        is_new = pc.or_kleene(is_new, pc.greater(windows["final_at"], through))
    return windows.filter(is_new)


def _final_through(epochs: pa.Table, epoch: int, by_clock: bool) -> pa.Scalar:
    (row,) = epochs.filter(pc.equal(epochs["epoch"], epoch)).slice(0, 1).to_pylist()
    moment = row["processing_time"] - timedelta(milliseconds=1) if by_clock else row["watermark"]
    return pa.scalar(moment, epochs["watermark"].type)


def interval_since(epochs: pa.Table, since: int | None) -> dict[str, int] | None:
    """Return the event time that has run since an epoch, `start` and `end` in epoch milliseconds; None for a stream."""
    newer = epochs if since is None else epochs.filter(pc.greater(epochs["epoch"], since))
    starts, ends = (epoch_millis(newer[name]) for name in ("interval_start", "interval_end"))
    run = {"start": pc.min(starts).as_py(), "end": pc.max(ends).as_py()}
    return None if None in run.values() else run

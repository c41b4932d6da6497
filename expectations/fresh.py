"""What is new to a check: windows that became final since the newest check that passed, and their event time.

Every final window is looked at by a check that passes, however many epochs lie between two of them; what a check
found wrong is looked at again until it holds.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.snapshots.pinned import PinnedEpoch
from tidegate.pipelines.tables import quality, results
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.timestamps import epoch_millis


def since_of(own: PipelineTables, pinned: PinnedEpoch) -> int | None:
    """The newest epoch before the pinned one whose check passed; None if there is none.

    Epochs that a restore or a re-run replaced are not among these, whatever their checks said.
    """
    numbers = pinned.epochs["epoch"]
    return quality.newest_passed(own, numbers.filter(pc.less(numbers, pinned.snapshot.manifest.epoch)).to_pylist())


def fresh_windows(windows: pa.Table, epochs: pa.Table, since: int | None) -> pa.Table:
    """Of final windows those that were not final at an epoch, or that something was put out for since.

    Args:
        windows: that are final now.
        epochs: rows of table epochs.
        since: the epoch; None takes them all.
    """
    if since is None:
        return windows
    watermark = epochs.filter(pc.equal(epochs["epoch"], since))["watermark"][0]
    is_new = pc.greater(windows["epoch"], since)
    if results.has_panes(windows.schema) and watermark.is_valid:
        is_new = pc.or_kleene(is_new, pc.greater(windows["final_at"], watermark))
    return windows.filter(is_new)


def interval_since(epochs: pa.Table, since: int | None) -> dict[str, int] | None:
    """Event time that was run since an epoch, `start` and `end` in epoch milliseconds; None of a stream."""
    made = epochs if since is None else epochs.filter(pc.greater(epochs["epoch"], since))
    starts, ends = (epoch_millis(made[name]) for name in ("interval_start", "interval_end"))
    run = {"start": pc.min(starts).as_py(), "end": pc.max(ends).as_py()}
    return None if None in run.values() else run

"""Closed windows: they stay closed when newer code with more allowed lateness continues from a snapshot.

A window that was cleaned up has no state. An element for it would start the window again with only that element, and
the new pane would replace the published one. Therefore such an element is late, and `tidegate late reopen` recomputes
its whole window.
"""

from __future__ import annotations

from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.ledger.manifest import Manifest, RaisedLateness
from tidegate.pipelines.ledger.snapshots.head import Snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import active_files
from tidegate.windowing.compute import Windows
from tidegate.windowing.time import FIRST_TIME, LAST_TIME, MIN_TIMESTAMP, Millis, saturating_add, to_millis


def closed_by(bound: BoundPipeline, manifest: Manifest) -> Millis:
    """Return the time up to which windows of a snapshot are closed: their last millisecond, epoch milliseconds."""
    windows = bound.compute
    if not isinstance(windows, Windows) or not windows.assigner.is_event_time or manifest.watermark == MIN_TIMESTAMP:
        return MIN_TIMESTAMP
    return manifest.watermark if manifest.closed_through is None else manifest.closed_through


def closed_through_of(bound: BoundPipeline, closed: Millis, watermark: Millis, passed: bool = True) -> Millis | None:
    """Return `closed_through` for the manifest of an epoch, or None without windows of event time.

    `closed` is the time up to which windows of the parent are closed. An epoch that reopens late rows closes no
    windows: its `passed` is False.
    """
    windows = bound.compute
    if not isinstance(windows, Windows) or not windows.assigner.is_event_time:
        return None
    return max(closed, watermark - windows.lateness, MIN_TIMESTAMP) if passed else closed


def raised_lateness_of(
    bound: BoundPipeline, tables: PipelineTables, parent: Snapshot | None, watermark: Millis
) -> RaisedLateness | None:
    """Return `raised_lateness` for the manifest of an epoch that ends at a watermark.

    Windows that were published and have not closed wait for the code's lateness, which may be longer than the one that
    their `final_at` was computed with.
    """
    windows = bound.compute
    if parent is None or not isinstance(windows, Windows) or not windows.assigner.is_event_time:
        return None
    manifest = parent.manifest
    raised = manifest.raised_lateness
    by = 0 if manifest.shape is None else max(0, windows.lateness - manifest.shape.lateness)
    if by:
        raised = RaisedLateness(
            since=max(FIRST_TIME, manifest.final_through),
            by=by + (0 if raised is None else raised.by),
            until=saturating_add(_last_end(tables) - 1, windows.lateness),
        )
    return None if raised is None or watermark >= raised.until else raised


def _last_end(tables: PipelineTables) -> Millis:
    """Return the latest end of all published windows, from the statistics of the files of table results."""
    ends = [file.get("max.window_end") for file in active_files(tables.newest(results.NAME))]
    return max((LAST_TIME if end is None else to_millis(end) for end in ends), default=FIRST_TIME)

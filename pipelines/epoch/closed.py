"""Closed windows: they stay closed when newer code with more allowed lateness continues from a snapshot.

A window that was cleaned up has no state. An element for it would start the window again with only that element, and
the new pane would replace the published one. Therefore such an element is late, and `tidegate late reopen` recomputes
its whole window.
"""

from __future__ import annotations

import pyarrow.compute as pc

from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest, RaisedLateness
from tidegate.pipelines.ledger.snapshots.head import Snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema
from tidegate.windowing.compute import Windows
from tidegate.windowing.time import FIRST_TIME, LAST_TIME, MIN_TIMESTAMP, Millis, saturating_add, to_millis
from tidegate.windowing.timestamps import epoch_millis


def closed_by(tables: PipelineTables, bound: BoundPipeline, manifest: Manifest) -> Millis:
    """Return the time up to which windows of a snapshot are closed: their last millisecond, epoch milliseconds."""
    windows = bound.compute
    if not isinstance(windows, Windows) or not windows.assigner.is_event_time or manifest.watermark == MIN_TIMESTAMP:
        return MIN_TIMESTAMP
    if manifest.closed_through is not None:
        return manifest.closed_through
    lateness = windows.lateness if manifest.fingerprint == bound.fingerprint else _published_lateness(tables, manifest)
    return MIN_TIMESTAMP if lateness is None else max(MIN_TIMESTAMP, manifest.watermark - lateness)


def closed_through_of(
    bound: BoundPipeline, parent: Snapshot | None, closed: Millis, watermark: Millis, passed: bool = True
) -> Millis | None:
    """Return `closed_through` for the manifest of an epoch, or None if the watermark determines it.

    `closed` is the time up to which windows of the parent are closed. An epoch that reopens late rows closes no
    windows: its `passed` is False.
    """
    windows = bound.compute
    if not isinstance(windows, Windows) or not windows.assigner.is_event_time:
        return None
    if not windows.lateness and (parent is None or parent.manifest.closed_through is None):
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


def _published_lateness(tables: PipelineTables, manifest: Manifest) -> Millis | None:
    """Return the lateness of the newest windows published up to a snapshot, or None if there are no windows.

    A manifest without `closed_through` comes from code without allowed lateness, or from an older tidegate. If a file
    can't be read, the lateness is assumed to be 0: a late row can be reopened, but a replaced window would be lost.
    """
    handle = tables.newest(results.NAME)
    schema = arrow_schema(handle)
    if not results.has_panes(schema):
        return None
    files = [file for file in active_files(handle) if (file.get("min.epoch") or 0) <= manifest.epoch]
    wanted = pc.field("epoch") <= manifest.epoch
    for file in sorted(files, key=lambda file: -(file.get("max.epoch") or 0)):
        try:
            rows = tables.warehouse.read_files(
                tables.path(results.NAME), [file["path"]], schema, ["epoch", "window_end", "final_at"], wanted
            )
        except Refused:
            return 0
        rows = rows.filter(pc.equal(rows["epoch"], pc.max(rows["epoch"])))
        ends, finals = (epoch_millis(rows[name]) for name in ("window_end", "final_at"))
        longest = pc.max(pc.add(pc.subtract(finals, ends), 1)).as_py()
        if longest is not None:
            return max(0, int(longest))
    return None

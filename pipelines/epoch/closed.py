"""Windows that were closed: they stay so when the code that goes on from a snapshot allows more lateness.

A window that was cleaned has left nothing in the state. An element for it would begin it again with that element
alone, and its pane would replace the published one. Such an element is late, and `tidegate late reopen` computes its
window whole.
"""

from __future__ import annotations

import pyarrow.compute as pc

from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import Manifest
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.storage import active_files, arrow_schema
from tidegate.pipelines.tables import results
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.compute import Windows
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.timestamps import epoch_millis


def closed_by(tables: PipelineTables, bound: BoundPipeline, manifest: Manifest) -> Millis:
    """The last millisecond of the windows that a snapshot has closed, int64 epoch milliseconds.

    Args:
        tables: the pipeline's.
        bound: the code that goes on from the snapshot.
        manifest: of the snapshot.
    """
    windows = bound.compute
    if not isinstance(windows, Windows) or not windows.assigner.is_event_time or manifest.watermark == MIN_TIMESTAMP:
        return MIN_TIMESTAMP
    if manifest.closed_through is not None:
        return manifest.closed_through
    lateness = windows.lateness if manifest.fingerprint == bound.fingerprint else _published_lateness(tables, manifest)
    return MIN_TIMESTAMP if lateness is None else max(MIN_TIMESTAMP, manifest.watermark - lateness)


def told(
    bound: BoundPipeline, parent: Snapshot | None, closed: Millis, watermark: Millis, passed: bool = True
) -> Millis | None:
    """What the manifest of an epoch says of closed windows; None where the watermark says it all.

    Args:
        bound: the pipeline.
        parent: the snapshot that the epoch goes on from.
        closed: what that has closed.
        watermark: after the epoch.
        passed: whether the epoch closes what its watermark has passed; one that reopens late rows closes nothing.
    """
    windows = bound.compute
    if not isinstance(windows, Windows) or not windows.assigner.is_event_time:
        return None
    if not windows.lateness and (parent is None or parent.manifest.closed_through is None):
        return None
    return max(closed, watermark - windows.lateness, MIN_TIMESTAMP) if passed else closed


def _published_lateness(tables: PipelineTables, manifest: Manifest) -> Millis | None:
    """The lateness of the newest windows that were published up to a snapshot; None where there is none to replace.

    A manifest without `closed_through` is of code without any, or of an older tidegate. A file that can't be read says
    nothing: then no lateness counts, for late rows can be reopened and a window that was replaced is lost.
    """
    handle = tables.open(results.NAME)
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

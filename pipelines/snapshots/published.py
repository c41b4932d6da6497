"""The newest snapshot whose epoch every table has: what results, sensors, checks and reports go by.

An epoch is committed to table `state` before its results are published, by some milliseconds, or after a crash by as
long as nobody runs the pipeline. Until then its watermark says nothing about the results that are there. Table `epochs`
is published last, so an epoch that it has is in every table.
"""

from __future__ import annotations

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.snapshots.head import Snapshot, read_snapshot
from tidegate.pipelines.tables import epochs
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import Millis


def published_epoch(tables: PipelineTables) -> int:
    """The newest epoch that every table has; 0 before the first."""
    if not tables.warehouse.exists(tables.path(epochs.NAME)):
        return 0
    return tables.open(epochs.NAME).transaction_version(tables.application) or 0


def newest_published(tables: PipelineTables, head: Snapshot | None = None) -> Snapshot | None:
    """The snapshot of the newest epoch that every table has; None before the first.

    Args:
        tables: of the pipeline.
        head: the newest snapshot, where it was read already.

    Raises:
        Refused: a table can't be read.
    """
    snapshot = read_snapshot(tables) if head is None else head
    if snapshot is None:
        return None
    published = published_epoch(tables)
    while snapshot is not None and snapshot.manifest.epoch > published:
        if published == 0 or snapshot.version == 0:
            return None
        # A version may be one that only gave the table a column: then its snapshot is that of the one before.
        snapshot = read_snapshot(tables, snapshot.version - 1)
    return snapshot


def settled_watermark(snapshot: Snapshot, head: Snapshot) -> Millis:
    """The watermark up to which the results of the newest published snapshot are there, int64 epoch milliseconds.

    A restore, or an interval that is run again, takes away what lies beyond its own watermark while it is published.
    """
    return min(snapshot.manifest.watermark, head.manifest.watermark)


def require_published(tables: PipelineTables, head: Snapshot) -> Snapshot:
    """As `newest_published`, for what can do nothing without one.

    Raises:
        Refused: there is none yet.
    """
    snapshot = newest_published(tables, head)
    if snapshot is None:
        raise Refused(
            f"epoch {head.manifest.epoch} of {tables.pipeline} is not published yet, and none is before it: the next "
            "run of the pipeline publishes it"
        )
    return snapshot

"""The newest snapshot whose epoch every table has. Results, sensors, checks and reports use this one.

A driver commits an epoch to table `state` before it publishes the results: some milliseconds before, or after a crash
until the next run of the pipeline. In between, the watermark of the epoch says nothing about the published results.
Table `epochs` is published last, so an epoch in it is in every table.
"""

from __future__ import annotations

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.snapshots.head import Snapshot, read_snapshot
from tidegate.pipelines.tables import epochs
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import Millis


def published_epoch(tables: PipelineTables) -> int:
    """Return the newest epoch that every table has; 0 before the first."""
    if not tables.warehouse.exists(tables.path(epochs.NAME)):
        return 0
    return tables.look(epochs.NAME).transaction_version(tables.application) or 0


def newest_published(tables: PipelineTables, head: Snapshot | None = None) -> Snapshot | None:
    """Return the snapshot of the newest epoch that every table has; None before the first.

    Args:
        tables: the pipeline's tables.
        head: the newest snapshot, if the caller has read it already.

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
        # A version that only added a column to the table holds the same snapshot as the version before it.
        snapshot = read_snapshot(tables, snapshot.version - 1)
    return snapshot


def settled_watermark(snapshot: Snapshot, head: Snapshot) -> Millis:
    """Return the watermark up to which the published results are complete, int64 epoch milliseconds.

    While a restore or a repeated interval is published, it removes results beyond its own watermark. So the lower
    watermark counts.

    Args:
        snapshot: the newest published snapshot.
        head: the newest snapshot, which may not be published yet.
    """
    return min(snapshot.manifest.watermark, head.manifest.watermark)


def final_through(snapshot: Snapshot, head: Snapshot) -> Millis:
    """Return the time through which published windows are final, by `final_at`: see `Manifest.final_through`.

    Args:
        snapshot: the newest published snapshot.
        head: the newest snapshot, which may not be published yet.
    """
    return min(snapshot.manifest.final_through, head.manifest.final_through)


def require_published(tables: PipelineTables, head: Snapshot) -> Snapshot:
    """Return the same as `newest_published`, for callers that need a snapshot.

    Raises:
        Refused: there is none yet.
    """
    snapshot = newest_published(tables, head)
    if snapshot is None:
        raise Refused(
            f"epoch {head.manifest.epoch} of {tables.pipeline} is not published yet, and it is the first one: the next "
            "run of the pipeline publishes it"
        )
    return snapshot

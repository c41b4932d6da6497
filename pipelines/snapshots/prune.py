"""Retention of late and rejected rows: those of old epochs go. A quiet epoch that lists them, as a restore does."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.manifest import Manifest, Publish, line_after
from tidegate.pipelines.snapshots.commit import commit_snapshot, remaining
from tidegate.pipelines.snapshots.head import required
from tidegate.pipelines.snapshots.publish import publish
from tidegate.pipelines.snapshots.quiet import quiet_manifest
from tidegate.pipelines.snapshots.recovery import recover
from tidegate.pipelines.storage import arrow_schema, read_table
from tidegate.pipelines.tables import epochs, late, rejects
from tidegate.pipelines.tables.columns import TIMESTAMP
from tidegate.pipelines.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.windowing.time import Millis, from_millis

PRUNED = (late.NAME, rejects.NAME)


def prune(tables: PipelineTables, before: Millis, now: Millis) -> dict[str, int]:
    """Remove the late and rejected rows of epochs that began before a moment; how many each table had.

    The caller holds the lease. Counters of the epochs stay, so what is gone is still counted. Rejected rows of an
    epoch that rejected any for lying ahead stay: without them such a row would be taken once OPTIMIZE has written its
    file anew.

    Args:
        tables: the pipeline's tables.
        before: int64 epoch milliseconds.
        now: int64 epoch milliseconds.

    Raises:
        Refused: the pipeline has no snapshot, or somebody commits at the same time.
    """
    head = required(tables, recover(tables))
    old, oldest, last = _epochs_before(tables, before, head.manifest.epoch)
    gone, counts = {}, {}
    for table in PRUNED:
        held = read_table(tables.warehouse, tables.open(table), ["epoch"])["epoch"]
        spared = _ahead_epochs(tables) if table == rejects.NAME else frozenset[int]()
        is_spared = pc.is_in(held, value_set=pa.array(sorted(spared), pa.int64()))
        is_old = pc.or_(pc.is_in(held, value_set=old), pc.less(held, oldest))
        found = held.filter(pc.and_not(is_old, is_spared))
        counts[table] = len(found)
        # The newest that is old is named even where it has no rows here: lines that were left may have some.
        newest = next((epoch for epoch in range(last, 0, -1) if epoch not in spared), None)
        gone[table] = Publish(remove_epochs=tuple(sorted({*found.to_pylist(), *((newest,) if newest else ())})))
    if any(counts.values()):
        manifest = _manifest(head.manifest, gone, now)
        added, files = remaining(tables, head, f"state-{manifest.epoch:06d}-prune")
        kept = {file["path"] for file in files}
        commit_snapshot(tables, head.handle, manifest, arrow_schema(head.handle), added, kept)
        publish(tables, manifest)
    return counts


def _ahead_epochs(tables: PipelineTables) -> frozenset[int]:
    """The epochs that rejected a row for lying ahead, on any line."""
    handle = tables.open(rejects.NAME)
    rows = read_table(tables.warehouse, handle, ["epoch"], where=pc.field("reason") == rejects.AHEAD)
    return frozenset(rows["epoch"].to_pylist())


def _epochs_before(tables: PipelineTables, before: Millis, newest: int) -> tuple[pa.Array, int, int]:
    """The epochs that began before a moment, a number below which all did, and the newest number on any line that did.

    Rows of very old epochs leave table epochs: they began before the oldest that is there.
    """
    rows = read_table(tables.warehouse, tables.open(epochs.NAME), ["epoch", "started_at"])
    is_old = pc.less(rows["started_at"], pa.scalar(from_millis(before)).cast(TIMESTAMP))
    old = rows["epoch"].filter(is_old).combine_chunks()
    oldest = pc.min(rows["epoch"]).as_py()
    others = rows["epoch"].filter(pc.invert(is_old))
    last = newest if not len(others) else pc.min(others).as_py() - 1
    return old, oldest if oldest in old.to_pylist() else 0, last if len(old) else 0


def _manifest(head: Manifest, gone: dict[str, Publish], now: Millis) -> Manifest:
    epoch = head.epoch + 1
    work = {table: gone.get(table, Publish()) for table in PUBLISHED}
    return quiet_manifest(head, "prune", epoch, head.timeline, line_after(head, epoch), work, now)

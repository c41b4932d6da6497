"""Remove late and rejected rows of old epochs. The epoch reads no new rows and lists the old epochs, like a restore."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import epochs, late, rejects
from tidegate.pipelines.definition.columns import TIMESTAMP
from tidegate.pipelines.ledger.manifest import Publish
from tidegate.pipelines.ledger.snapshots.commit import commit_snapshot, quiet_manifest, remaining
from tidegate.pipelines.ledger.snapshots.head import required
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.ledger.snapshots.recovery import recover
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.storage.warehouse import arrow_schema, read_table
from tidegate.windowing.time import Millis, from_millis

PRUNED = (late.NAME, rejects.NAME)


def prune(tables: PipelineTables, before: Millis, now: Millis) -> dict[str, int]:
    """Remove the late and rejected rows of epochs that began before a time. Return their number by table.

    The caller holds the lease. The counters of these epochs are kept and still count the removed rows. If an epoch
    rejected a row because its time was ahead, its rejected rows are kept: without them, the row would be accepted once
    OPTIMIZE has rewritten its file.
    """
    head = required(tables, recover(tables))
    old, oldest, last = _epochs_before(tables, before, head.manifest.epoch)
    gone, counts = {}, {}
    for table in PRUNED:
        held = read_table(tables.warehouse, tables.look(table), ["epoch"])["epoch"]
        spared = _ahead_epochs(tables) if table == rejects.NAME else frozenset[int]()
        is_spared = pc.is_in(held, value_set=pa.array(sorted(spared), pa.int64()))
        is_old = pc.or_(pc.is_in(held, value_set=old), pc.less(held, oldest))
        expired = held.filter(pc.and_not(is_old, is_spared))
        counts[table] = len(expired)
        # The newest old epoch is listed even if it has no rows here: files of an abandoned lineage may hold older rows.
        newest = next((epoch for epoch in range(last, 0, -1) if epoch not in spared), None)
        gone[table] = Publish(remove_epochs=tuple(sorted({*expired.to_pylist(), *((newest,) if newest else ())})))
    if any(counts.values()):
        manifest = quiet_manifest(head.manifest, "prune", {**dict.fromkeys(PUBLISHED, Publish()), **gone}, now)
        added, files = remaining(tables, head, f"state-{manifest.epoch:06d}-prune")
        kept = {file["path"] for file in files}
        commit_snapshot(tables, head.handle, manifest, arrow_schema(head.handle), added, kept)
        publish(tables, manifest)
    return counts


def _ahead_epochs(tables: PipelineTables) -> frozenset[int]:
    """Return the epochs on any lineage that rejected a row because its time was ahead."""
    handle = tables.look(rejects.NAME)
    rows = read_table(tables.warehouse, handle, ["epoch"], where=pc.field("reason") == rejects.AHEAD)
    return frozenset(rows["epoch"].to_pylist())


def _epochs_before(tables: PipelineTables, before: Millis, newest: int) -> tuple[pa.Array, int, int]:
    """Return three values about the old epochs, which began before a time.

    They are the numbers of these epochs; a number below which all epochs are old too, even if table epochs no longer
    has their rows (0 for none); and the newest old number in any lineage (0 for none).
    """
    rows = read_table(tables.warehouse, tables.look(epochs.NAME), ["epoch", "started_at"])
    is_old = pc.less(rows["started_at"], pa.scalar(from_millis(before)).cast(TIMESTAMP))
    old = rows["epoch"].filter(is_old).combine_chunks()
    oldest = pc.min(rows["epoch"]).as_py()
    others = rows["epoch"].filter(pc.invert(is_old))
    last = newest if not len(others) else pc.min(others).as_py() - 1
    return old, oldest if oldest in old.to_pylist() else 0, last if len(old) else 0

"""Restore: an older snapshot becomes the head, as an epoch of its own that begins a new timeline.

The state of the older snapshot comes back in the commit; what was published after it goes away when
the restore is published, and the results of a line that was left before come back. A crash in between
is rolled forward like that of any epoch. Epoch numbers grow on: nobody confuses two timelines.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pipelines.epoch.commit import check_files
from pipelines.epoch.publish import epoch_row, publish
from pipelines.errors import Refused
from pipelines.snapshots.commit import as_data_file, commit_snapshot
from pipelines.snapshots.head import Snapshot, list_snapshots, read_snapshot
from pipelines.snapshots.manifest import DataFile, Manifest, Publish, fork_of
from pipelines.snapshots.quiet import quiet_manifest
from pipelines.snapshots.savepoint import copy_files
from pipelines.storage import active_files, arrow_schema
from pipelines.tables import epochs, state
from pipelines.tables.files import write_file
from pipelines.tables.pipeline_tables import PUBLISHED, PipelineTables
from windowing.time import Millis


def restore(tables: PipelineTables, target: Snapshot, now: Millis, keep_stale: bool = False) -> Manifest:
    """Make an older snapshot the head; its manifest. The caller holds the lease.

    Args:
        tables: the pipeline's tables.
        target: a retained snapshot, or a savepoint.
        now: the driver's clock, int64 epoch milliseconds.
        keep_stale: whether what was published since stays readable, marked stale, instead of going away.

    Raises:
        Refused: results that belong to the snapshot are gone, or another driver committed meanwhile.
    """
    head = read_snapshot(tables)
    if head is None:
        raise Refused(
            f"pipeline {tables.pipeline!r} has no tables yet to restore into: run one epoch of it first, which the "
            "restore replaces"
        )
    publish(tables, head.manifest)
    if head.manifest.epoch == target.manifest.epoch:
        return head.manifest
    manifest = _manifest(tables, head, target, now, keep_stale)
    check_files(tables, manifest)
    at_head = {file["path"] for file in active_files(head.handle)}
    files = [as_data_file(file) for file in target.files]
    if target.path == head.path:
        kept = {file.path for file in files if file.path in at_head}
        returning = [file for file in files if file.path not in at_head]
    else:
        kept, returning = set(), copy_files(tables, target, tables.path(state.NAME), f"restored-{manifest.epoch:06d}")
    commit_snapshot(tables, head.handle, manifest, arrow_schema(head.handle), returning, kept)
    publish(tables, manifest)
    return manifest


def _manifest(tables: PipelineTables, head: Snapshot, target: Snapshot, now: Millis, keep_stale: bool) -> Manifest:
    then, epoch = target.manifest, head.manifest.epoch + 1
    fork = fork_of(head.manifest.line, then.line)
    since = tuple(range(fork + 1, epoch))
    left = _left(tables, then, fork)
    files = {table: tuple(file for manifest in left for file in manifest.publish[table].files) for table in PUBLISHED}
    files[epochs.NAME] = _epoch_rows(tables, left, epoch)
    return quiet_manifest(
        then,
        "restore",
        epoch,
        head.manifest.timeline + 1,
        (*then.line, (epoch, epoch)),
        {
            table: Publish(
                files=files[table],
                remove_epochs=() if keep_stale else since,
                stale_epochs=since if keep_stale else (),
            )
            for table in PUBLISHED
        },
        now,
    )


def _left(tables: PipelineTables, then: Manifest, fork: int) -> list[Manifest]:
    """The epochs between the fork and the target: their line was left, and what they published with it.

    Raises:
        Refused: one of them is no longer retained, so its results can't come back.
    """
    wanted = [epoch for first, last in then.line for epoch in range(first, last + 1) if epoch > fork]
    versions = {entry.manifest["epoch"]: entry.version for entry in list_snapshots(tables)}
    found = []
    for epoch in wanted:
        if epoch == then.epoch:
            found.append(then)
            continue
        snapshot = read_snapshot(tables, versions[epoch]) if epoch in versions else None
        if snapshot is None:
            raise Refused(
                f"epoch {then.epoch} of {tables.pipeline} is on a line that was left at epoch {fork}, and what epoch "
                f"{epoch} of it published is no longer retained. Restore epoch {fork} or one before it, and run again"
            )
        found.append(snapshot.manifest)
    return found


def _epoch_rows(tables: PipelineTables, left: Sequence[Manifest], epoch: int) -> tuple[DataFile, ...]:
    if not left:
        return ()
    schema = arrow_schema(tables.open(epochs.NAME))
    rows = pa.concat_tables(epoch_row(manifest, schema) for manifest in left)
    file = write_file(tables.warehouse, tables.path(epochs.NAME), f"{epochs.NAME}-{epoch:06d}", rows)
    return () if file is None else (file,)

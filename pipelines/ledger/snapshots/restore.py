"""Restore: make an older snapshot the head, in a separate epoch that begins a new timeline.

The commit restores the state of the older snapshot. Publishing the restore removes what was published after that
snapshot, and brings back the results of a lineage that an earlier restore abandoned. After a crash in between, recovery
rolls forward as for any epoch. Epoch numbers keep increasing, so two timelines never share a new number.
"""

from __future__ import annotations

from dataclasses import replace

from deltalake import DeltaTable

from tidegate.pipelines.definition import results, state
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots import recovery
from tidegate.pipelines.ledger.snapshots.commit import StateFiles, commit_epoch, remaining
from tidegate.pipelines.ledger.snapshots.foreign_changes import check_unchanged
from tidegate.pipelines.ledger.snapshots.head import Snapshot, kept_of, newest_epochs
from tidegate.pipelines.ledger.snapshots.lineages import check_made_here
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.ledger.snapshots.published_head import Head
from tidegate.pipelines.ledger.snapshots.restore_manifest import Turn, restored_epoch
from tidegate.pipelines.ledger.snapshots.savepoint import copy_files, origin_of
from tidegate.pipelines.ledger.snapshots.stages import manifest_of
from tidegate.pipelines.ledger.tables.damage import check_logs, has_damaged_log
from tidegate.pipelines.ledger.tables.files import check_written, copied
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, PUBLISHED, PipelineTables
from tidegate.pipelines.ledger.tables.table_log import TableLog
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema, path_of
from tidegate.windowing.time import Millis


def restore(tables: PipelineTables, target: Snapshot, now: Millis, keep_stale: bool = False) -> Manifest:
    """Make an older snapshot the head. Return the manifest of the restore. The caller holds the lease.

    A pipeline without tables begins with the state of a savepoint, and has none of the results before it. A table
    state that is missing or can't be opened is created again for a savepoint. If table state was rolled back, or the
    log of a table lost its end, the restore starts from the newest epoch that any table has. If the target is already
    the head, the restore does nothing and returns the target's manifest. A savepoint of the head replaces state that
    can't be read. With `keep_stale`, the rows published since the snapshot become stale instead of being removed.

    Raises:
        Refused: results that belong to the snapshot are lost or were never in these tables, somebody changed a
            published table, or another driver has committed.
    """
    is_savepoint = target.path != tables.path(state.NAME)
    if is_savepoint:
        _remove_damaged_state(tables, target)
    check_logs(tables, ALL)
    # This is opened before anything that the restore is based on: the commit fails if a cleanup has given up the target
    # since.
    handle = tables.open(state.NAME) if tables.exist else None
    _check_listed(tables, target)
    head = Head.of(tables)
    if head is not None:
        check_made_here(tables, head, target)
    _make_missing(tables, head, target)
    handle = handle or tables.open(state.NAME)
    for table in PUBLISHED:
        check_unchanged(tables, table)
    unpublished = 0 if head is None else _publish_head(tables, head, target.manifest)
    if head is not None and _is_there(head, target) and (not is_savepoint or _can_be_read(tables, handle)):
        return target.manifest
    _check_columns(tables, handle, target)
    new = restored_epoch(Turn.of(tables, head, target, unpublished), now, keep_stale)
    manifest = commit_epoch(tables, handle, new, _state(tables, handle, target, new.epoch))
    publish(tables, manifest)
    return manifest


def _state(tables: PipelineTables, handle: DeltaTable, target: Snapshot, epoch: int) -> StateFiles:
    """Return the state files of the target: those that the table has had before, or copies of a savepoint's files."""
    written, whole = remaining(tables, target, f"{state.NAME}-{epoch:06d}-restore")
    if target.path != path_of(handle):
        target = replace(target, files=tuple(whole))
        return StateFiles([*written, *copy_files(tables, target, tables.path(state.NAME), f"restored-{epoch:06d}")])
    return StateFiles.of_older(handle, whole, written)


def _remove_damaged_state(tables: PipelineTables, savepoint: Snapshot) -> None:
    """Remove a table state that can't be opened, after checking that the savepoint that replaces it is complete."""
    if has_damaged_log(tables, state.NAME):
        files = [*savepoint.files, *savepoint.manifest_files]
        check_written(tables.warehouse, savepoint.path, [copied(file, file["path"]) for file in files])
        tables.warehouse.delete_folder(tables.path(state.NAME))


def _check_listed(tables: PipelineTables, target: Snapshot) -> None:
    """Refuse a snapshot that a cleanup gave up after it was found."""
    in_state = target.path == tables.path(state.NAME)
    if in_state and target.version not in kept_of(TableLog(tables, state.NAME)):
        raise Refused(
            f"epoch {target.manifest.epoch} of {tables.pipeline} can't be restored: a cleanup is removing its snapshot",
            Remedy(Act.LIST_SNAPSHOTS, tables.pipeline),
        )


def _make_missing(tables: PipelineTables, head: Head | None, target: Snapshot) -> None:
    """Create the tables that a savepoint needs: all of them for a new pipeline, or table state if it was lost."""
    missing = tables.missing
    if lost := [table for table in missing if head is not None and table != state.NAME]:
        raise tables.gone(lost[0])
    if not missing:
        return
    if target.path == tables.path(state.NAME):
        raise tables.gone(missing[0])
    columns, has_panes = origin_of(tables.warehouse, target).schemas, target.manifest.schemas.has_panes
    tables.create({**columns, results.NAME: results.of_kind(columns[results.NAME], has_panes=has_panes)})


def _is_there(head: Head, target: Snapshot) -> bool:
    """Return True if a snapshot is already the head."""
    if head.snapshot is None or not head.is_trusted:
        return False
    newest, then = head.snapshot.manifest, target.manifest
    return (newest.epoch, newest.run_id) == (then.epoch, then.run_id)


def _can_be_read(tables: PipelineTables, handle: DeltaTable) -> bool:
    """Return False if a file of table state is missing or damaged."""
    files = [file["path"] for file in active_files(handle)]
    try:
        for _ in tables.warehouse.read_batches(path_of(handle), files, arrow_schema(handle)):
            pass
    except Refused:
        return False
    return True


def _publish_head(tables: PipelineTables, head: Head, target: Manifest) -> int:
    """Publish what a crash left unpublished. Return the first epoch that can't be published, or 0 if all can.

    Such an epoch is not a loss if the restore goes back to before it.
    """
    if head.snapshot is None:
        return 0
    lacking = head.epoch
    try:
        for manifest in recovery.unpublished(tables, head.snapshot, newest_epochs(tables)):
            lacking = manifest.epoch
            publish(tables, manifest)
    except Refused:
        if target.epoch >= lacking:
            raise
        return lacking
    return 0


def _check_columns(tables: PipelineTables, handle: DeltaTable, target: Snapshot) -> None:
    """Refuse a target with columns that table state does not have: nothing would ever read them."""
    lost = sorted(set(arrow_schema(target.handle).names) - set(arrow_schema(handle).names))
    if lost:
        raise Refused(
            f"{target.path} has state in columns that {tables.path(state.NAME)} does not have: {', '.join(lost)}. "
            "Different code produced it: restore it into another warehouse"
        )


def planned_restore(tables: PipelineTables, head: Head, target: Snapshot, now: Millis) -> Manifest:
    """Return the manifest that a restore to a snapshot would commit, without committing anything."""
    return manifest_of(restored_epoch(Turn.of(tables, head, target, 0), now, keep_stale=False))

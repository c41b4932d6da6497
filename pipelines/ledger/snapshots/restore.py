"""Restore: make an older snapshot the head, in a separate epoch that begins a new timeline.

The commit restores the state of the older snapshot. Publishing the restore removes what was published after that
snapshot, and brings back the results of a lineage that an earlier restore abandoned. After a crash in between, recovery
rolls forward as for any epoch. Epoch numbers keep increasing, so two timelines never share a new number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from tidegate.pipelines.definition import epochs, late, rejects, results, state
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest, Publish
from tidegate.pipelines.ledger.snapshots.commit import (
    check_files,
    commit_snapshot,
    manifest_without_input,
    remaining,
)
from tidegate.pipelines.ledger.snapshots.foreign_changes import check_unchanged
from tidegate.pipelines.ledger.snapshots.head import Snapshot, kept_of, newest_epochs, published_by
from tidegate.pipelines.ledger.snapshots.line import (
    Head,
    Losses,
    damaged_files,
    epoch_rows,
    erasing_epochs,
    files_of,
    fork,
    is_kept,
    left_line,
    pruned_by,
    removed_on,
    rows_of_departed,
    undone_changes,
)
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.ledger.snapshots.recovery import unpublished
from tidegate.pipelines.ledger.snapshots.savepoint import copy_files, origin_of
from tidegate.pipelines.ledger.tables.files import copied
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.ledger.tables.table_log import TableLog
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema, path_of
from tidegate.windowing.time import Millis

Schemas = Mapping[str, pa.Schema]


def restore(
    tables: PipelineTables,
    target: Snapshot,
    now: Millis,
    keep_stale: bool = False,
    give_up: Callable[[str], None] | None = None,
    schemas: Callable[[], Schemas] | None = None,
) -> Manifest:
    """Make an older snapshot the head. Return the manifest of the restore. The caller holds the lease.

    A savepoint that was made elsewhere restores its state, not its results: the rows in the tables are removed. Missing
    tables of a pipeline without any are created. If table state was rolled back, or the log of a table lost its end,
    the restore starts from the newest epoch that any table has. If the target is already the head and nothing is lost
    or damaged, the restore does nothing and returns the target's manifest. A savepoint of the head replaces state that
    can't be read. With `keep_stale`, the rows published since the snapshot become stale instead of being removed.
    `give_up` is called with a description of each loss of published rows. If it is None, any loss is refused. `schemas`
    returns the columns of each table, to recreate lost tables that are given up.

    Raises:
        Refused: results that belong to the snapshot are lost, somebody changed a published table (`put_back` undoes
            that), or another driver has committed.
    """
    losses = Losses(tables, target, give_up)
    # This is opened before anything that the restore is based on: the commit fails if a cleanup has given up the target
    # since.
    handle = tables.open(state.NAME) if tables.exist else None
    _check_listed(tables, target)
    head = Head.of(tables)
    _make_missing(tables, head, target, schemas, losses)
    handle = handle or tables.open(state.NAME)
    for table in PUBLISHED:
        check_unchanged(tables, table)
    lacking = 0 if head is None else _publish_head(tables, head, target.manifest, losses)
    damaged = damaged_files(tables) if losses.accepted and head is not None else {}
    is_there = head is not None and _is_there(head, target) and not losses.texts and not any(damaged.values())
    if is_there and (target.path == path_of(handle) or _can_be_read(tables, handle)):
        return target.manifest
    _check_columns(tables, handle, target)
    manifest = _manifest(tables, head, target, now, keep_stale, losses, damaged, lacking)
    losses.settle()
    check_files(tables, manifest)
    at_head = {file["path"] for file in active_files(handle)}
    written, whole = remaining(tables, target, f"state-{manifest.epoch:06d}-restore")
    target = replace(target, files=tuple(whole))
    files = [copied(file, file["path"]) for file in target.files]
    if target.path == path_of(handle):
        kept = {file.path for file in files if file.path in at_head}
        returning = [file for file in files if file.path not in at_head]
    else:
        kept, returning = set(), copy_files(tables, target, tables.path(state.NAME), f"restored-{manifest.epoch:06d}")
    commit_snapshot(tables, handle, manifest, arrow_schema(handle), [*written, *returning], kept)
    publish(tables, manifest)
    return manifest


def _check_listed(tables: PipelineTables, target: Snapshot) -> None:
    """Refuse a snapshot that a cleanup gave up after it was found."""
    in_state = target.path == tables.path(state.NAME)
    if in_state and target.version not in kept_of(TableLog(tables, state.NAME)):
        raise Refused(
            f"epoch {target.manifest.epoch} of {tables.pipeline} can't be restored: a cleanup is removing its "
            f"snapshot. `tidegate snapshot list {tables.pipeline}` lists those that remain"
        )


def _make_missing(
    tables: PipelineTables,
    head: Head | None,
    target: Snapshot,
    schemas: Callable[[], Schemas] | None,
    losses: Losses,
) -> None:
    """Create the missing tables: all of them for a new pipeline, or those that were lost."""
    missing = tables.missing
    if not missing:
        return
    snapshot = None if head is None else head.snapshot
    held = None if snapshot is None else published_by(tables.warehouse, snapshot.handle)
    for table in missing if head is not None else ():
        if table != state.NAME and (held is None or held.after[table]):
            losses.add(f"table {tables.path(table)} is gone, with all its rows")
    if not losses.accepted:
        losses.settle()
    if target.path != tables.path(state.NAME):
        columns, has_panes = origin_of(tables.warehouse, target).schemas, target.manifest.schemas.has_panes
        tables.create({**columns, results.NAME: results.of_kind(columns[results.NAME], has_panes=has_panes)})
    elif schemas is not None:
        tables.create(dict(schemas()))
    else:
        raise Refused(f"table {tables.path(missing[0])} is gone: put its folder back, or restore a savepoint")


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


def _publish_head(tables: PipelineTables, head: Head, target: Manifest, losses: Losses) -> int:
    """Publish what a crash left unpublished. Return the first epoch that can't be published, or 0 if all can.

    Such an epoch is not a loss if the restore goes back to before it.
    """
    if head.snapshot is None:
        return 0
    lacking = head.epoch
    try:
        for manifest in unpublished(tables, head.snapshot, newest_epochs(tables)):
            lacking = manifest.epoch
            publish(tables, manifest)
    except Refused as error:
        if not losses.accepted and target.epoch >= lacking:
            raise
        if target.epoch >= lacking:
            losses.add(str(error))
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


def _manifest(
    tables: PipelineTables,
    head: Head | None,
    target: Snapshot,
    now: Millis,
    keep_stale: bool,
    losses: Losses,
    damaged: Mapping[str, Sequence[dict[str, Any]]],
    lacking: int,
) -> Manifest:
    then = target.manifest
    newest = 0 if head is None else head.epoch
    epoch = max(newest, then.epoch) + 1
    parted = 0 if head is None else fork(tables, head, target, losses)
    if lacking:
        # The published part of it is removed, and returns with the lineage.
        parted = min(parted, lacking - 1)
    left = [] if head is None else left_line(tables, head, target, parted, losses)
    since = tuple(range(parted + 1, newest + 1))
    works = {table: [manifest.publish[table] for manifest in left] for table in PUBLISHED}
    prunes = pruned_by(tables)
    pruned = {table: max((max(gone.get(table, (0,))) for gone in prunes.values()), default=0) for table in PUBLISHED}
    files = {
        table: losses.readable(
            table, [file for file in files_of(left, table, parted) if is_kept(tables, table, file, pruned[table])]
        )
        for table in PUBLISHED
    }
    removed = {table: {*(() if keep_stale else since), *removed_on(left, table, then.line)} for table in PUBLISHED}
    # The epochs that removed rows on a user's request keep their rows in table epochs, which explain what is missing.
    erasures = erasing_epochs(tables)
    removed[epochs.NAME] -= erasures
    files[epochs.NAME] = epoch_rows(tables, left, epoch)
    work = {
        table: Publish(
            files=files[table],
            reopened=tuple(reopening for work in works[table] for reopening in work.reopened),
            remove_epochs=tuple(sorted(removed[table])),
            stale_epochs=tuple(
                number for number in since if keep_stale and not (table == epochs.NAME and number in erasures)
            ),
            forgotten=tuple(mark for work in works[table] for mark in work.forgotten),
            given_up=losses.rows_of(table, damaged.get(table, ()), removed[table]),
            departed=tuple(
                each for manifest in left if manifest.kind == "change" for each in manifest.publish[table].departed
            ),
        )
        for table in PUBLISHED
    }
    undone = [] if head is None else undone_changes(tables, head, parted, losses)
    for table in (late.NAME, rejects.NAME) if undone else ():
        back = rows_of_departed(tables, undone, table, work[table], prunes, losses, epoch)
        work[table] = work[table].model_copy(update={"files": (*files[table], *back)})
    return manifest_without_input(
        then,
        "restore",
        work,
        now,
        epoch=epoch,
        timeline=max(0 if head is None else head.timeline, then.timeline) + 1,
    )


def manifest_of(tables: PipelineTables, head: Head, target: Snapshot, now: Millis) -> Manifest:
    """Return the manifest that a restore to a snapshot would commit, without committing anything."""
    losses = Losses(tables, target, None)
    manifest = _manifest(tables, head, target, now, False, losses, {}, 0)
    losses.settle()
    return manifest

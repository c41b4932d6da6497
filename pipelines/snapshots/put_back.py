"""Repair of published tables that somebody else changed: give them their earlier files again."""

from __future__ import annotations

from deltalake import DeltaTable, Transaction

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.snapshots.head import list_snapshots
from tidegate.pipelines.snapshots.set_back import (
    PUT_BACK,
    Change,
    can_publish_again,
    epoch_at,
    find_change,
    held_epoch,
    lost_files,
    remedy,
)
from tidegate.pipelines.tables.commits import commit, commit_by
from tidegate.pipelines.tables.pipeline_tables import PUBLISHED, PipelineTables


def put_back(tables: PipelineTables, give_up: bool = False, needed: int | None = None) -> list[str]:
    """Repair published tables that somebody else changed; return a sentence for each. The caller holds the lease.

    A table gets the files of the version before the change. It then lacks the epochs that were published on top, and
    the recovery that follows publishes them again, as for a table whose log lost its end.

    Args:
        tables: the pipeline's tables.
        give_up: True accepts that files are missing. The restore that follows names them and removes them.
        needed: epoch of the snapshot that is restored next; a table that was set back to it, or to a later one, keeps
            its files. None needs all.

    Raises:
        Refused: rows would be lost. Then nothing was changed.
    """
    # The handles are opened before the look for changes, so nothing that somebody commits later is taken back.
    handles = {table: tables.open(table) for table in PUBLISHED if tables.warehouse.exists(tables.path(table))}
    changes = [
        change
        for table, handle in handles.items()
        if (change := find_change(tables, table, handle.version())) is not None
    ]
    held = {change.table: held_epoch(tables, change, handles[change.table].version()) for change in changes}
    kept = {
        table: epoch for table, epoch in held.items() if needed is not None and epoch is not None and epoch >= needed
    }
    for change in changes if not give_up else ():
        if change.table in kept:
            continue
        if not _is_possible(tables, change, needed) or lost_files(tables, change):
            raise Refused(
                f"version {change.version} of table {tables.path(change.table)} is a change that tidegate did not "
                f"make. {remedy(tables, change)}"
            )
    return [
        _keep(tables, change, handles[change.table], kept[change.table])
        if change.table in kept
        else _put_back(tables, change, handles[change.table], give_up, needed)
        for change in changes
    ]


def _keep(tables: PipelineTables, change: Change, handle: DeltaTable, epoch: int) -> str:
    # The table says which epochs it has: should this command end here, a recovery publishes the later ones again.
    version = str(handle.version())
    commit(tables.warehouse, handle, [], {PUT_BACK: version}, transactions=[Transaction(tables.application, epoch)])
    path = tables.path(change.table)
    return f"table {path} keeps its files: version {change.version} set it back to epoch {epoch}, which is enough"


def _is_possible(tables: PipelineTables, change: Change, needed: int | None) -> bool:
    """Return True if the epochs that are needed are in the table before the change, or can be published again."""
    try:
        epoch = epoch_at(tables, change)
    except Refused:
        return False
    snapshots = [entry.epoch for entry in list_snapshots(tables)]
    return can_publish_again(snapshots, epoch) or (needed is not None and needed <= epoch)


def _put_back(tables: PipelineTables, change: Change, handle: DeltaTable, give_up: bool, needed: int | None) -> str:
    path = tables.path(change.table)
    if not _is_possible(tables, change, needed):
        # From now on the rows that the table has are those that it should have.
        commit(tables.warehouse, handle, [], {PUT_BACK: str(handle.version())})
        return f"table {path} stays as it is: what version {change.version} changed is given up"
    # The table says which epochs it has, so that later ones are published again.
    commit_by(
        lambda properties, hooks: handle.restore(
            change.good, ignore_missing_files=give_up, commit_properties=properties, post_commithook_properties=hooks
        ),
        tables.warehouse,
        handle,
        {PUT_BACK: str(change.good)},
        [Transaction(tables.application, epoch_at(tables, change))],
    )
    return (
        f"table {path} was put back to version {change.good}: version {change.version} was a change that tidegate "
        "did not make"
    )

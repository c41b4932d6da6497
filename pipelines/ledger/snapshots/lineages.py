"""Lineages: the epochs that a snapshot and the published tables share, and the fork after which they differ.

Two epochs are the same if their run ids are equal. Numbers and table ids do not suffice, because a copy of a warehouse
continues with the same ones.
"""

from __future__ import annotations

from collections.abc import Collection

from tidegate.pipelines.definition import results, state
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest, fork_of, is_on
from tidegate.pipelines.ledger.snapshots.head import Snapshot, SnapshotEntry, snapshots_by_epoch
from tidegate.pipelines.ledger.snapshots.published_head import Head, readable_snapshot
from tidegate.pipelines.ledger.snapshots.savepoint import origin_of
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.remedy import Act, Remedy


def fork_from(tables: PipelineTables, head: Head, target: Snapshot) -> int:
    """Return the newest epoch that a snapshot and the published tables share; 0 if they share none.

    Raises:
        Refused: the newest manifest can't be read, and nothing else tells where the lineages fork.
    """
    then = target.manifest
    shared = fork_of(head.line, then.line)
    theirs = _run_ids(tables, target)
    same = {epoch: run == head.run_ids[epoch] for epoch, run in theirs.items() if epoch in head.run_ids}
    others = [epoch for epoch, is_same in same.items() if not is_same]
    if others and min(others) <= shared:
        shared = max((epoch for epoch, is_same in same.items() if is_same and epoch < min(others)), default=0)
    elif head.snapshot is None and not shared:
        raise Refused(
            f"the newest epoch of {tables.pipeline}, {head.epoch}, can't be read, so tidegate can't tell where the "
            f"timeline of epoch {then.epoch} branched off",
            *tables.remedies(results.NAME),
        )
    return shared


def returning_manifests(tables: PipelineTables, head: Head, target: Snapshot, fork: int) -> list[Manifest]:
    """Return the manifests of the epochs after the fork up to a snapshot, whose published rows reappear with it.

    Raises:
        Refused: the snapshot of such an epoch is no longer retained.
    """
    then = target.manifest
    wanted = [epoch for first, last in then.line for epoch in range(first, last + 1) if epoch > fork]
    theirs = _run_ids(tables, target)
    entries = {
        epoch: entry
        for epoch, entry in snapshots_by_epoch(tables).items()
        if theirs.get(epoch, entry.manifest["run_id"]) == entry.manifest["run_id"]
    }
    read = {epoch: readable_snapshot(tables, entries[epoch].version) for epoch in wanted if epoch in entries}
    manifests = {epoch: snapshot.manifest for epoch, snapshot in read.items() if snapshot is not None}
    manifests[then.epoch] = then
    if gone := [epoch for epoch in wanted if epoch not in manifests]:
        named = f"epoch {gone[0]}" if len(gone) == 1 else f"epochs {gone[0]} to {gone[-1]}"
        back = max((epoch for epoch in entries if epoch <= fork and is_on(head.line, epoch)), default=None)
        raise Refused(
            f"epoch {then.epoch} of {tables.pipeline} is on a timeline that was abandoned at epoch {fork}, and the "
            f"rows that its {named} published are no longer retained",
            *([] if back is None else [Remedy(Act.RESTORE, tables.pipeline, back)]),
            *tables.remedies(results.NAME),
        )
    return [manifests[epoch] for epoch in wanted]


def check_made_here(tables: PipelineTables, head: Head, target: Snapshot) -> None:
    """Refuse a savepoint whose results these tables never had: restoring it would remove all that they have.

    Raises:
        Refused: another pipeline made the savepoint, or this one before it was restarted.
    """
    if target.path == tables.path(state.NAME) or head.run_ids.get(target.manifest.epoch) == target.manifest.run_id:
        return
    ours = {} if state.NAME in tables.missing else {str(tables.newest(state.NAME).metadata().id)}
    if origin_of(tables.warehouse, target).table_id not in ours:
        raise Refused(
            f"savepoint {target.path} was created before a restart, or for other tables: those of {tables.pipeline} "
            f"don't have its results, and would lose the results of {head.epoch} epochs. Without its tables, it can be "
            "restored only after a restart",
            *tables.remedies(results.NAME),
        )


def restorable(tables: PipelineTables, entries: Collection[SnapshotEntry]) -> dict[int, bool]:
    """Return for each listed epoch whether it can be restored.

    Every epoch between it and the head's lineage must be retained, because their manifests list the results that
    return.
    """
    head = readable_snapshot(tables, None) if entries else None
    line = () if head is None else head.manifest.line
    parents = {entry.epoch: entry.manifest["parent"] for entry in entries}
    whole = {}
    for listed in parents:
        epoch = listed
        while epoch is not None and epoch in parents and not is_on(line, epoch):
            epoch = parents[epoch]
        whole[listed] = epoch is None or is_on(line, epoch)
    return whole


def _run_ids(tables: PipelineTables, target: Snapshot) -> dict[int, str]:
    """Return the run id of a snapshot by its epoch; for a savepoint, also those of the ancestors that it records."""
    ancestors = {} if target.path == tables.path(state.NAME) else origin_of(tables.warehouse, target).run_ids
    return {**ancestors, target.manifest.epoch: target.manifest.run_id}

"""Lines: which epochs a snapshot and the published tables have in common, and where they parted.

A manifest names the epochs that it came from. Where the newest manifest can't be read, or its commit is lost, the log
and table `epochs` tell the parent of each. Epochs are the same if their run is: a copy of a warehouse goes on with the
same numbers and the same table ids.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import DataFile, Line, Manifest, fork_of
from tidegate.pipelines.snapshots.head import (
    OtherPipeline,
    Snapshot,
    SnapshotEntry,
    list_snapshots,
    newest_epochs,
    read_snapshot,
)
from tidegate.pipelines.snapshots.losses import Losses
from tidegate.pipelines.snapshots.publish import epoch_row
from tidegate.pipelines.snapshots.savepoint import origin_of
from tidegate.pipelines.storage import arrow_schema, read_table
from tidegate.pipelines.tables import epochs, rejects, state
from tidegate.pipelines.tables.files import epoch_of, write_file
from tidegate.pipelines.tables.pipeline_tables import PUBLISHED, PipelineTables


@dataclass(frozen=True, slots=True)
class Head:
    """The newest epoch that any table of a pipeline knows, which is what readers see.

    Args:
        snapshot: of that epoch; None where it can't be read or is lost.
        epoch: its number.
        timeline: the newest one.
        line: the epochs that it came from, as far as anything tells.
        run_ids: the run of each epoch that is known here.
        is_trusted: whether table state stands at it.
    """

    snapshot: Snapshot | None
    epoch: int
    timeline: int
    line: Line
    run_ids: dict[int, str] = field(default_factory=dict)
    is_trusted: bool = False

    @classmethod
    def of(cls, tables: PipelineTables) -> Head | None:
        """The head of a pipeline; None where it has not published anything yet.

        Raises:
            Refused: a table can't be opened, or is another pipeline's.
        """
        entries = {entry.manifest["epoch"]: entry for entry in reversed(list_snapshots(tables))}
        at_head = _readable(tables, None)
        at_head_epoch = 0 if at_head is None else at_head.manifest.epoch
        known = max([*newest_epochs(tables).values(), *entries, at_head_epoch], default=0)
        if not known:
            return None
        told = _Told.of(tables, entries)
        found = at_head if at_head_epoch == known else None
        if found is None and known in entries:
            found = _readable(tables, entries[known].version)
        line = told.line(known) if found is None else found.manifest.line
        return cls(found, known, told.timeline, line, told.run_ids, found is not None and found is at_head)


def is_made_here(tables: PipelineTables, head: Head, target: Snapshot) -> bool:
    """Whether a snapshot was made by this pipeline in this warehouse, or in one of which this is a copy."""
    then = target.manifest
    if target.path == tables.path(state.NAME) or head.run_ids.get(then.epoch) == then.run_id:
        return True
    return origin_of(target).table_id == str(tables.open(state.NAME).metadata().id)


def fork(tables: PipelineTables, head: Head, target: Snapshot, losses: Losses) -> int:
    """The newest epoch that a snapshot and the published tables share; 0 where they share none."""
    then = target.manifest
    if not is_made_here(tables, head, target):
        return 0
    shared = fork_of(head.line, then.line)
    theirs = _run_ids(tables, target)
    same = {epoch: run == head.run_ids[epoch] for epoch, run in theirs.items() if epoch in head.run_ids}
    others = [epoch for epoch, is_same in same.items() if not is_same]
    if others and min(others) <= shared:
        shared = max((epoch for epoch, is_same in same.items() if is_same and epoch < min(others)), default=0)
    elif head.snapshot is None and not shared:
        losses.add(
            f"the newest epoch of {tables.pipeline}, {head.epoch}, can't be read, and nothing tells where epoch "
            f"{then.epoch} parted from it: all that is published would go away"
        )
    return shared


def left_line(tables: PipelineTables, head: Head, target: Snapshot, parted: int, losses: Losses) -> list[Manifest]:
    """The epochs between the fork and a snapshot: their line was left, and what they published with it."""
    then = target.manifest
    if not is_made_here(tables, head, target):
        return []
    wanted = [epoch for first, last in then.line for epoch in range(first, last + 1) if epoch > parted]
    theirs = _run_ids(tables, target)
    entries = {
        entry.manifest["epoch"]: entry
        for entry in list_snapshots(tables)
        if theirs.get(entry.manifest["epoch"], entry.manifest["run_id"]) == entry.manifest["run_id"]
    }
    read = {epoch: _readable(tables, entries[epoch].version) for epoch in wanted if epoch in entries}
    found = {**{epoch: one.manifest for epoch, one in read.items() if one is not None}, then.epoch: then}
    if gone := [epoch for epoch in wanted if epoch not in found]:
        named = f"epoch {gone[0]}" if len(gone) == 1 else f"epochs {gone[0]} to {gone[-1]}"
        back = _newest_on_line(entries, head.line, parted)
        instead = "" if back is None else f" (epoch {back} can be restored without a loss)"
        losses.add(
            f"epoch {then.epoch} of {tables.pipeline} is on a line that was left at epoch {parted}, and what {named} "
            f"of it published is no longer retained{instead}"
        )
    return [found[epoch] for epoch in wanted if epoch in found]


def files_of(left: Sequence[Manifest], table: str, parted: int) -> list[DataFile]:
    """The files that epochs of a line published to a table after the fork, each once.

    Restores among them list what other epochs of the line published: that counts only where those are not retained.
    """
    found = {
        file.path: file for manifest in left if manifest.kind != "restore" for file in manifest.publish[table].files
    }
    known = {manifest.epoch for manifest in left}
    for manifest in left:
        for file in manifest.publish[table].files if manifest.kind == "restore" else ():
            epoch = epoch_of(file.path)
            if epoch is not None and epoch > parted and epoch not in known:
                found.setdefault(file.path, file)
    return list(found.values())


def pruned_by(tables: PipelineTables) -> dict[int, dict[str, tuple[int, ...]]]:
    """The prunes of a pipeline on any line: their epochs, and of which epochs each table lost its rows.

    Of one whose snapshot is no longer retained nothing tells which rows went; only that it was.
    """
    found: dict[int, dict[str, tuple[int, ...]]] = {
        row["epoch"]: {} for row in _epoch_rows(tables) if row["kind"] == "prune"
    }
    for entry in list_snapshots(tables):
        if entry.manifest["kind"] == "prune" and (snapshot := _readable(tables, entry.version)) is not None:
            work = {table: publish.remove_epochs for table, publish in snapshot.manifest.publish.items()}
            found[snapshot.manifest.epoch] = {table: gone for table, gone in work.items() if gone}
    return found


def is_kept(tables: PipelineTables, table: str, file: DataFile, pruned: int) -> bool:
    """Whether the rows of a file that comes back are newer than those that were pruned, or were spared by the prune."""
    epoch = epoch_of(file.path)
    return epoch is None or epoch > pruned or (table == rejects.NAME and _lies_ahead(tables, file))


def _lies_ahead(tables: PipelineTables, file: DataFile) -> bool:
    """Whether a file has a row that was rejected for lying ahead; one that can't be read goes with what was pruned."""
    path, schema = tables.path(rejects.NAME), arrow_schema(tables.open(rejects.NAME))
    try:
        rows = tables.warehouse.read_files(path, [file.path], schema, ["reason"])
    except Refused:
        return False
    return rejects.AHEAD in rows["reason"].to_pylist()


def removed_on(left: Sequence[Manifest], table: str, line: Line) -> set[int]:
    """The epochs whose rows a line removed from a table: those it replaced, and those of its own that it pruned."""
    return {
        epoch
        for manifest in left
        for epoch in manifest.publish[table].remove_epochs
        if manifest.kind == "prune" or not _is_on(line, epoch)
    }


def erasing_epochs(tables: PipelineTables) -> set[int]:
    """The epochs in which somebody took rows away on purpose, as far as table epochs tells."""
    return {row["epoch"] for row in _epoch_rows(tables) if row["kind"] in epochs.ERASING}


def epoch_rows(tables: PipelineTables, left: Sequence[Manifest], epoch: int) -> tuple[DataFile, ...]:
    """Rows of table epochs for a line that comes back, in a file that a restore publishes."""
    kept = erasing_epochs(tables)
    left = [manifest for manifest in left if manifest.epoch not in kept]
    if not left:
        return ()
    schema = arrow_schema(tables.open(epochs.NAME))
    rows = pa.concat_tables(epoch_row(manifest, schema) for manifest in left)
    file = write_file(tables.warehouse, tables.path(epochs.NAME), f"{epochs.NAME}-{epoch:06d}", rows)
    return () if file is None else (file,)


def come_back_whole(tables: PipelineTables, entries: Collection[SnapshotEntry]) -> dict[int, bool]:
    """By epoch of each listed snapshot, whether all that was published up to it is there, or is retained with it."""
    head = _readable(tables, None) if entries else None
    line = () if head is None else head.manifest.line
    parents = {entry.manifest["epoch"]: entry.manifest["parent"] for entry in entries}
    whole = {}
    for entry in entries:
        epoch = entry.manifest["epoch"]
        while epoch is not None and epoch in parents and not _is_on(line, epoch):
            epoch = parents[epoch]
        whole[entry.manifest["epoch"]] = epoch is None or _is_on(line, epoch)
    return whole


def _is_on(line: Line, epoch: int) -> bool:
    return any(first <= epoch <= last for first, last in line)


def _newest_on_line(entries: Collection[int], line: Line, parted: int) -> int | None:
    return max((epoch for epoch in entries if epoch <= parted and _is_on(line, epoch)), default=None)


def _run_ids(tables: PipelineTables, target: Snapshot) -> dict[int, str]:
    """The run of each epoch that a savepoint came from, as far as it tells; of a snapshot, its own."""
    known = {} if target.path == tables.path(state.NAME) else origin_of(target).run_ids
    return {**known, target.manifest.epoch: target.manifest.run_id}


def _readable(tables: PipelineTables, version: int | None) -> Snapshot | None:
    """The snapshot at a version of table state, None: at its head; None where it can't be read."""
    try:
        return read_snapshot(tables, version)
    except OtherPipeline:
        raise
    except Refused:
        return None


@dataclass(frozen=True, slots=True)
class _Told:
    """What the logs and table epochs tell of each epoch."""

    parents: dict[int, int | None]
    run_ids: dict[int, str]
    timeline: int

    @classmethod
    def of(cls, tables: PipelineTables, entries: dict[int, SnapshotEntry]) -> _Told:
        told = [entry.manifest for entry in entries.values()]
        for table in PUBLISHED:
            if tables.warehouse.exists(tables.path(table)):
                commits = (commit.get("tidegate") for commit in tables.open(table).history(1))
                told += [one for one in commits if isinstance(one, dict) and "parent" in one]
        told = [*_epoch_rows(tables), *told]
        return cls(
            {one["epoch"]: one["parent"] for one in told},
            {one["epoch"]: one["run_id"] for one in told if "run_id" in one},
            max((one["timeline"] for one in told), default=0),
        )

    def line(self, epoch: int) -> Line:
        """The epochs that one came from, back to where nothing is told."""
        found: list[int] = []
        following: int | None = epoch
        while following is not None and following in self.parents:
            found.append(following)
            following = self.parents[following]
        return tuple((one, one) for one in reversed(found))


def _epoch_rows(tables: PipelineTables) -> list[dict[str, Any]]:
    if not tables.warehouse.exists(tables.path(epochs.NAME)):
        return []
    try:
        rows = read_table(tables.warehouse, tables.open(epochs.NAME), ["epoch", "parent", "timeline", "run_id", "kind"])
    except Refused:
        # A file of it is damaged: then the logs have to do.
        return []
    found: list[dict[str, Any]] = rows.to_pylist()
    return found

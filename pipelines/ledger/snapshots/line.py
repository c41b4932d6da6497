"""Lineages: the epochs that a snapshot and the published tables share, and the fork after which they differ.

A manifest names its ancestors. If the newest manifest can't be read, or its commit is lost, the logs and table `epochs`
name the parent of each epoch. Two epochs are the same if their run ids are equal. Numbers and table ids do not suffice,
because a copy of a warehouse continues with the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import epochs, rejects, state
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import DataFile, Line, Manifest, Publish, fork_of, is_on
from tidegate.pipelines.ledger.snapshots.foreign_changes import GIVE_UP, find_change, from_source, in_new_folder
from tidegate.pipelines.ledger.snapshots.head import (
    OtherPipeline,
    Snapshot,
    SnapshotEntry,
    list_snapshots,
    newest_epochs,
    newest_record,
    read_snapshot,
    snapshots_by_epoch,
)
from tidegate.pipelines.ledger.snapshots.publish import epoch_row
from tidegate.pipelines.ledger.snapshots.savepoint import origin_of
from tidegate.pipelines.ledger.tables.damaged_footers import damaged_footers
from tidegate.pipelines.ledger.tables.files import epoch_of, write_rows
from tidegate.pipelines.ledger.tables.late_rows import with_marks
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema, read_table


class Losses:
    """Collects the published rows that a restore can't bring back, so that one error lists all of them.

    `give_up` is called with a description of each loss. If it is None, any loss is refused.
    """

    def __init__(self, tables: PipelineTables, target: Snapshot, give_up: Callable[[str], None] | None) -> None:
        self._tables = tables
        self._target = target
        self._give_up = give_up
        self.texts: list[str] = []

    @property
    def accepted(self) -> bool:
        """True if the user accepts losses."""
        return self._give_up is not None

    def add(self, text: str) -> None:
        """Record the description of a loss."""
        self.texts.append(text)

    def settle(self) -> None:
        """Report all losses to `give_up`, or refuse them, before the restore commits."""
        if self._give_up is None and self.texts:
            epoch = self._target.manifest.epoch
            target = epoch if self._target.path == self._tables.path(state.NAME) else self._savepoint
            way = in_new_folder(self._tables) if self._tables.missing else from_source(self._tables)
            raise Refused(
                f"{'; '.join(self.texts)}. Put the missing files back, or {way}. To continue "
                f"without them: `tidegate restore {self._tables.pipeline} {target} {GIVE_UP}`"
            )
        if self._give_up is not None:
            for text in self.texts:
                self._give_up(text)

    @property
    def _savepoint(self) -> str:
        return f"savepoint:{self._target.path.rpartition('/')[2]}"

    def readable(self, table: str, files: Sequence[DataFile]) -> tuple[DataFile, ...]:
        """Return the readable files of a restored lineage, recording the rows of the other files as lost."""
        path = self._tables.path(table)
        sizes = self._tables.warehouse.sizes(path, [file.path for file in files])
        kept = []
        for file in files:
            if sizes[file.path] == file.size and not (self.accepted and _fault(self._tables, table, file.path)):
                kept.append(file)
            else:
                self.add(f"{file.rows} rows of table {path} are lost with file {file.path}")
        return tuple(kept)

    def rows_of(self, table: str, files: Sequence[dict[str, Any]], removed: Collection[int]) -> tuple[str, ...]:
        """Return the paths of damaged files to give up; record their rows as lost unless their epochs are removed."""
        for file in files:
            first, last = file.get("min.epoch"), file.get("max.epoch")
            if first is None or last is None or not {*range(first, last + 1)} <= {*removed}:
                span = f"epochs {first} to {last}" if first != last else f"epoch {first}"
                self.add(
                    f"{file['num_records']} rows of {span} of table {self._tables.path(table)} are lost with file "
                    f"{file['path']}, which can't be read"
                )
        return tuple(file["path"] for file in files)


def damaged_files(tables: PipelineTables) -> dict[str, list[dict[str, Any]]]:
    """Return the active files that can't be read, by published table. This reads every active file."""
    damaged = {}
    for table in PUBLISHED:
        handle = tables.open(table)
        footers = damaged_footers(tables, table, handle)
        damaged[table] = [
            file for file in active_files(handle) if file["path"] in footers or _fault(tables, table, file["path"])
        ]
    return damaged


def _fault(tables: PipelineTables, table: str, file: str) -> str | None:
    """Return the reason why a file can't be read, or None if it can."""
    try:
        tables.warehouse.read_files(tables.path(table), [file], arrow_schema(tables.open(table)))
    except Refused as error:
        return str(error)
    return None


@dataclass(frozen=True, slots=True)
class Head:
    """The newest epoch that any table of a pipeline has. Readers see the tables at this epoch.

    The snapshot is None if it can't be read or is lost. `line` and `run_ids` are its ancestors and the runs of epochs,
    as far as the logs and table epochs record them. `is_trusted` is True if the head of table state is this epoch, as
    tidegate committed it.
    """

    snapshot: Snapshot | None
    epoch: int
    timeline: int
    line: Line
    run_ids: dict[int, str] = field(default_factory=dict)
    is_trusted: bool = False

    @classmethod
    def of(cls, tables: PipelineTables) -> Head | None:
        """Return the head of a pipeline, or None if the pipeline has not published anything yet.

        Raises:
            Refused: a table can't be opened, or is another pipeline's.
        """
        entries = snapshots_by_epoch(tables)
        at_head = _readable(tables, None)
        at_head_epoch = 0 if at_head is None else at_head.manifest.epoch
        newest = max([*newest_epochs(tables).values(), *entries, at_head_epoch], default=0)
        if not newest:
            return None
        ancestry = _Ancestry.of(tables, entries)
        snapshot = at_head if at_head_epoch == newest else None
        if snapshot is None and newest in entries:
            snapshot = _readable(tables, entries[newest].version)
        line = ancestry.line(newest) if snapshot is None else snapshot.manifest.line
        is_trusted = snapshot is not None and snapshot is at_head and find_change(tables, state.NAME) is None
        return cls(snapshot, newest, ancestry.timeline, line, ancestry.run_ids, is_trusted)


def is_made_here(tables: PipelineTables, head: Head, target: Snapshot) -> bool:
    """Return True if this pipeline created the snapshot in this warehouse, or in the one that this is a copy of."""
    then = target.manifest
    if target.path == tables.path(state.NAME) or head.run_ids.get(then.epoch) == then.run_id:
        return True
    return origin_of(tables.warehouse, target).table_id == str(tables.newest(state.NAME).metadata().id)


def fork(tables: PipelineTables, head: Head, target: Snapshot, losses: Losses) -> int:
    """Return the newest epoch that a snapshot and the published tables share; 0 if they share none."""
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
            f"the newest epoch of {tables.pipeline}, {head.epoch}, can't be read, so tidegate can't tell where the "
            f"timeline of epoch {then.epoch} branched off: a restore would remove all published rows"
        )
    return shared


def left_line(tables: PipelineTables, head: Head, target: Snapshot, parted: int, losses: Losses) -> list[Manifest]:
    """Return the manifests of the epochs after the fork up to a snapshot, whose published rows reappear with it."""
    then = target.manifest
    if not is_made_here(tables, head, target):
        return []
    wanted = [epoch for first, last in then.line for epoch in range(first, last + 1) if epoch > parted]
    theirs = _run_ids(tables, target)
    entries = {
        epoch: entry
        for epoch, entry in snapshots_by_epoch(tables).items()
        if theirs.get(epoch, entry.manifest["run_id"]) == entry.manifest["run_id"]
    }
    read = {epoch: _readable(tables, entries[epoch].version) for epoch in wanted if epoch in entries}
    manifests = {epoch: snapshot.manifest for epoch, snapshot in read.items() if snapshot is not None}
    manifests[then.epoch] = then
    if gone := [epoch for epoch in wanted if epoch not in manifests]:
        named = f"epoch {gone[0]}" if len(gone) == 1 else f"epochs {gone[0]} to {gone[-1]}"
        back = max((epoch for epoch in entries if epoch <= parted and is_on(head.line, epoch)), default=None)
        instead = "" if back is None else f" (epoch {back} can be restored without loss)"
        losses.add(
            f"epoch {then.epoch} of {tables.pipeline} is on a timeline that was abandoned at epoch {parted}, and the "
            f"rows that its {named} published are no longer retained{instead}"
        )
    return [manifests[epoch] for epoch in wanted if epoch in manifests]


def files_of(left: Sequence[Manifest], table: str, parted: int) -> list[DataFile]:
    """Return the files that the epochs of a lineage published to a table after the fork, each once.

    A restore also lists files of other epochs of the lineage. The restore's entry for such a file is used only if the
    manifest of its own epoch is not retained.
    """
    by_path = {
        file.path: file for manifest in left if manifest.kind != "restore" for file in manifest.publish[table].files
    }
    retained = {manifest.epoch for manifest in left}
    for manifest in left:
        for file in manifest.publish[table].files if manifest.kind == "restore" else ():
            epoch = epoch_of(file.path)
            if epoch is not None and epoch > parted and epoch not in retained:
                by_path.setdefault(file.path, file)
    return list(by_path.values())


def pruned_by(tables: PipelineTables) -> dict[int, dict[str, tuple[int, ...]]]:
    """Return a pipeline's prunes on any lineage: for each prune's epoch, the epochs whose rows each table lost.

    A prune is left out if its snapshot is no longer retained, because nothing else records the removed rows.
    """
    prunes: dict[int, dict[str, tuple[int, ...]]] = {
        row["epoch"]: {} for row in _epoch_rows(tables) if row["kind"] == "prune"
    }
    for entry in list_snapshots(tables):
        if entry.manifest["kind"] == "prune" and (snapshot := _readable(tables, entry.version)) is not None:
            work = {table: publish.remove_epochs for table, publish in snapshot.manifest.publish.items()}
            prunes[snapshot.manifest.epoch] = {table: gone for table, gone in work.items() if gone}
    return prunes


def is_kept(tables: PipelineTables, table: str, file: DataFile, pruned: int) -> bool:
    """Return True if a file to bring back is newer than the newest pruned epoch, or if a prune spared its rows."""
    epoch = epoch_of(file.path)
    return epoch is None or epoch > pruned or (table == rejects.NAME and _lies_ahead(tables, file))


def _lies_ahead(tables: PipelineTables, file: DataFile) -> bool:
    """Return True if a file has a row that was rejected because its time was ahead, and False if it is unreadable."""
    path, schema = tables.path(rejects.NAME), arrow_schema(tables.newest(rejects.NAME))
    try:
        rows = tables.warehouse.read_files(path, [file.path], schema, ["reason"])
    except Refused:
        return False
    return rejects.AHEAD in rows["reason"].to_pylist()


def removed_on(left: Sequence[Manifest], table: str, line: Line) -> set[int]:
    """Return the epochs whose rows a lineage removed from a table: the replaced epochs, and its own pruned epochs."""
    return {
        epoch
        for manifest in left
        for epoch in manifest.publish[table].remove_epochs
        if manifest.kind == "prune" or not is_on(line, epoch)
    }


def erasing_epochs(tables: PipelineTables) -> set[int]:
    """Return the epochs that removed rows on a user's request, if table epochs records them."""
    return {row["epoch"] for row in _epoch_rows(tables) if row["kind"] in epochs.ERASING}


def forgotten_marks(tables: PipelineTables) -> dict[int, frozenset[str] | None]:
    """Return the marks of the keys that each `forget` erased, by epoch, newest first; None if they are unknown.

    Epochs that a restore has abandoned are included, because a restore never brings back a forgotten key. The marks are
    in the epoch's manifest, and are lost with its snapshot.
    """
    forgets = read_table(tables.warehouse, tables.open(epochs.NAME), ["epoch"], pc.field("kind") == "forget")
    marks = dict[int, frozenset[str] | None].fromkeys(sorted(set(forgets["epoch"].to_pylist()), reverse=True))
    for entry in list_snapshots(tables) if marks else ():
        if entry.epoch in marks and (snapshot := read_snapshot(tables, entry.version)) is not None:
            published = snapshot.manifest.publish.values()
            marks[entry.epoch] = frozenset(mark for work in published for mark in work.forgotten)
    return marks


def epoch_rows(tables: PipelineTables, left: Sequence[Manifest], epoch: int) -> tuple[DataFile, ...]:
    """Write the rows of table epochs for a restored lineage; return the file that the restore publishes."""
    erasures = erasing_epochs(tables)
    left = [manifest for manifest in left if manifest.epoch not in erasures]
    if not left:
        return ()
    schema = arrow_schema(tables.newest(epochs.NAME))
    rows = pa.concat_tables(epoch_row(manifest, schema) for manifest in left)
    return write_rows(tables.warehouse, tables.path(epochs.NAME), f"{epochs.NAME}-{epoch:06d}", rows)


def undone_changes(tables: PipelineTables, head: Head, parted: int, losses: Losses) -> list[Manifest]:
    """Return the manifests of the `change` epochs that a restore undoes: those of the head's lineage.

    The rows that they removed from tables late and rejects reappear.
    """
    entries = snapshots_by_epoch(tables)
    manifests = []
    for row in _epoch_rows(tables):
        epoch = row["epoch"]
        if row["kind"] != "change" or epoch <= parted or not is_on(head.line, epoch):
            continue
        snapshot = _readable(tables, entries[epoch].version) if epoch in entries else None
        if snapshot is not None:
            manifests.append(snapshot.manifest)
        elif row.get(epochs.DEPARTED):
            losses.add(
                f"rows that epoch {epoch} removed from tables late and rejects of {tables.pipeline}, because they were "
                "deleted from the source, are no longer retained"
            )
    return manifests


def rows_of_departed(
    tables: PipelineTables,
    changes: Sequence[Manifest],
    table: str,
    work: Publish,
    prunes: Mapping[int, Mapping[str, Collection[int]]],
    losses: Losses,
    epoch: int,
) -> tuple[DataFile, ...]:
    """Write the rows that return to a table because a restore undoes their deletion; return the file.

    `work` has the other changes of the restore to the table, and `prunes` the epochs whose rows each prune removed from
    each table.
    """
    published = newest_epochs(tables)[table]
    listed = [each.file for change in changes if change.epoch <= published for each in change.publish[table].departed]
    files = losses.readable(table, listed)
    if not files:
        return ()
    schema, path = arrow_schema(tables.newest(table)), tables.path(table)
    rows = tables.warehouse.read_files(path, [file.path for file in files], schema)
    pruned = {number for prune in prunes.values() for number in prune.get(table, ())}
    gone = pa.array(sorted({*work.remove_epochs, *work.stale_epochs, *pruned}), pa.int64())
    stay = rows.filter(pc.invert(pc.is_in(rows["epoch"], value_set=gone)))
    rows = with_marks(table, stay, (), work)
    return write_rows(tables.warehouse, path, f"{table}-{epoch:06d}", rows)


def restore_completely(tables: PipelineTables, entries: Collection[SnapshotEntry]) -> dict[int, bool]:
    """Return for each listed epoch whether restoring it would bring back everything that was published up to it.

    It would if every epoch between it and the head's lineage is retained.
    """
    head = _readable(tables, None) if entries else None
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


def _readable(tables: PipelineTables, version: int | None) -> Snapshot | None:
    """Return the snapshot at a version of table state (None: at its head), or None if it can't be read."""
    try:
        return read_snapshot(tables, version)
    except OtherPipeline:
        raise
    except Refused:
        return None


@dataclass(frozen=True, slots=True)
class _Ancestry:
    """Parent, run id and timeline of epochs, as the logs and table epochs record them."""

    parents: dict[int, int | None]
    run_ids: dict[int, str]
    timeline: int

    @classmethod
    def of(cls, tables: PipelineTables, entries: dict[int, SnapshotEntry]) -> _Ancestry:
        records = [entry.manifest for entry in entries.values()]
        for table in PUBLISHED:
            if tables.warehouse.exists(tables.path(table)):
                record = newest_record(tables.warehouse, tables.newest(table)).get("tidegate", {})
                records += [record] if "parent" in record else []
        # Later records of an epoch overwrite earlier ones, so the logs take precedence over table epochs.
        records = [*_epoch_rows(tables), *records]
        return cls(
            {record["epoch"]: record["parent"] for record in records},
            {record["epoch"]: record["run_id"] for record in records if "run_id" in record},
            max((record["timeline"] for record in records), default=0),
        )

    def line(self, epoch: int) -> Line:
        """Return an epoch and its ancestors, back to the first one without a record."""
        ancestors: list[int] = []
        following: int | None = epoch
        while following is not None and following in self.parents:
            ancestors.append(following)
            following = self.parents[following]
        return tuple((number, number) for number in reversed(ancestors))


def _epoch_rows(tables: PipelineTables) -> list[dict[str, Any]]:
    if not tables.warehouse.exists(tables.path(epochs.NAME)):
        return []
    try:
        handle = tables.newest(epochs.NAME)
        names = ["epoch", "parent", "timeline", "run_id", "kind", epochs.DEPARTED]
        rows = read_table(tables.warehouse, handle, [name for name in names if name in arrow_schema(handle).names])
    except Refused:
        # A file of the table is damaged, so only the logs are used.
        return []
    records: list[dict[str, Any]] = rows.to_pylist()
    return records

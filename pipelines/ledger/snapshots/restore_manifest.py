"""The manifest of a restore: what leaves the lineage, what returns to it, and what stays withdrawn.

A restore turns from the lineage of the head to that of its target. Both have the same epochs up to the fork::

    1 ... fork --- leaving: fork + 1 ... newest     removed, or marked as stale
               `-- returning: ... target            published again; none if the target is an ancestor
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import epochs, late, rejects
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import DataFile, Manifest, Publish, is_on
from tidegate.pipelines.ledger.snapshots.erased import erasing_epochs, is_kept, pruned_epochs
from tidegate.pipelines.ledger.snapshots.head import Snapshot, newest_epochs, snapshots_by_epoch
from tidegate.pipelines.ledger.snapshots.lineages import fork_from, returning_manifests
from tidegate.pipelines.ledger.snapshots.publish import epoch_row
from tidegate.pipelines.ledger.snapshots.published_head import Head, readable_snapshot, recorded_epochs
from tidegate.pipelines.ledger.snapshots.stages import NewEpoch, Published
from tidegate.pipelines.ledger.tables.files import epoch_of, write_rows
from tidegate.pipelines.ledger.tables.late_rows import with_marks
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.storage.warehouse import arrow_schema
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class Turn:
    """The turn from the lineage of the head to that of a target.

    Args:
        tables: the pipeline's tables.
        head: the newest epoch that any table has; None for a pipeline that has published nothing.
        target: manifest of the snapshot that is restored.
        fork: newest epoch that both lineages have; 0 if they share none.
        returning: manifests of the target's lineage after the fork, oldest first.
        erasing: epochs, on any lineage, that erased rows on a user's request.
        pruned: by table, the epochs whose rows a prune erased, on any lineage.
    """

    tables: PipelineTables
    head: Head | None
    target: Manifest
    fork: int
    returning: tuple[Manifest, ...]
    erasing: frozenset[int]
    pruned: Mapping[str, frozenset[int]]

    @classmethod
    def of(cls, tables: PipelineTables, head: Head | None, target: Snapshot, unpublished: int) -> Turn:
        """Compare two lineages. `unpublished` is the first epoch that can't be published completely, or 0.

        Raises:
            Refused: nothing tells where the lineages fork, or the snapshot of a returning epoch is no longer retained.
        """
        fork = 0 if head is None else fork_from(tables, head, target)
        if unpublished:
            # The published part of it is removed, and returns with the lineage.
            fork = min(fork, unpublished - 1)
        returning = () if head is None else tuple(returning_manifests(tables, head, target, fork))
        return cls(tables, head, target.manifest, fork, returning, erasing_epochs(tables), pruned_epochs(tables))

    @property
    def leaving(self) -> tuple[int, ...]:
        """Epochs of the head's lineage after the fork."""
        return () if self.head is None else tuple(range(self.fork + 1, self.head.epoch + 1))

    @property
    def epoch(self) -> int:
        """Number of the restore's own epoch."""
        return max(0 if self.head is None else self.head.epoch, self.target.epoch) + 1

    @property
    def timeline(self) -> int:
        """Timeline that the restore begins."""
        return max(0 if self.head is None else self.head.timeline, self.target.timeline) + 1


def restored_epoch(turn: Turn, now: Millis, keep_stale: bool) -> NewEpoch:
    """Return the epoch of the restore, after writing the rows that it adds.

    With `keep_stale`, leaving rows are marked as stale instead of being removed.

    Raises:
        Refused: rows that return are lost.
    """
    works = {}
    for table in PUBLISHED:
        leaving, work = leaving_epochs(turn, table), withdrawn(turn, table)
        removed = {*work.remove_epochs, *(() if keep_stale else leaving)}
        stale = leaving if keep_stale else set()
        work = work.model_copy(update={"remove_epochs": tuple(sorted(removed)), "stale_epochs": tuple(sorted(stale))})
        works[table] = work.model_copy(update={"files": returning_files(turn, table, work)})
    quiet = NewEpoch.without_rows("restore", turn.target, now)
    return replace(
        quiet,
        epoch=turn.epoch,
        timeline=turn.timeline,
        published=Published(
            files={table: work.files for table, work in works.items()}, reopened=works[late.NAME].reopened
        ),
        withdrawn=replace(
            quiet.withdrawn,
            epochs={table: work.remove_epochs for table, work in works.items()},
            stale_epochs={table: work.stale_epochs for table, work in works.items()},
            deleted={table: work.deleted for table, work in works.items()},
            forgotten=works[late.NAME].forgotten,
        ),
    )


def leaving_epochs(turn: Turn, table: str) -> set[int]:
    """Return the epochs whose rows leave a table.

    Epochs that erased rows on a user's request keep their rows in table epochs, which explain what is missing.
    """
    return {*turn.leaving} - (turn.erasing if table == epochs.NAME else set())


def withdrawn(turn: Turn, table: str) -> Publish:
    """Return what the returning epochs withdrew from a table: the restore withdraws it again.

    These are rows of replaced and of pruned epochs, of forgotten keys, late rows that became reopened, and rows that
    were deleted from the source.
    """
    removed = {
        epoch
        for manifest in turn.returning
        for epoch in manifest.publish[table].remove_epochs
        if manifest.kind == "prune" or not is_on(turn.target.line, epoch)
    }
    if table == epochs.NAME:
        removed -= turn.erasing
    works = [manifest.publish[table] for manifest in turn.returning]
    changes = [manifest.publish[table] for manifest in turn.returning if manifest.kind == "change"]
    return Publish(
        remove_epochs=tuple(removed),
        reopened=tuple(reopening for work in works for reopening in work.reopened),
        forgotten=tuple(mark for work in works for mark in work.forgotten),
        deleted=tuple(each for work in changes for each in work.deleted),
    )


def returning_files(turn: Turn, table: str, work: Publish) -> tuple[DataFile, ...]:
    """Return the files that a restore adds to a table. `work` has the restore's other changes to it.

    Raises:
        Refused: a file is missing.
    """
    if table == epochs.NAME:
        return _epoch_rows(turn)
    pruned = max(turn.pruned[table], default=0)
    files = [file for file in _published_files(turn, table) if is_kept(turn.tables, table, file, pruned)]
    rows = _undeleted_rows(turn, table, work) if table in (late.NAME, rejects.NAME) else ()
    return (*_present(turn.tables, table, files), *rows)


def _present(tables: PipelineTables, table: str, files: Sequence[DataFile]) -> tuple[DataFile, ...]:
    """Return files of a table; refuse if one is missing or has a different size."""
    path = tables.path(table)
    sizes = tables.warehouse.sizes(path, [file.path for file in files])
    if lost := [file for file in files if sizes[file.path] != file.size]:
        raise Refused(
            f"{sum(file.rows for file in lost)} rows of table {path} are lost with file {lost[0].path} ({len(lost)} "
            "such), so the snapshot can't be restored",
            *tables.remedies(table),
        )
    return tuple(files)


def _published_files(turn: Turn, table: str) -> list[DataFile]:
    """Return the files that the returning epochs published to a table, each once.

    A restore also lists files of other epochs of the lineage. The restore's entry for such a file is used only if the
    manifest of its own epoch is not retained.
    """
    restores = [manifest for manifest in turn.returning if manifest.kind == "restore"]
    own = [manifest for manifest in turn.returning if manifest.kind != "restore"]
    by_path = {file.path: file for manifest in own for file in manifest.publish[table].files}
    retained = {manifest.epoch for manifest in turn.returning}
    for manifest in restores:
        for file in manifest.publish[table].files:
            epoch = epoch_of(file.path)
            if epoch is not None and epoch > turn.fork and epoch not in retained:
                by_path.setdefault(file.path, file)
    return list(by_path.values())


def _epoch_rows(turn: Turn) -> tuple[DataFile, ...]:
    """Write the rows of table epochs for the returning epochs; return the file."""
    returning = [manifest for manifest in turn.returning if manifest.epoch not in turn.erasing]
    if not returning:
        return ()
    schema = arrow_schema(turn.tables.newest(epochs.NAME))
    rows = pa.concat_tables(epoch_row(manifest, schema) for manifest in returning)
    return _written(turn, epochs.NAME, rows)


def _undeleted_rows(turn: Turn, table: str, work: Publish) -> tuple[DataFile, ...]:
    """Write the rows that return to a table because the epoch that deleted them leaves; return the file."""
    tables, published = turn.tables, newest_epochs(turn.tables)[table]
    changes = [change for change in _leaving_changes(turn) if change.epoch <= published]
    files = _present(tables, table, [each.file for change in changes for each in change.publish[table].deleted])
    if not files:
        return ()
    schema, path = arrow_schema(tables.newest(table)), tables.path(table)
    rows = tables.warehouse.read_files(path, [file.path for file in files], schema)
    gone = pa.array(sorted({*work.remove_epochs, *work.stale_epochs, *turn.pruned[table]}), pa.int64())
    stay = rows.filter(pc.invert(pc.is_in(rows["epoch"], value_set=gone)))
    return _written(turn, table, with_marks(table, stay, (), work))


def _leaving_changes(turn: Turn) -> list[Manifest]:
    """Return the manifests of the leaving `change` epochs, which removed rows from tables late and rejects.

    Raises:
        Refused: the snapshot of such an epoch is no longer retained.
    """
    tables, entries, manifests = turn.tables, snapshots_by_epoch(turn.tables), []
    for row in [] if turn.head is None else recorded_epochs(tables):
        epoch = row["epoch"]
        if row["kind"] != "change" or epoch <= turn.fork or turn.head is None or not is_on(turn.head.line, epoch):
            continue
        snapshot = readable_snapshot(tables, entries[epoch].version) if epoch in entries else None
        if snapshot is not None:
            manifests.append(snapshot.manifest)
        elif row.get(epochs.DELETED):
            raise Refused(
                f"rows that epoch {epoch} removed from tables late and rejects of {tables.pipeline}, because they were "
                "deleted from the source, are no longer retained",
                *tables.remedies(late.NAME),
            )
    return manifests


def _written(turn: Turn, table: str, rows: pa.Table) -> tuple[DataFile, ...]:
    return write_rows(turn.tables.warehouse, turn.tables.path(table), f"{table}-{turn.epoch:06d}", rows)

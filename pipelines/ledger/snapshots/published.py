"""The newest snapshot whose epoch every table has. Results, sensors, checks and reports use it.

A driver commits an epoch to table `state` before it publishes the results: usually by milliseconds, or after a crash
until the pipeline's next run. In between, the epoch's watermark says nothing about the published results. Table
`epochs` is published last, so an epoch in it is in every table.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidegate.pipelines.definition import epochs, results, state
from tidegate.pipelines.errors import Refused, TidegateError, UsageError
from tidegate.pipelines.ledger.manifest import Manifest, is_on, of_line
from tidegate.pipelines.ledger.snapshots.head import Snapshot, read_snapshot, require_snapshot, snapshots_by_epoch
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.storage.warehouse import Warehouse, active_files, arrow_schema, path_of, read_table
from tidegate.windowing.time import Millis


def published_epoch(tables: PipelineTables) -> int:
    """Return the newest epoch that every table has, or 0 before the first."""
    if not tables.warehouse.exists(tables.path(epochs.NAME)):
        return 0
    return tables.newest(epochs.NAME).transaction_version(tables.application) or 0


def newest_published(
    tables: PipelineTables, head: Snapshot | None = None, published: int | None = None
) -> Snapshot | None:
    """Return the snapshot of the newest epoch that every table has, or None before the first.

    A caller that has already read the head, or that epoch's number too, passes it.
    """
    snapshot = read_snapshot(tables) if head is None else head
    if snapshot is None:
        return None
    published = published_epoch(tables) if published is None else published
    while snapshot is not None and snapshot.manifest.epoch > published:
        if published == 0 or snapshot.version == 0:
            return None
        # A version that only added a column to the table holds the same snapshot as the version before it.
        snapshot = read_snapshot(tables, snapshot.version - 1)
    return snapshot


def settled_watermark(snapshot: Snapshot, head: Snapshot) -> Millis:
    """Return the watermark up to which the published results are complete, int64 epoch milliseconds.

    While a restore or a repeated interval is being published, it removes results beyond its own watermark. So the lower
    watermark counts.
    """
    return min(snapshot.manifest.watermark, head.manifest.watermark)


def final_through(snapshot: Snapshot, head: Snapshot) -> Millis:
    """Return the time through which published windows are final, by `final_at`; see `Manifest.final_through`."""
    return min(snapshot.manifest.final_through, head.manifest.final_through)


def require_published(tables: PipelineTables, head: Snapshot, published: int | None = None) -> Snapshot:
    """Return the result of `newest_published`; raise Refused if there is none yet."""
    snapshot = newest_published(tables, head, published)
    if snapshot is None:
        raise Refused(
            f"epoch {head.manifest.epoch} of {tables.pipeline} is not published yet, and it is the first one: the next "
            "run of the pipeline publishes it"
        )
    return snapshot


def require_settled(tables: PipelineTables) -> Snapshot:
    """Return the snapshot of the newest epoch that every table has.

    Raises:
        Refused: there is none yet.
        TidegateError: an epoch that removes rows is being published, so some tables still have these rows.
    """
    head, published = require_snapshot(tables), published_epoch(tables)
    _check_settled(head.manifest, published)
    return require_published(tables, head, published)


def newest_epoch_rows(
    warehouse: Warehouse, handle: DeltaTable, limit: int | None, with_stale: bool = False
) -> pa.Table:
    """Return the rows of the newest epochs, newest first. Files with only older epochs are not read.

    With `with_stale`, they include epochs whose results were replaced.
    """
    path, schema = path_of(handle), arrow_schema(handle)
    files = sorted(active_files(handle), key=lambda file: -file["max.epoch"])
    wanted = None if with_stale else ~pc.field("stale")
    newest_rows = schema.empty_table()
    for file in files:
        is_full = limit is not None and len(newest_rows) == limit
        if is_full and file["max.epoch"] < pc.min(newest_rows["epoch"]).as_py():
            break
        # Read only the numbers first: a file may hold a million epochs, and the caller may want twenty.
        numbers = warehouse.read_files(path, [file["path"]], schema, ["epoch"], wanted)["epoch"]
        numbers = pa.table([numbers], ["epoch"]).sort_by([("epoch", "descending")])["epoch"]
        chosen = numbers.slice(0, limit).combine_chunks()
        is_chosen = pc.field("epoch").isin(chosen) if wanted is None else pc.field("epoch").isin(chosen) & wanted
        rows = warehouse.read_files(path, [file["path"]], schema, None, is_chosen)
        newest_rows = pa.concat_tables([newest_rows, rows]).sort_by([("epoch", "descending")]).slice(0, limit)
    return newest_rows


def is_forgotten_since(warehouse: Warehouse, handle: DeltaTable, epoch: int) -> bool:
    """Return True if a key was forgotten after an epoch, so that data read as of that epoch may contain the key."""
    where = (pc.field("kind") == "forget") & (pc.field("epoch") > epoch)
    return bool(len(read_table(warehouse, handle, ["epoch"], where)))


@dataclass(frozen=True)
class PinnedEpoch:
    """An epoch and the tables that hold its rows, each opened at one version but not yet read.

    `epochs` has a row for each epoch of the snapshot's lineage, ordered by number. `erasing` has the rows of the epochs
    that removed rows on a user's request. These may be older or newer than this epoch, or outside its lineage, because
    each may have removed rows of this lineage.
    """

    warehouse: Warehouse
    snapshot: Snapshot
    handles: dict[str, DeltaTable]
    epochs: pa.Table
    erasing: pa.Table

    @property
    def versions(self) -> dict[str, int]:
        """Version of each table."""
        opened = {name: handle.version() for name, handle in self.handles.items()}
        return {state.NAME: self.snapshot.version, **opened}

    @property
    def current(self) -> pc.Expression:
        """Filter for the rows that belong to the epoch or to an earlier one and are not stale."""
        return results.current(self.snapshot.manifest.epoch)

    def read(self, table: str) -> pa.Table:
        """Return the rows of a table that belong to the epoch or to an earlier one and are not stale."""
        return read_table(self.warehouse, self.handles[table], where=self.current)

    def final_windows(self) -> pa.Table:
        """Return the newest panes of windows that can no longer change, without retracted windows."""
        manifest = self.snapshot.manifest
        newest = results.latest(self.read(results.NAME), tuple(manifest.schemas.key))
        return results.final(newest, manifest.final_through)


def pin_epoch(tables: PipelineTables, epoch: int | None = None) -> PinnedEpoch:
    """Open the tables of a pipeline as of an epoch.

    By default it is the newest published one, because a driver may be about to publish another.

    Raises:
        UsageError: the epoch has no snapshot.
        Refused: the epoch is not published yet, a later restore or re-run replaced it, or its row in table `epochs` is
            lost.
        TidegateError: an epoch that removes rows is being published, so some tables still have these rows.
    """
    head, published = require_snapshot(tables), published_epoch(tables)
    _check_settled(head.manifest, published)
    snapshot = newest_published(tables, head, published) or head if epoch is None else _of_epoch(tables, epoch)
    manifest = snapshot.manifest
    if manifest.epoch > published:
        raise Refused(
            f"epoch {manifest.epoch} of {manifest.pipeline} is not published yet: the next run of the pipeline "
            "publishes it"
        )
    handles = {name: tables.newest(name) for name in PUBLISHED}
    of_epochs = handles[epochs.NAME]
    rows = read_table(tables.warehouse, of_epochs, where=of_line(manifest.line)).sort_by("epoch")
    was_left = manifest.kind == "prune" and not is_on(head.manifest.line, manifest.epoch)
    if was_left or manifest.epoch not in rows["epoch"].to_pylist():
        if is_on(head.manifest.line, manifest.epoch):
            raise Refused(
                f"table epochs of {manifest.pipeline} lacks the row of epoch {manifest.epoch}, which was published: "
                "another program removed it",
                Remedy(Act.RESTORE, manifest.pipeline, "latest"),
            )
        raise Refused(
            f"epoch {manifest.epoch} of {manifest.pipeline} was replaced: a later restore or re-run began at an "
            "older snapshot. Give the newest epoch, or restore this one first"
        )
    erasing = read_table(tables.warehouse, of_epochs, where=pc.field("kind").isin(sorted(epochs.ERASING)))
    return PinnedEpoch(tables.warehouse, snapshot, handles, rows, erasing)


def _check_settled(manifest: Manifest, published: int) -> None:
    takes_away = any(work.remove_epochs or work.stale_epochs or work.forgotten for work in manifest.publish.values())
    if takes_away and manifest.epoch > published:
        raise TidegateError(
            f"epoch {manifest.epoch} of {manifest.pipeline} ({manifest.kind}) is removing rows right now: try again "
            "once it is published. If its driver died, the next run of the pipeline publishes it"
        )


def _of_epoch(tables: PipelineTables, epoch: int) -> Snapshot:
    entries = snapshots_by_epoch(tables)
    if epoch not in entries:
        raise UsageError(f"--epoch {epoch}: {tables.pipeline} has snapshots of epochs {sorted(entries)}")
    return require_snapshot(tables, entries[epoch].version)

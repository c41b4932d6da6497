"""A pipeline's tables as of one epoch, whatever was published since: what checks and reports look at."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidegate.pipelines.errors import Refused, TidegateError, UsageError
from tidegate.pipelines.manifest import Manifest, is_on
from tidegate.pipelines.snapshots.contents import state_rows
from tidegate.pipelines.snapshots.head import Snapshot, list_snapshots, require_snapshot
from tidegate.pipelines.snapshots.published import newest_published, published_epoch
from tidegate.pipelines.storage import read_table
from tidegate.pipelines.tables import epochs, late, rejects, results, state
from tidegate.pipelines.tables.pipeline_tables import PUBLISHED, PipelineTables


@dataclass(frozen=True)
class PinnedTables:
    """The rows of an epoch and of those before it that still count.

    Args:
        snapshot: of the epoch.
        versions: of each table, that it was read at.
        results: every pane.
        late: rows that came too late.
        rejects: rows that can't be used.
        epochs: one row an epoch of the snapshot's line, by number.
        state: rows of the snapshot.
    """

    snapshot: Snapshot
    versions: dict[str, int]
    results: pa.Table
    late: pa.Table
    rejects: pa.Table
    epochs: pa.Table
    state: pa.Table

    @property
    def manifest(self) -> Manifest:
        """Of the epoch's snapshot."""
        return self.snapshot.manifest

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns."""
        return tuple(self.manifest.schemas.key)

    def latest_windows(self) -> pa.Table:
        """The newest pane of each window that is not withdrawn."""
        return results.latest(self.results, self.key)

    def final_windows(self) -> pa.Table:
        """Of these, the ones that nothing can change any more."""
        return results.final(self.latest_windows(), self.manifest.watermark)


@dataclass(frozen=True)
class PinnedEpoch:
    """An epoch and the tables that hold its rows, opened at one version each and not read yet.

    Args:
        snapshot: of the epoch.
        handles: the published tables.
        epochs: one row an epoch of the snapshot's line, by number.
        erasing: rows of table epochs in which rows were taken away on purpose: before the epoch, after it or off its
            line, for what was taken away of an epoch that counts is gone.
    """

    snapshot: Snapshot
    handles: dict[str, DeltaTable]
    epochs: pa.Table
    erasing: pa.Table

    @property
    def versions(self) -> dict[str, int]:
        """The version of each table."""
        opened = {name: handle.version() for name, handle in self.handles.items()}
        return {state.NAME: self.snapshot.version, **opened}

    @property
    def current(self) -> pc.Expression:
        """The rows that count as of the epoch."""
        return (pc.field("epoch") <= self.snapshot.manifest.epoch) & ~pc.field("stale")


def pin_epoch(tables: PipelineTables, epoch: int | None = None) -> PinnedEpoch:
    """The tables of a pipeline as of an epoch, for who reads them in parts. Arguments and errors as `pin_tables`."""
    head, published = require_snapshot(tables), published_epoch(tables)
    _check_settled(head.manifest, published)
    snapshot = newest_published(tables, head) or head if epoch is None else _of_epoch(tables, epoch)
    manifest = snapshot.manifest
    if manifest.epoch > published:
        raise Refused(
            f"epoch {manifest.epoch} of {manifest.pipeline} is not published yet: the next run of it will do so"
        )
    handles = {name: tables.open(name) for name in PUBLISHED}
    pinned = PinnedEpoch(snapshot, handles, epochs.SCHEMA.empty_table(), epochs.SCHEMA.empty_table())
    rows = read_table(tables.warehouse, handles[epochs.NAME], where=pinned.current).sort_by("epoch")
    is_on_line = pa.array([is_on(manifest.line, number) for number in rows["epoch"].to_pylist()], pa.bool_())
    was_left = manifest.kind == "prune" and not is_on(head.manifest.line, manifest.epoch)
    if was_left or manifest.epoch not in rows["epoch"].to_pylist():
        raise Refused(
            f"epoch {manifest.epoch} of {manifest.pipeline} was replaced: a later restore or re-run began before it. "
            "Look at the newest epoch, or restore that one first"
        )
    erasing = read_table(tables.warehouse, handles[epochs.NAME], where=pc.field("kind").isin(sorted(epochs.ERASING)))
    return replace(pinned, epochs=rows.filter(is_on_line), erasing=erasing)


def pin_tables(tables: PipelineTables, epoch: int | None = None) -> PinnedTables:
    """The tables of a pipeline as of an epoch.

    Args:
        tables: of the pipeline.
        epoch: None takes the newest that is published: a driver may be about to publish another.

    Raises:
        UsageError: there is no snapshot of that epoch.
        Refused: it is not published yet, or was replaced by a later restore or re-run.
        TidegateError: the newest is being published, and takes rows away: some tables have them still.
    """
    pinned = pin_epoch(tables, epoch)
    read = {
        name: read_table(tables.warehouse, pinned.handles[name], where=pinned.current)
        for name in (results.NAME, late.NAME, rejects.NAME)
    }
    return PinnedTables(
        pinned.snapshot,
        pinned.versions,
        read[results.NAME],
        read[late.NAME],
        read[rejects.NAME],
        pinned.epochs,
        state_rows(tables.warehouse, pinned.snapshot),
    )


def _check_settled(manifest: Manifest, published: int) -> None:
    takes_away = any(work.remove_epochs or work.stale_epochs or work.forget_keys for work in manifest.publish.values())
    if takes_away and manifest.epoch > published:
        raise TidegateError(
            f"epoch {manifest.epoch} of {manifest.pipeline} ({manifest.kind}) is taking rows away at this moment: try "
            "again once it is published; if its driver died, the next run of anything that drives the pipeline does so"
        )


def _of_epoch(tables: PipelineTables, epoch: int) -> Snapshot:
    known = {entry.manifest["epoch"]: entry.version for entry in reversed(list_snapshots(tables))}
    if epoch not in known:
        raise UsageError(f"--epoch {epoch}: {tables.pipeline} has snapshots of epochs {sorted(known)}")
    return require_snapshot(tables, known[epoch])

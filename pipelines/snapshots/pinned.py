"""A pipeline's tables as of one epoch, without what was published since. Checks and reports read these."""

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
    """The rows that an epoch and the epochs before it published and that are not stale.

    Args:
        snapshot: snapshot of the epoch.
        versions: by table, the version that was read.
        results: every pane.
        late: rows that came too late.
        rejects: rejected rows.
        epochs: one row for each epoch of the snapshot's line, ordered by number.
        state: state rows of the snapshot.
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
        """Manifest of the epoch."""
        return self.snapshot.manifest

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return tuple(self.manifest.schemas.key)

    def latest_windows(self) -> pa.Table:
        """Return the newest pane of each window, without retracted windows."""
        return results.latest(self.results, self.key)

    def final_windows(self) -> pa.Table:
        """Return the newest panes of windows that no later event can change."""
        return results.final(self.latest_windows(), self.manifest.final_through)


@dataclass(frozen=True)
class PinnedEpoch:
    """An epoch and the tables that hold its rows, each opened at one version and not read yet.

    Args:
        snapshot: snapshot of the epoch.
        handles: the published tables.
        epochs: one row for each epoch of the snapshot's line, ordered by number.
        erasing: rows of table epochs for the epochs that removed rows on a user's request. They may be older or newer
            than this epoch, or off its line, because each of them may have removed rows of this line.
    """

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
        return (pc.field("epoch") <= self.snapshot.manifest.epoch) & ~pc.field("stale")


def pin_epoch(tables: PipelineTables, epoch: int | None = None) -> PinnedEpoch:
    """Open the tables of a pipeline as of an epoch, for callers that read them in parts.

    Arguments and errors are those of `pin_tables`.
    """
    head, published = require_snapshot(tables), published_epoch(tables)
    _check_settled(head.manifest, published)
    snapshot = newest_published(tables, head) or head if epoch is None else _of_epoch(tables, epoch)
    manifest = snapshot.manifest
    if manifest.epoch > published:
        raise Refused(
            f"epoch {manifest.epoch} of {manifest.pipeline} is not published yet: the next run of the pipeline "
            "publishes it"
        )
    handles = {name: tables.look(name) for name in PUBLISHED}
    pinned = PinnedEpoch(snapshot, handles, epochs.SCHEMA.empty_table(), epochs.SCHEMA.empty_table())
    rows = read_table(tables.warehouse, handles[epochs.NAME], where=pinned.current).sort_by("epoch")
    is_on_line = pa.array([is_on(manifest.line, number) for number in rows["epoch"].to_pylist()], pa.bool_())
    was_left = manifest.kind == "prune" and not is_on(head.manifest.line, manifest.epoch)
    if was_left or manifest.epoch not in rows["epoch"].to_pylist():
        raise Refused(
            f"epoch {manifest.epoch} of {manifest.pipeline} was replaced: a later restore or re-run began at an "
            "older snapshot. Give the newest epoch, or restore this one first"
        )
    erasing = read_table(tables.warehouse, handles[epochs.NAME], where=pc.field("kind").isin(sorted(epochs.ERASING)))
    return replace(pinned, epochs=rows.filter(is_on_line), erasing=erasing)


def pin_tables(tables: PipelineTables, epoch: int | None = None) -> PinnedTables:
    """Read the tables of a pipeline as of an epoch.

    Args:
        tables: the pipeline's tables.
        epoch: number of the epoch. None takes the newest published one: a driver may be about to publish another.

    Raises:
        UsageError: the epoch has no snapshot.
        Refused: the epoch is not published yet, or a later restore or re-run replaced it.
        TidegateError: an epoch that removes rows is being published, so some tables still have these rows.
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
    takes_away = any(work.remove_epochs or work.stale_epochs or work.forgets_keys for work in manifest.publish.values())
    if takes_away and manifest.epoch > published:
        raise TidegateError(
            f"epoch {manifest.epoch} of {manifest.pipeline} ({manifest.kind}) removes rows at this moment: try again "
            "once it is published. If its driver died, the next run of the pipeline publishes it"
        )


def _of_epoch(tables: PipelineTables, epoch: int) -> Snapshot:
    versions = {entry.manifest["epoch"]: entry.version for entry in reversed(list_snapshots(tables))}
    if epoch not in versions:
        raise UsageError(f"--epoch {epoch}: {tables.pipeline} has snapshots of epochs {sorted(versions)}")
    return require_snapshot(tables, versions[epoch])

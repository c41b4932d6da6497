"""The rows that a check looks at, pinned: every table as of one epoch, whatever was published since."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from expectations.ledger import ledger
from pipelines.config import Config
from pipelines.errors import Refused, UsageError
from pipelines.snapshots.contents import state_rows
from pipelines.snapshots.head import Snapshot, list_snapshots, read_snapshot
from pipelines.snapshots.manifest import Manifest
from pipelines.storage import read_table, warehouse_of
from pipelines.tables import epochs, late, rejects, results, state
from pipelines.tables.pipeline_tables import PipelineTables
from pipelines.window_shape import WindowShape, window_shape


@dataclass(frozen=True)
class Pinned:
    """A pipeline's tables as of one epoch: its rows and those of the epochs before it that still count.

    Args:
        manifest: of the epoch's snapshot.
        versions: of each table, that it was read at.
        shape: of the windows; None where the pipeline computes something else.
        fresh: windows that became final with this epoch, one row each.
        windows: all final windows, one row each.
        panes: table results.
        epochs: table epochs.
        ledger: what the epochs counted beside what the tables hold.
        state: rows of the snapshot.
    """

    manifest: Manifest
    versions: dict[str, int]
    shape: WindowShape | None
    fresh: pd.DataFrame
    windows: pd.DataFrame
    panes: pd.DataFrame
    epochs: pd.DataFrame
    ledger: pd.DataFrame
    state: pd.DataFrame

    @property
    def key(self) -> list[str]:
        """The key columns."""
        return list(self.manifest.schemas.key)


def pin(config: Config, pipeline: str, epoch: int | None) -> Pinned:
    """The tables of a pipeline as of an epoch.

    Args:
        config: of the project.
        pipeline: its name.
        epoch: None takes the newest.

    Raises:
        UsageError: there is no snapshot of that epoch.
        Refused: the epoch is not published yet, or was replaced by a later restore or re-run.
    """
    value = config.pipeline(pipeline)
    tables = PipelineTables(warehouse_of(config), pipeline)
    snapshot = _snapshot(tables, epoch)
    manifest = snapshot.manifest
    shape = window_shape(value, manifest.stagger_offset)
    versions, read = {state.NAME: snapshot.version}, {}
    for name in (results.NAME, late.NAME, rejects.NAME, epochs.NAME):
        handle = tables.open(name)
        _check_published(manifest, name, handle.transaction_version(tables.application))
        versions[name] = handle.version()
        current = (pc.field("epoch") <= manifest.epoch) & ~pc.field("stale")
        read[name] = read_table(tables.warehouse, handle, where=current)
    if manifest.epoch not in read[epochs.NAME]["epoch"].to_pylist():
        raise Refused(
            f"epoch {manifest.epoch} of {pipeline} was replaced: a later restore or re-run began before it. Check the "
            "newest epoch, or restore that one first"
        )
    rows = state_rows(tables, snapshot)
    key = tuple(manifest.schemas.key)
    final = results.final(results.latest(read[results.NAME], key), manifest.watermark)
    before = _watermark_before(read[epochs.NAME], manifest)
    became = pc.equal(final["epoch"], pa.scalar(manifest.epoch, pa.int64()))
    if before is not None:
        became = pc.or_(became, pc.greater(final["final_at"], before))
    return Pinned(
        manifest,
        versions,
        shape,
        _frame(final.filter(became)),
        _frame(final),
        _frame(read[results.NAME]),
        _frame(read[epochs.NAME].drop_columns(["phases"])),
        ledger(manifest, shape, read, final, rows),
        _frame(rows),
    )


def _snapshot(tables: PipelineTables, epoch: int | None) -> Snapshot:
    version = None
    if epoch is not None:
        known = {entry.manifest["epoch"]: entry.version for entry in list_snapshots(tables)}
        if epoch not in known:
            raise UsageError(f"--epoch {epoch}: {tables.pipeline} has snapshots of epochs {sorted(known)}")
        version = known[epoch]
    snapshot = read_snapshot(tables, version)
    if snapshot is None:
        raise Refused(f"pipeline {tables.pipeline!r} has no snapshot yet: run `tidegate backfill` first")
    return snapshot


def _check_published(manifest: Manifest, table: str, published: int | None) -> None:
    if manifest.publish[table].files and (published is None or published < manifest.epoch):
        raise Refused(
            f"epoch {manifest.epoch} of {manifest.pipeline} is not published to {table} yet: the next run of it will "
            "do so"
        )


def _watermark_before(rows: pa.Table, manifest: Manifest) -> pa.Scalar | None:
    """The watermark of the parent epoch; None where there is no parent or it had none yet."""
    before = rows.filter(pc.equal(rows["epoch"], pa.scalar(manifest.parent, pa.int64())))["watermark"].drop_null()
    return before[0] if len(before) else None


def _frame(rows: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = rows.to_pandas(date_as_object=False)
    return frame

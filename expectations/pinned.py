"""What a check looks at: a pipeline's tables as of one epoch, as data frames."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from expectations.ledger import ledger
from expectations.restored import restored
from pipelines import Pipeline
from pipelines.snapshots.manifest import Manifest
from pipelines.tables import results
from pipelines.tables.pinned import PinnedTables, pin_tables
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
        restored: checksums of the newest restore, and of what it went back to.
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
    restored: pd.DataFrame

    @property
    def key(self) -> list[str]:
        """The key columns."""
        return list(self.manifest.schemas.key)


def pin(own: PipelineTables, pipeline: Pipeline, epoch: int | None = None) -> Pinned:
    """What to check of a pipeline as of an epoch.

    Args:
        own: the pipeline's tables.
        pipeline: as the code has it now.
        epoch: None takes the newest.

    Raises:
        UsageError: there is no snapshot of that epoch.
        Refused: the epoch is not published yet, or was replaced by a later restore or re-run.
    """
    tables = pin_tables(own, epoch)
    shape = window_shape(pipeline, tables.manifest.stagger_offset)
    final = tables.final_windows()
    return Pinned(
        tables.manifest,
        tables.versions,
        shape,
        _frame(final.filter(_became_final(tables, final))),
        _frame(final),
        _frame(tables.results),
        _frame(tables.epochs.drop_columns(["phases"])),
        ledger(tables, shape, final),
        _frame(tables.state),
        restored(own, tables),
    )


def _became_final(tables: PinnedTables, final: pa.Table) -> pa.Array:
    """Which windows were not final yet at the parent epoch; of other results, those that it put out."""
    manifest = tables.manifest
    is_own = pc.equal(final["epoch"], pa.scalar(manifest.epoch, pa.int64()))
    if not results.has_panes(final.schema):
        return is_own
    parent = pc.equal(tables.epochs["epoch"], pa.scalar(manifest.parent, pa.int64()))
    before = tables.epochs.filter(parent)["watermark"].drop_null()
    return pc.or_(is_own, pc.greater(final["final_at"], before[0])) if len(before) else is_own


def _frame(rows: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = rows.to_pandas(date_as_object=False)
    return frame

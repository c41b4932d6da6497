"""What a check looks at: a pipeline's tables as of one epoch, as data frames."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import pyarrow as pa

from expectations.fresh import find_fresh
from expectations.ledger import ledger
from expectations.restored import restored
from pipelines import Pipeline
from pipelines.snapshots.manifest import Manifest
from pipelines.tables.pinned import pin_tables
from pipelines.tables.pipeline_tables import PipelineTables
from pipelines.window_shape import WindowShape, window_shape


@dataclass(frozen=True)
class Pinned:
    """A pipeline's tables as of one epoch: its rows and those of the epochs before it that still count.

    Args:
        manifest: of the epoch's snapshot.
        versions: of each table, that it was read at.
        shape: of the windows; None where the pipeline computes something else.
        since: the newest epoch before it whose check passed; None if there is none.
        interval: event time that was run since, `start` and `end` in epoch milliseconds; None of a stream.
        fresh: windows that became final since, one row each.
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
    since: int | None
    interval: dict[str, int] | None
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
    fresh = find_fresh(own, tables, final)
    return Pinned(
        tables.manifest,
        tables.versions,
        shape,
        fresh.since,
        fresh.interval,
        _frame(fresh.windows),
        _frame(final),
        _frame(tables.results),
        _frame(tables.epochs.drop_columns(["phases"])),
        ledger(tables, shape, final),
        _frame(tables.state),
        restored(own, tables),
    )


def _frame(rows: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = rows.to_pandas(date_as_object=False)
    return frame

"""Checksums of the newest restore: for each key group, of the restored state and of the snapshot it went back to."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa

from tidegate.pipelines.snapshots.contents import checksums, state_rows
from tidegate.pipelines.snapshots.head import Snapshot, list_snapshots, read_snapshot
from tidegate.pipelines.snapshots.savepoint import list_savepoints, read_savepoint
from tidegate.pipelines.tables.pipeline_tables import PipelineTables

COLUMNS = ("key_group", "recorded", "computed")


def restored(tables: PipelineTables, epochs: pa.Table) -> pd.DataFrame:
    """Return a row for each key group; no row if there was no restore, or its snapshots are no longer retained.

    Args:
        tables: tables of the pipeline.
        epochs: rows of table `epochs`; the newest restore among them is checked.
    """
    restores = [row for row in epochs.to_pylist() if row["kind"] == "restore"]
    if not restores:
        return pd.DataFrame(columns=list(COLUMNS))
    newest = max(restores, key=lambda row: int(row["epoch"]))
    after, before = _of_epoch(tables, newest["epoch"]), _target(tables, newest["parent"])
    if after is None or before is None:
        return pd.DataFrame(columns=list(COLUMNS))
    rows_before, rows_after = state_rows(tables.warehouse, before), state_rows(tables.warehouse, after)
    # The table keeps columns that are younger than the snapshot, such as that of a new aggregate; they are empty then.
    younger = [
        name
        for name in rows_after.column_names
        if name not in rows_before.column_names and rows_after[name].null_count == len(rows_after)
    ]
    recorded, computed = checksums(rows_before), checksums(rows_after.drop_columns(younger))
    groups = sorted({*recorded, *computed})
    return pd.DataFrame([(group, recorded.get(group), computed.get(group)) for group in groups], columns=list(COLUMNS))


def _of_epoch(tables: PipelineTables, epoch: int) -> Snapshot | None:
    # Several versions may hold the same epoch, after a compaction for example; a restart would read the newest.
    versions = (entry.version for entry in list_snapshots(tables) if entry.manifest["epoch"] == epoch)
    newest = next(versions, None)
    return None if newest is None else read_snapshot(tables, newest)


def _target(tables: PipelineTables, epoch: int) -> Snapshot | None:
    """Return the snapshot that a restore went back to, or a savepoint of it; None if neither is retained."""
    if (snapshot := _of_epoch(tables, epoch)) is not None:
        return snapshot
    names = [entry.name for entry in list_savepoints(tables) if entry.manifest.epoch == epoch]
    return read_savepoint(tables, names[0]) if names else None

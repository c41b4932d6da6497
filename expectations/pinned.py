"""The rows that a check looks at, pinned: what an epoch published, whatever was published since."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.config import Config
from pipelines.errors import Refused, UsageError
from pipelines.snapshots.head import list_snapshots, read_snapshot
from pipelines.snapshots.manifest import Manifest
from pipelines.storage import read_table, warehouse_of
from pipelines.tables import results
from pipelines.tables.pipeline_tables import PipelineTables


@dataclass(frozen=True)
class PinnedWindows:
    """The windows of an epoch that nothing can change any more.

    Args:
        manifest: of the epoch's snapshot.
        version: of table results that they were read at.
        windows: one row a window, key columns and results among them.
    """

    manifest: Manifest
    version: int
    windows: pd.DataFrame


def pin_windows(config: Config, pipeline: str, epoch: int | None) -> PinnedWindows:
    """The final windows that an epoch of a pipeline put out.

    Args:
        config: of the project.
        pipeline: its name.
        epoch: None takes the newest.

    Raises:
        UsageError: there is no snapshot of that epoch.
        Refused: the epoch is not published yet.
    """
    config.entry(pipeline)
    tables = PipelineTables(warehouse_of(config), pipeline)
    manifest = _manifest(tables, epoch)
    handle = tables.open(results.NAME)
    published = handle.transaction_version(tables.application)
    if manifest.publish[results.NAME].files and (published is None or published < manifest.epoch):
        raise Refused(f"epoch {manifest.epoch} of {pipeline} is not published yet: the next run of it will do so")
    rows = read_table(tables.warehouse, handle, where=pc.field("epoch") <= manifest.epoch)
    final = results.final(results.latest(rows, tuple(manifest.schemas.key)), manifest.watermark)
    own = final.filter(pc.equal(final["epoch"], pa.scalar(manifest.epoch, pa.int64())))
    return PinnedWindows(manifest, handle.version(), own.to_pandas(date_as_object=False))


def _manifest(tables: PipelineTables, epoch: int | None) -> Manifest:
    version = None
    if epoch is not None:
        known = {entry.manifest["epoch"]: entry.version for entry in list_snapshots(tables)}
        if epoch not in known:
            raise UsageError(f"--epoch {epoch}: {tables.pipeline} has snapshots of epochs {sorted(known)}")
        version = known[epoch]
    snapshot = read_snapshot(tables, version)
    if snapshot is None:
        raise Refused(f"pipeline {tables.pipeline!r} has no snapshot yet: run `tidegate backfill` first")
    return snapshot.manifest

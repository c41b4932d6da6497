"""Restore of a snapshot together with its tables, from a savepoint or from another pipeline.

One epoch of kind `restore` replaces everything that the pipeline has: its commit brings the state, and its publishing
removes all rows and adds the copied files. So a pipeline without tables begins from the snapshot, under its own name
and on a timeline of its own. Until the commit, the pipeline has no snapshot of it; after a crash in between, recovery
publishes the rest, as for any epoch. Copied files that were never committed are removed by the next `vacuum`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace

import pyarrow as pa

from tidegate.pipelines.definition import results, state
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.commit import StateFiles, commit_epoch, remaining
from tidegate.pipelines.ledger.snapshots.head import Snapshot, newest_epochs, read_snapshot, snapshots_by_epoch
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.ledger.snapshots.recovery import recover
from tidegate.pipelines.ledger.snapshots.savepoint import copy_files
from tidegate.pipelines.ledger.snapshots.stages import NewEpoch, Published
from tidegate.pipelines.ledger.snapshots.table_copies import TableContent, bring
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.storage.warehouse import arrow_schema
from tidegate.windowing.time import Millis


def restored_from(tables: PipelineTables, target: Snapshot) -> Manifest | None:
    """Return the manifest with which a pipeline began from a snapshot, after publishing it; None if it has not begun.

    Raises:
        Refused: the pipeline began in another way.
    """
    if not tables.exist or (head := read_snapshot(tables)) is None:
        return None
    if head.manifest.run_id == _run_of(tables, target.manifest):
        recover(tables)
        return head.manifest
    raise Refused(
        f"pipeline {tables.pipeline!r} already has epoch {head.manifest.epoch}, and --from begins a pipeline without "
        f"epochs. Give the pipeline another name; or, if nothing in the folder "
        f"{tables.warehouse.path(tables.pipeline)} is needed, remove it and run the command again"
    )


def restore_tables(
    tables: PipelineTables,
    target: Snapshot,
    contents: Mapping[str, TableContent],
    now: Millis,
    check: Callable[[], None] = lambda: None,
) -> Manifest:
    """Replace everything that a pipeline has by a snapshot and its tables. Return the manifest of the restore.

    The caller holds the lease. Missing tables are created.

    Args:
        tables: the tables of the pipeline.
        target: the snapshot, which may be another pipeline's.
        contents: the published tables as of the snapshot.
        now: current time, int64 epoch milliseconds.
        check: called before the commit, when everything is copied; an error from it ends the restore.

    Raises:
        Refused: another driver has committed, or a column has another type in the pipeline's tables.
    """
    then, has_panes = target.manifest, target.manifest.schemas.has_panes
    schemas = {table: pa.schema(content.schema.to_arrow()) for table, content in contents.items()}
    schemas[results.NAME] = results.of_kind(schemas[results.NAME], has_panes=has_panes)
    schemas[state.NAME] = arrow_schema(target.handle)
    tables.create(schemas)
    tables.widen(schemas)
    handle = tables.open(state.NAME)
    newest = max([*newest_epochs(tables).values(), *snapshots_by_epoch(tables)], default=0)
    timeline = max([then.timeline, *(entry.manifest["timeline"] for entry in snapshots_by_epoch(tables).values())]) + 1
    epoch = max(newest, then.epoch) + 1
    quiet = NewEpoch.without_rows("restore", then, now)
    new = replace(
        quiet,
        pipeline=tables.pipeline,
        epoch=epoch,
        timeline=timeline,
        published=Published(files={table: bring(tables, table, contents[table], epoch) for table in PUBLISHED}),
        withdrawn=replace(quiet.withdrawn, epochs=dict.fromkeys(PUBLISHED, tuple(range(1, newest + 1)))),
        run_id=quiet.run_id if newest else _run_of(tables, then),
    )
    written, whole = remaining(tables, target, f"{state.NAME}-{epoch:06d}-restore")
    copies = copy_files(
        tables, replace(target, files=tuple(whole)), tables.path(state.NAME), f"restored-{epoch:06d}", share=True
    )
    check()
    manifest = commit_epoch(tables, handle, new, StateFiles([*written, *copies]))
    publish(tables, manifest)
    return manifest


def _run_of(tables: PipelineTables, then: Manifest) -> str:
    """Return the run id for beginning from a snapshot, by which a repeated call recognises that the first succeeded."""
    return hashlib.sha256(f"restore {tables.pipeline} {then.run_id}".encode()).hexdigest()[:32]

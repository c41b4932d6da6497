"""Savepoints with tables, below the command line: made in another place, and brought back after a loss."""

from __future__ import annotations

from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.published import require_published
from tidegate.pipelines.ledger.snapshots.restore_tables import restore_tables
from tidegate.pipelines.ledger.snapshots.savepoint import (
    SavepointEntry,
    create_savepoint,
    find_snapshot,
    read_savepoint,
)
from tidegate.pipelines.ledger.snapshots.table_copies import contents_in
from tidegate.pipelines.ledger.snapshots.tables_at import with_contents
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import Millis


def copy_all(tables: PipelineTables, place: PipelineTables, name: str, now: Millis) -> SavepointEntry:
    """Create a savepoint of the newest published epoch, with its tables."""
    snapshot = require_published(tables, find_snapshot(tables, "latest"))
    return with_contents(
        tables,
        snapshot,
        now,
        lambda contents: create_savepoint(tables, snapshot, name, now, place=place, contents=contents),
    )


def bring_back(tables: PipelineTables, place: PipelineTables, name: str, now: Millis) -> Manifest:
    """Restore a savepoint with its tables."""
    snapshot = read_savepoint(place, name)
    return restore_tables(tables, snapshot, contents_in(place.warehouse, snapshot.path), now)

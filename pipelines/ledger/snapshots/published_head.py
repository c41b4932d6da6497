"""The newest epoch that any table of a pipeline has, and the records that name its ancestors.

A manifest names its ancestors. If the newest manifest can't be read, or its commit is lost, the logs and table `epochs`
name the parent of each epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tidegate.pipelines.definition import epochs, state
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Line
from tidegate.pipelines.ledger.snapshots.foreign_changes import find_change
from tidegate.pipelines.ledger.snapshots.head import (
    OtherPipeline,
    Snapshot,
    SnapshotEntry,
    newest_epochs,
    newest_record,
    read_snapshot,
    snapshots_by_epoch,
)
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.storage.warehouse import arrow_schema, read_table


@dataclass(frozen=True, slots=True)
class Head:
    """The newest epoch that any table of a pipeline has. Readers see the tables at this epoch.

    The snapshot is None if it can't be read or is lost. `line` and `run_ids` are its ancestors and the runs of epochs,
    as far as the logs and table epochs record them. `is_trusted` is True if the head of table state is this epoch, as
    tidegate committed it.
    """

    snapshot: Snapshot | None
    epoch: int
    timeline: int
    line: Line
    run_ids: dict[int, str] = field(default_factory=dict)
    is_trusted: bool = False

    @classmethod
    def of(cls, tables: PipelineTables) -> Head | None:
        """Return the head of a pipeline, or None if the pipeline has not published anything yet.

        Raises:
            Refused: a table can't be opened, or is another pipeline's.
        """
        entries = snapshots_by_epoch(tables)
        at_head = readable_snapshot(tables, None)
        at_head_epoch = 0 if at_head is None else at_head.manifest.epoch
        newest = max([*newest_epochs(tables).values(), *entries, at_head_epoch], default=0)
        if not newest:
            return None
        ancestry = _Ancestry.of(tables, entries)
        snapshot = at_head if at_head_epoch == newest else None
        if snapshot is None and newest in entries:
            snapshot = readable_snapshot(tables, entries[newest].version)
        line = ancestry.line(newest) if snapshot is None else snapshot.manifest.line
        is_trusted = snapshot is not None and snapshot is at_head and find_change(tables, state.NAME) is None
        return cls(snapshot, newest, ancestry.timeline, line, ancestry.run_ids, is_trusted)


def readable_snapshot(tables: PipelineTables, version: int | None) -> Snapshot | None:
    """Return the snapshot at a version of table state (None: at its head), or None if it can't be read."""
    try:
        return read_snapshot(tables, version)
    except OtherPipeline:
        raise
    except Refused:
        return None


def recorded_epochs(tables: PipelineTables) -> list[dict[str, Any]]:
    """Return what table epochs records about each epoch, or nothing if the table can't be read."""
    if not tables.warehouse.exists(tables.path(epochs.NAME)):
        return []
    try:
        handle = tables.newest(epochs.NAME)
        names = ["epoch", "parent", "timeline", "run_id", "kind", epochs.DELETED]
        rows = read_table(tables.warehouse, handle, [name for name in names if name in arrow_schema(handle).names])
    except Refused:
        # A file of the table is damaged, so only the logs are used.
        return []
    records: list[dict[str, Any]] = rows.to_pylist()
    return records


@dataclass(frozen=True, slots=True)
class _Ancestry:
    """Parent, run id and timeline of epochs, as the logs and table epochs record them."""

    parents: dict[int, int | None]
    run_ids: dict[int, str]
    timeline: int

    @classmethod
    def of(cls, tables: PipelineTables, entries: dict[int, SnapshotEntry]) -> _Ancestry:
        records = [entry.manifest for entry in entries.values()]
        for table in PUBLISHED:
            if tables.warehouse.exists(tables.path(table)):
                record = newest_record(tables.warehouse, tables.newest(table)).get("tidegate", {})
                records += [record] if "parent" in record else []
        # Later records of an epoch overwrite earlier ones, so the logs take precedence over table epochs.
        records = [*recorded_epochs(tables), *records]
        return cls(
            {record["epoch"]: record["parent"] for record in records},
            {record["epoch"]: record["run_id"] for record in records if "run_id" in record},
            max((record["timeline"] for record in records), default=0),
        )

    def line(self, epoch: int) -> Line:
        """Return an epoch and its ancestors, back to the first one without a record."""
        ancestors: list[int] = []
        following: int | None = epoch
        while following is not None and following in self.parents:
            ancestors.append(following)
            following = self.parents[following]
        return tuple((number, number) for number in reversed(ancestors))

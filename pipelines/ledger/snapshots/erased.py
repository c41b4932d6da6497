"""Rows that a user erased, by `forget` or `prune`. No restore brings them back, on whichever lineage that ran."""

from __future__ import annotations

import pyarrow.compute as pc

from tidegate.pipelines.definition import epochs, rejects
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import DataFile
from tidegate.pipelines.ledger.snapshots.head import list_snapshots, read_snapshot
from tidegate.pipelines.ledger.snapshots.published_head import readable_snapshot, recorded_epochs
from tidegate.pipelines.ledger.tables.files import epoch_of
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.storage.warehouse import arrow_schema, read_table


def erasing_epochs(tables: PipelineTables) -> frozenset[int]:
    """Return the epochs that removed rows on a user's request, if table epochs records them."""
    return frozenset(row["epoch"] for row in recorded_epochs(tables) if row["kind"] in epochs.ERASING)


def forgotten_marks(tables: PipelineTables) -> dict[int, frozenset[str] | None]:
    """Return the marks of the keys that each `forget` erased, by epoch, newest first; None if they are unknown.

    Epochs that a restore has abandoned are included, because a restore never brings back a forgotten key. The marks are
    in the epoch's manifest, and are lost with its snapshot.
    """
    forgets = read_table(tables.warehouse, tables.open(epochs.NAME), ["epoch"], pc.field("kind") == "forget")
    marks = dict[int, frozenset[str] | None].fromkeys(sorted(set(forgets["epoch"].to_pylist()), reverse=True))
    for entry in list_snapshots(tables) if marks else ():
        if entry.epoch in marks and (snapshot := read_snapshot(tables, entry.version)) is not None:
            published = snapshot.manifest.publish.values()
            marks[entry.epoch] = frozenset(mark for work in published for mark in work.forgotten)
    return marks


def pruned_epochs(tables: PipelineTables) -> dict[str, frozenset[int]]:
    """Return, by table, the epochs whose rows a prune erased, on any lineage.

    A prune is left out if its snapshot is no longer retained, because nothing else records the removed rows.
    """
    pruned = {table: set[int]() for table in PUBLISHED}
    for entry in list_snapshots(tables):
        if entry.manifest["kind"] == "prune" and (snapshot := readable_snapshot(tables, entry.version)) is not None:
            for table, work in snapshot.manifest.publish.items():
                pruned[table].update(work.remove_epochs)
    return {table: frozenset(epochs_of) for table, epochs_of in pruned.items()}


def is_kept(tables: PipelineTables, table: str, file: DataFile, pruned: int) -> bool:
    """Return True if a file to bring back is newer than the newest pruned epoch, or if a prune spared its rows."""
    epoch = epoch_of(file.path)
    return epoch is None or epoch > pruned or (table == rejects.NAME and _lies_ahead(tables, file))


def _lies_ahead(tables: PipelineTables, file: DataFile) -> bool:
    """Return True if a file has a row that was rejected because its time was ahead, and False if it is unreadable."""
    path, schema = tables.path(rejects.NAME), arrow_schema(tables.newest(rejects.NAME))
    try:
        rows = tables.warehouse.read_files(path, [file.path], schema, ["reason"])
    except Refused:
        return False
    return rejects.AHEAD in rows["reason"].to_pylist()

"""How people name a snapshot: the newest, an epoch's, or a savepoint."""

from __future__ import annotations

from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.snapshots.head import Snapshot, list_snapshots, require_snapshot
from tidegate.pipelines.snapshots.savepoint import read_savepoint
from tidegate.pipelines.tables.pipeline_tables import PipelineTables

SAVEPOINT = "savepoint:"


def find_snapshot(tables: PipelineTables, target: str) -> Snapshot:
    """The snapshot that people name: `latest`, an epoch's number, or `savepoint:NAME`.

    Raises:
        UsageError: there is none of that name; the message lists those there are.
        Refused: the pipeline has no snapshot at all, or the savepoint belongs to another one.
    """
    if target.startswith(SAVEPOINT):
        return read_savepoint(tables, target.removeprefix(SAVEPOINT))
    versions = {str(entry.manifest["epoch"]): entry.version for entry in list_snapshots(tables)}
    if target != "latest" and target not in versions:
        known = f"latest, savepoint:NAME, or one of the epochs {', '.join(reversed(versions))}" if versions else ""
        raise UsageError(
            f"{target!r} is no snapshot of {tables.pipeline}: "
            + (f"give {known}" if known else "there is none before its first epoch, and savepoints are savepoint:NAME")
        )
    return require_snapshot(tables, versions.get(target))

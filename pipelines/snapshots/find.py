"""Names of snapshots on the command line: `latest`, an epoch's number, or `savepoint:NAME`."""

from __future__ import annotations

from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.snapshots.head import Snapshot, list_snapshots, no_snapshot_yet, require_snapshot
from tidegate.pipelines.snapshots.savepoint import read_savepoint
from tidegate.pipelines.tables.pipeline_tables import PipelineTables

SAVEPOINT = "savepoint:"


def find_snapshot(tables: PipelineTables, target: str) -> Snapshot:
    """Return the snapshot that a user names: `latest`, an epoch's number, or `savepoint:NAME`.

    Raises:
        UsageError: no snapshot has that name; the message lists the names that exist.
        Refused: the pipeline has no snapshot at all, or the savepoint belongs to another pipeline.
    """
    if target.startswith(SAVEPOINT):
        return read_savepoint(tables, target.removeprefix(SAVEPOINT))
    versions = {str(entry.manifest["epoch"]): entry.version for entry in list_snapshots(tables)}
    if target != "latest" and target not in versions:
        if not versions:
            raise UsageError(
                f"{target!r} is not a snapshot: {no_snapshot_yet(tables)}. For a savepoint give savepoint:NAME"
            )
        raise UsageError(
            f"{target!r} is not a snapshot of {tables.pipeline}: give latest, savepoint:NAME, or one of the epochs "
            f"{', '.join(reversed(versions))}"
        )
    return require_snapshot(tables, versions.get(target))

"""Repair of published tables that somebody set back with Delta's own RESTORE: give them their earlier files again."""

from __future__ import annotations

from deltalake import CommitProperties, PostCommitHookProperties

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.snapshots.publish import GIVE_UP
from tidegate.pipelines.storage import active_files
from tidegate.pipelines.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.tables.set_back import PUT_BACK, SetBack, find_set_back


def put_back(tables: PipelineTables, give_up: bool = False, needed: int | None = None) -> list[str]:
    """Repair published tables that somebody set back; return a sentence for each. The caller holds the lease.

    Args:
        tables: the pipeline's tables.
        give_up: True accepts that files are missing. The restore that follows names them and removes them.
        needed: epoch of the snapshot that is restored next; a table that still holds it stays as it is. None needs all.

    Raises:
        Refused: files of the version to go back to are missing. Then nothing was changed.
    """
    faults = [
        fault
        for table in PUBLISHED
        if tables.warehouse.exists(tables.path(table))
        and (fault := find_set_back(tables, table, needed=needed)) is not None
    ]
    losses = [] if give_up else [text for fault in faults for text in _losses(tables, fault)]
    if losses:
        raise Refused(
            f"{'; '.join(losses)}. Put them back from a copy, or go on without them: `tidegate restore "
            f"{tables.pipeline} latest {GIVE_UP}`"
        )
    return [_put_back(tables, fault, give_up) for fault in faults]


def _put_back(tables: PipelineTables, fault: SetBack, give_up: bool) -> str:
    handle = tables.open(fault.table)
    handle.restore(
        fault.good,
        ignore_missing_files=give_up,
        commit_properties=CommitProperties(custom_metadata={PUT_BACK: str(fault.good)}),
        post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
    )
    tables.warehouse.make_commit_durable(tables.path(fault.table), handle.version())
    return (
        f"table {tables.path(fault.table)} was put back to version {fault.good}: version {fault.version} was a "
        "RESTORE that tidegate did not make"
    )


def _losses(tables: PipelineTables, fault: SetBack) -> list[str]:
    """Return a sentence for each missing file of the version to go back to."""
    path = tables.path(fault.table)
    files = active_files(tables.open(fault.table, fault.good))
    sizes = tables.warehouse.sizes(path, [file["path"] for file in files])
    return [
        f"{file['num_records']} rows of table {path} are lost with file {file['path']}"
        for file in files
        if sizes[file["path"]] is None
    ]

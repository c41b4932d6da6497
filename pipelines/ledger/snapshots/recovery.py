"""Recovery: checks that the newest snapshot agrees with the tables, and publishes what they lack.

The log entry of every commit to the five tables names its epoch. So recovery notices a table that was rolled back,
whose log lost its end, or whose folder is missing, before a new epoch starts from it. It refuses state that is behind a
published table, and a published table that was rolled back. If the log of a table lost its end, it publishes what the
retained manifests list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from tidegate.pipelines.definition import state
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.foreign_changes import check_unchanged
from tidegate.pipelines.ledger.snapshots.head import (
    PublishedBy,
    Snapshot,
    list_snapshots,
    newest_epochs,
    published_by,
    read_snapshot,
    require_snapshot,
)
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.ledger.step_log import log_step
from tidegate.pipelines.ledger.tables.damage import check_logs
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, PipelineTables
from tidegate.pipelines.ledger.tables.table_log import TableLog
from tidegate.pipelines.remedy import Act, Remedy


def recover(tables: PipelineTables, publish_epoch: Callable[[Manifest], None] | None = None) -> Snapshot | None:
    """Publish what the newest snapshots list and the tables lack. Return the newest snapshot, or None if there is none.

    Recovery only rolls forward, so it can be repeated at any time. The caller holds the lease. `publish_epoch` is
    called to publish an epoch.

    Raises:
        Refused: state is behind a published table, a table is missing, or a snapshot that a table lacks is not
        retained.
    """
    head, newest = _trusted(tables)
    log_step("recovered", 0 if head is None else head.manifest.epoch)
    if head is not None:
        for manifest in unpublished(tables, head, newest):
            if publish_epoch is None:
                publish(tables, manifest)
            else:
                publish_epoch(manifest)
    return head


def trusted_head(tables: PipelineTables) -> Snapshot | None:
    """Return the newest snapshot after checking that no table is ahead of it, or None. Changes nothing."""
    return _trusted(tables)[0]


def _trusted(tables: PipelineTables) -> tuple[Snapshot | None, dict[str, int]]:
    check_logs(tables, ALL)
    # Read the tables before the head: a concurrent driver moves the head first, never a table ahead of it.
    newest = newest_epochs(tables)
    try:
        head = read_snapshot(tables)
    except Refused:
        # Somebody else may have changed the row of the manifest, too.
        check_unchanged(tables, state.NAME)
        raise
    check_agreement(tables, head, newest)
    return head, newest


def check_agreement(tables: PipelineTables, head: Snapshot | None, newest: dict[str, int]) -> None:
    """Refuse a head behind a table, a pipeline that lost a table, and a table whose rows somebody else changed."""
    epoch = 0 if head is None else head.manifest.epoch
    committed = max(newest.values(), default=0)
    gone = [table for table in ALL if table not in newest]
    if state.NAME in gone and committed:
        raise Refused(
            f"table {tables.path(state.NAME)} is gone, but the rows that it published up to epoch {committed} exist",
            *tables.remedies(state.NAME),
        )
    if head is not None and gone:
        raise tables.gone(gone[0])
    ahead = [table for table, at in newest.items() if at > epoch]
    if ahead:
        back = _newest_readable(tables)
        raise Refused(
            f"table {tables.path(state.NAME)} ends at epoch {epoch}, but epoch {committed} was committed to "
            f"{', '.join(ahead)}: somebody restored an older version of it, or its log lost its end. No run continues "
            "from there, because its new epochs would be considered published already",
            *([] if back is None else [Remedy(Act.RESTORE, tables.pipeline, back)]),
            *tables.remedies(state.NAME),
        )
    for table in newest:
        check_unchanged(tables, table)


def unpublished(tables: PipelineTables, head: Snapshot, at: dict[str, int]) -> Sequence[Manifest]:
    """Return the manifests that may have to be published, oldest first.

    This is only the newest one, unless the log of a table lost its end. A table that lacks an epoch whose snapshot is
    not retained is refused.
    """
    record = published_by(tables.warehouse, head.handle)
    if record is None or _holds(at, record):
        # Without a record, `publish` itself checks whether a table has the newest epoch.
        return [head.manifest]
    manifests: list[Manifest] = []
    # Retention removed snapshots between the older ones, and nothing records what the removed ones published.
    recent = TableLog(tables, state.NAME).recent[0]
    for entry in list_snapshots(tables):
        if entry.version < recent:
            break
        manifests.append(require_snapshot(tables, entry.version).manifest)
        record = entry.published_by or record
        if _holds(at, record):
            return manifests[::-1]
    lacking = {table: epoch for table, epoch in record.before.items() if at[table] < epoch}
    ends = ", ".join(f"{tables.path(table)} ends at epoch {at[table]}" for table in lacking)
    raise Refused(
        f"{ends}, but epoch {max(lacking.values())} was published: its log lost its end, and the snapshots that could "
        "publish it again are no longer retained",
        *tables.remedies(min(lacking)),
    )


def _holds(at: dict[str, int], record: PublishedBy) -> bool:
    """Return True if each table has at least the epoch that it had before an epoch was published."""
    return all(at[table] >= epoch for table, epoch in record.before.items())


def _newest_readable(tables: PipelineTables) -> int | None:
    for entry in list_snapshots(tables):
        with suppress(Refused):
            require_snapshot(tables, entry.version)
            return entry.epoch
    return None

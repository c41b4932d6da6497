"""Recovery: the newest snapshot, once it agrees with what the tables hold and all of it is published.

Every commit to one of the five tables names its epoch, in the log. So a table that somebody set back, that lost
the end of its log, or whose folder is gone, is seen before anything goes on from it: state that is behind what is
published is refused, and so is a published table that was set back; one that lost the end of its log gets what the
retained manifests list.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import Manifest
from tidegate.pipelines.snapshots.head import (
    PublishedBy,
    Snapshot,
    list_snapshots,
    newest_epochs,
    published_by,
    read_snapshot,
)
from tidegate.pipelines.snapshots.publish import GIVE_UP, publish
from tidegate.pipelines.tables import state
from tidegate.pipelines.tables.damaged_log import cut_entry
from tidegate.pipelines.tables.pipeline_tables import ALL, PUBLISHED, PipelineTables
from tidegate.pipelines.tables.set_back import check_not_set_back
from tidegate.pipelines.tables.table_log import TableLog


def recover(tables: PipelineTables, publish_epoch: Callable[[Manifest], None] | None = None) -> Snapshot | None:
    """Publish what the newest snapshots list and the tables lack; the newest one, None if there is none yet.

    Recovery only rolls forward, so it can be done again at any time. The caller holds the lease.

    Args:
        tables: the pipeline's tables.
        publish_epoch: publishes an epoch; None does it without a word.

    Raises:
        Refused: state is behind what is published, a table is gone, or what a table lacks is no longer retained.
    """
    head, newest = _trusted(tables)
    if head is not None:
        for manifest in unpublished(tables, head, newest):
            if publish_epoch is None:
                publish(tables, manifest)
            else:
                publish_epoch(manifest)
    return head


def trusted_head(tables: PipelineTables) -> Snapshot | None:
    """The newest snapshot, which no table is ahead of; None if there is none yet. Changes nothing.

    Raises:
        Refused: table state is behind what is published, or gone; or a published table is gone.
    """
    return _trusted(tables)[0]


def _trusted(tables: PipelineTables) -> tuple[Snapshot | None, dict[str, int]]:
    check_logs(tables)
    # The tables before the head: a driver that is at work meanwhile moves the head first.
    newest = newest_epochs(tables)
    head = read_snapshot(tables)
    check_agreement(tables, head, newest)
    return head, newest


def check_logs(tables: PipelineTables) -> None:
    """Refuse a log whose newest entry lost its end at the end of a line, so that it opens and holds a part of a commit.

    Raises:
        Refused: with the way on.
    """
    for table in ALL:
        if tables.warehouse.exists(tables.path(table)) and (name := cut_entry(tables, table)) is not None:
            raise Refused(
                f"entry {name} in the log of table {tables.path(table)} is cut: it lacks the end of its commit. "
                f"`tidegate restore {tables.pipeline} latest` sets it aside and goes on"
            )


def check_agreement(tables: PipelineTables, head: Snapshot | None, newest: dict[str, int]) -> None:
    """Refuse a head that is behind a table, a pipeline that has lost a table, and a published table that was set back.

    Raises:
        Refused: with the way on.
    """
    epoch = 0 if head is None else head.manifest.epoch
    name, known = tables.pipeline, max(newest.values(), default=0)
    gone = [table for table in ALL if table not in newest]
    if state.NAME in gone and known:
        raise Refused(
            f"table {tables.path(state.NAME)} is gone, and what it published up to epoch {known} is there. Put its "
            f"folder back, or restore a savepoint (`tidegate savepoint list {name}`), or begin anew: remove the folder "
            f"{tables.warehouse.path(name)}"
        )
    if head is not None and gone:
        raise Refused(
            f"table {tables.path(gone[0])} is gone. Put its folder back and run again, or go on without what it held: "
            f"`tidegate restore {name} latest {GIVE_UP}`"
        )
    ahead = [table for table, at in newest.items() if at > epoch]
    if ahead:
        back = _newest_readable(tables)
        way = "" if back is None else f"go on from the newest snapshot there is, `tidegate restore {name} {back}`, "
        raise Refused(
            f"table {tables.path(state.NAME)} stands at epoch {epoch}, and epoch {known} was committed to "
            f"{', '.join(ahead)}: somebody restored an older version of it, or its log lost its end. Nothing goes on "
            f"from there, since new epochs would be taken for published ones: {way}or restore a savepoint (`tidegate "
            f"savepoint list {name}`), then run again"
        )
    for table in PUBLISHED:
        if table in newest:
            check_not_set_back(tables, table)


def unpublished(tables: PipelineTables, head: Snapshot, at: dict[str, int]) -> Sequence[Manifest]:
    """What some table lacks, the oldest first: the newest epoch mostly, or more where a log lost its end.

    Args:
        tables: the pipeline's tables.
        head: the newest snapshot.
        at: the newest epoch of each table.

    Raises:
        Refused: a table lacks an epoch whose snapshot is no longer retained.
    """
    told = published_by(head.handle)
    if told is None or _holds(at, told):
        # An older tidegate did not tell; that the newest epoch is published is looked at in any case.
        return [head.manifest]
    found: list[Manifest] = []
    # Between older snapshots some were thinned out, and what those published can't be told.
    recent = TableLog(tables, state.NAME).recent[0]
    for entry in list_snapshots(tables):
        if entry.version < recent:
            break
        snapshot = read_snapshot(tables, entry.version)
        if snapshot is not None:
            found.append(snapshot.manifest)
        told = entry.published_by or told
        if _holds(at, told):
            return found[::-1]
    raise Refused(lost_words(tables, at, {table: epoch for table, epoch in told.before.items() if at[table] < epoch}))


def _holds(at: dict[str, int], told: PublishedBy) -> bool:
    """Whether the tables hold what they held before an epoch was published."""
    return all(at[table] >= epoch for table, epoch in told.before.items())


def lost_words(tables: PipelineTables, at: dict[str, int], lacking: dict[str, int]) -> str:
    """An error for tables that lack epochs of which no snapshot is retained."""
    told = ", ".join(f"{tables.path(table)} ends at epoch {at[table]}" for table in lacking)
    return (
        f"{told}, and epoch {max(lacking.values())} was published: its log lost its end, and the snapshots that could "
        f"publish it again are no longer retained. Put the table back from a copy, or go on without what it lost: "
        f"`tidegate restore {tables.pipeline} latest {GIVE_UP}`"
    )


def _newest_readable(tables: PipelineTables) -> int | None:
    for entry in list_snapshots(tables):
        try:
            if read_snapshot(tables, entry.version) is not None:
                epoch: int = entry.manifest["epoch"]
                return epoch
        except Refused:
            continue
    return None

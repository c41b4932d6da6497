"""Retention: the clean-up that removes nothing which a retained snapshot or a reader needs.

Older versions of the tables go, and with them their entries in the log, so that the log lists just what can be
restored, and what an epoch costs depends on what is retained and not on how many epochs there were.
Savepoints are tables of their own: nothing here touches them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from deltalake import CommitProperties, PostCommitHookProperties
from deltalake.exceptions import CommitFailedError

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import QUIET, Manifest
from tidegate.pipelines.snapshots.head import Snapshot, read_snapshot, required, snapshots_of
from tidegate.pipelines.snapshots.recovery import recover, trusted_head
from tidegate.pipelines.snapshots.retained import Retention, retained
from tidegate.pipelines.tables import state
from tidegate.pipelines.tables.compaction import drop_old_epochs
from tidegate.pipelines.tables.files import epoch_of
from tidegate.pipelines.tables.pipeline_tables import ALL, LEASE, PUBLISHED, PipelineTables
from tidegate.pipelines.tables.table_log import LogMemory, TableLog
from tidegate.windowing.time import Millis, non_negative_millis

_GOOD_PART = 1.1

_DELETIONS_PER_CHECK = 100
"""Files that are deleted before the lease and the head are looked at again."""


@dataclass(frozen=True, slots=True)
class Clearing:
    """What a clean-up removes (or would remove).

    Args:
        snapshots: epochs whose snapshots can't be restored any more.
        files: by table, name and size in bytes of the files that go.
    """

    snapshots: tuple[int, ...]
    files: dict[str, dict[str, int]]

    @property
    def size(self) -> int:
        """Bytes in all."""
        return sum(size for files in self.files.values() for size in files.values())


@dataclass(frozen=True)
class _Decision:
    """What goes, and what stays of each log.

    Args:
        clearing: what goes.
        snapshots: versions of table state that stay, by themselves.
        since: by table, the first version from which on all stay.
        logs: by table.
        oldest_epoch: whose snapshot stays.
    """

    clearing: Clearing
    snapshots: frozenset[int]
    since: dict[str, int]
    logs: dict[str, TableLog]
    oldest_epoch: int


def is_worthwhile(tables: PipelineTables, retention: Retention) -> bool:
    """Whether a clean-up would remove a good part of the newest snapshots: a tenth more than are to stay.

    It lists one log; the clean-up itself lists every folder.
    """
    return len(TableLog(tables, state.NAME).recent) > retention.snapshots * _GOOD_PART


def vacuum(
    tables: PipelineTables,
    retention: Retention,
    now: Millis,
    dry_run: bool = False,
    check_lease: Callable[[], None] | None = None,
    memory: LogMemory | None = None,
) -> Clearing:
    """Remove what no retained snapshot, published row or unpublished manifest needs.

    The caller holds the lease. Drivers that hang with files they have not committed are fenced off first, and a
    clean-up that hung itself removes nothing that somebody made the head meanwhile.

    Args:
        tables: the pipeline's tables.
        retention: which snapshots stay.
        now: int64 epoch milliseconds.
        dry_run: whether to only tell.
        check_lease: raises LeaseHeld if the lease went to another driver.
        memory: what was read of the logs before.

    Raises:
        Refused: the pipeline has no snapshot, or somebody commits at the same time.
    """
    if dry_run:
        return _decide(tables, required(tables, trusted_head(tables)), retention, now, LogMemory()).clearing
    head = required(tables, recover(tables))
    fence = _fence(tables)

    def check() -> None:
        if check_lease is not None:
            check_lease()
        _check_head(tables, fence)

    decision = _decide(tables, head, retention, now, LogMemory() if memory is None else memory)
    # The log first: a version that is listed can be read, whenever this ends.
    for table in ALL:
        check()
        decision.logs[table].keep(decision.snapshots if table == state.NAME else (), decision.since[table])
        for number, name in enumerate(decision.clearing.files[table]):
            if number % _DELETIONS_PER_CHECK == 0:
                check()
            tables.warehouse.delete_file(tables.path(table), name)
    if retention.epochs is not None:
        drop_old_epochs(tables, now - non_negative_millis(retention.epochs, "epochs"), decision.oldest_epoch)
    _clear_lease(tables)
    return decision.clearing


def _decide(tables: PipelineTables, head: Snapshot, retention: Retention, now: Millis, memory: LogMemory) -> _Decision:
    # The files before the logs: what is written from here on belongs to a commit that no log has yet.
    files = {table: tables.warehouse.names(tables.path(table)) for table in ALL}
    logs = {table: TableLog(tables, table, memory) for table in ALL}
    entries = list(snapshots_of(logs[state.NAME]))
    kept = retained(entries, retention, now)
    since = {state.NAME: _dense_from(logs[state.NAME], [entry.version for entry in entries], kept)}
    since |= {table: logs[table].version_at(retention.oldest_read(now)) for table in PUBLISHED}
    needed = {table: logs[table].files_since(since[table]) for table in ALL}
    for version in kept:
        if version < since[state.NAME]:
            needed[state.NAME] |= logs[state.NAME].files_at(version)
    # Epochs that only read and computed publish files of their own, which are named for them; a stream has too many
    # to read the manifest of each.
    quiet = [entry.version for entry in entries if entry.version in kept and entry.manifest["kind"] in QUIET]
    for manifest in _manifests(tables, quiet):
        for table, work in manifest.publish.items():
            needed[table] |= {file.path for file in work.files}
    epochs = {entry.epoch for entry in entries if entry.version in kept}
    clearing = Clearing(
        tuple(entry.epoch for entry in entries if entry.version not in kept),
        {table: _superfluous(files[table], needed[table], epochs if table in PUBLISHED else ()) for table in ALL},
    )
    return _Decision(clearing, frozenset(kept), since, logs, min(epochs, default=head.manifest.epoch))


def _dense_from(log: TableLog, snapshots: Sequence[int], kept: Collection[int]) -> int:
    """The first of the versions up to the newest between which none is missing, nor goes.

    Args:
        log: of table state.
        snapshots: versions of all snapshots, the newest first.
        kept: those that stay.
    """
    recent = log.recent
    return min(takewhile(lambda version: version in kept and version >= recent[0], snapshots), default=recent[-1])


def _fence(tables: PipelineTables) -> int:
    """A commit after which no driver can commit files that it wrote before; its version."""
    handle = tables.open(state.NAME)
    planned_at = handle.version()
    try:
        handle.create_write_transaction(
            [],
            "append",
            handle.schema(),
            commit_properties=CommitProperties(custom_metadata={"tidegate_fence": "vacuum"}, max_commit_retries=0),
            post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=False),
        )
    except CommitFailedError as error:
        raise Refused(f"somebody commits to table state of {tables.pipeline} at this moment: try again") from error
    return planned_at + 1


def _check_head(tables: PipelineTables, fence: int) -> None:
    """Refuse to go on if somebody committed to table state since the fence: what they need is not what was decided."""
    if tables.warehouse.log(tables.path(state.NAME)).info(fence + 1) is not None:
        raise Refused(
            f"somebody committed to table state of {tables.pipeline} while this clean-up hung, and may need what it "
            "was about to remove: it ends here, and nothing is lost. Run `tidegate vacuum` again"
        )


def _manifests(tables: PipelineTables, versions: list[int]) -> Iterator[Manifest]:
    for version in versions:
        snapshot = read_snapshot(tables, version)
        if snapshot is not None:
            yield snapshot.manifest


def _superfluous(files: dict[str, int], needed: set[str], epochs: Collection[int]) -> dict[str, int]:
    """Files that are neither needed nor of one of these epochs."""
    return {
        name: size
        for name, size in files.items()
        if name.endswith(".parquet") and name not in needed and epoch_of(name) not in epochs
    }


def _clear_lease(tables: PipelineTables) -> None:
    tables.warehouse.open(tables.path(LEASE)).vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)

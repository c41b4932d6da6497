"""Remove what is old: snapshots and files that no retained snapshot or reader needs, and late and rejected rows.

The cleanup removes older versions of the tables together with their log entries. So the log lists only what can be
restored, and the cost of an epoch depends on the number of retained snapshots, not on the number of all epochs.
Savepoints are separate tables, and the cleanup never touches them. The rows of old epochs are removed by an epoch
that reads no new rows and lists the old ones, like a restore.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import takewhile
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import epochs, late, rejects, state
from tidegate.pipelines.definition.columns import TIMESTAMP
from tidegate.pipelines.definition.config import PipelineEntry
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.manifest import QUIET
from tidegate.pipelines.ledger.snapshots.commit import StateFiles, commit_epoch
from tidegate.pipelines.ledger.snapshots.head import (
    FENCE,
    KEPT,
    Snapshot,
    SnapshotEntry,
    kept_of,
    require_snapshot,
    required,
    snapshots_of,
)
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.ledger.snapshots.recovery import recover, trusted_head
from tidegate.pipelines.ledger.snapshots.stages import NewEpoch
from tidegate.pipelines.ledger.step_log import log_step
from tidegate.pipelines.ledger.tables.commits import commit
from tidegate.pipelines.ledger.tables.compaction import drop_old_epochs
from tidegate.pipelines.ledger.tables.files import epoch_of
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, PUBLISHED, PipelineTables
from tidegate.pipelines.ledger.tables.table_log import LogMemory, TableLog, leave_newest, not_ahead
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.windowing.time import Duration, Millis, from_millis, non_negative_millis

_GOOD_PART = 1.1
"""Number of snapshots, as a multiple of those to keep, above which a cleanup is worthwhile."""

_DELETIONS_PER_CHECK = 100
"""Number of files to delete between two checks of the lease and the head."""


@dataclass(frozen=True, slots=True)
class Clearing:
    """The epochs whose snapshots a cleanup removes or would remove, and, by table, the name and size of each file."""

    snapshots: tuple[int, ...]
    files: dict[str, dict[str, int]]

    @property
    def size(self) -> int:
        """Size of all removed files, in bytes."""
        return sum(size for files in self.files.values() for size in files.values())


@dataclass(frozen=True)
class _Decision:
    """Plan of a cleanup: the files to remove, and the versions of each log to keep.

    `snapshots` are the versions of table state that are kept for their snapshots. `since` has, for each table, the
    version from which all versions are kept.
    """

    clearing: Clearing
    snapshots: frozenset[int]
    since: dict[str, int]
    logs: dict[str, TableLog]
    oldest_epoch: int


def is_worthwhile(tables: PipelineTables, retention: Retention) -> bool:
    """Return True if the number of recent snapshots exceeds the number to keep by more than a tenth.

    This lists one log. The cleanup itself lists every folder, so it should not run after each epoch.
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
    """Remove files and log entries that no retained snapshot, published row or unpublished manifest needs.

    The caller holds the lease. The files are listed first; then a fence in each table makes any hung process with
    uncommitted files fail. The fence records what is kept, so that nobody restores what a hung cleanup may still
    remove. A dry run removes nothing, and only returns what would be removed.
    """
    if dry_run:
        return _decide(tables, required(tables, trusted_head(tables)), retention, now, LogMemory()).clearing
    head = required(tables, recover(tables))
    decision = _decide(tables, head, retention, now, LogMemory() if memory is None else memory)
    check = check_lease or (lambda: None)
    check()
    at = {table: log.versions[-1] for table, log in decision.logs.items()}
    # An idle table gets no commit, so that its log does not grow with each maintenance run of a stream.
    cleared = [table for table in decision.logs if table != state.NAME and decision.clearing.files[table]]
    _fence(tables, at, cleared, decision.since, decision.snapshots)
    # Log entries are removed before files, so each listed version stays readable if this stops halfway.
    for table in decision.logs:
        check()
        decision.logs[table].keep(decision.snapshots if table == state.NAME else (), decision.since[table])
        for number, name in enumerate(decision.clearing.files[table]):
            if number % _DELETIONS_PER_CHECK == 0:
                check()
            tables.warehouse.delete_file(tables.path(table), name)
    if retention.epochs is not None:
        before = now - non_negative_millis(retention.epochs, "epochs")
        drop_old_epochs(tables, before, decision.oldest_epoch, now)
    return decision.clearing


def keep_newest_only(tables: PipelineTables) -> None:
    """Remove all snapshots but the newest, all older versions of each table, and all files that are no longer needed.

    This does not depend on clocks, neither a driver's nor those of commits. The caller holds the lease.
    """
    required(tables, recover(tables))
    names = tables.with_windows(ALL)
    listed = {table: tables.warehouse.names(tables.path(table)) for table in names}
    at = {table: tables.newest(table).version() for table in names}
    newest = next(entry.version for entry in snapshots_of(TableLog(tables, state.NAME)))
    since = {**at, state.NAME: newest}
    # After the fence, nobody can commit any of the listed files.
    _fence(tables, at, tables.with_windows(PUBLISHED), since)
    for table in names:
        leave_newest(tables, table, since[table], listed[table])


def _decide(tables: PipelineTables, head: Snapshot, retention: Retention, now: Millis, memory: LogMemory) -> _Decision:
    # List the files before the logs: a file written later is not in the list, so it can't be removed.
    names = tables.with_windows(ALL)
    files = {table: tables.warehouse.names(tables.path(table)) for table in names}
    logs = {table: TableLog(tables, table, memory) for table in names}
    entries = list(snapshots_of(logs[state.NAME]))
    kept = retained(entries, retention, now)
    since = _since(logs, entries, kept, retention.oldest_read(now), now)
    needed = _needed(tables, logs, since, [entry for entry in entries if entry.version in kept])
    kept_epochs = {entry.epoch for entry in entries if entry.version in kept}
    clearing = Clearing(
        tuple(entry.epoch for entry in entries if entry.version not in kept),
        {
            table: _superfluous(files[table], needed[table], kept_epochs if table in PUBLISHED else ())
            for table in names
        },
    )
    return _Decision(clearing, frozenset(kept), since, logs, min(kept_epochs, default=head.manifest.epoch))


def _since(
    logs: Mapping[str, TableLog],
    entries: Sequence[SnapshotEntry],
    kept: Collection[int],
    oldest_read: Millis,
    now: Millis,
) -> dict[str, int]:
    """Return, by table, the version from which all versions are kept: for snapshots and for readers since a time."""
    of_state = logs[state.NAME]
    since = {table: log.version_at(oldest_read, now) for table, log in logs.items() if table != state.NAME}
    since[state.NAME] = _dense_from(of_state, [entry.version for entry in entries], kept)
    # An earlier, hung cleanup may still remove earlier versions. A table that was recreated since then has fewer.
    before = kept_of(of_state).since
    return {
        table: min(max(version, before.get(table, 0)), logs[table].versions[-1]) for table, version in since.items()
    }


def _needed(
    tables: PipelineTables,
    logs: Mapping[str, TableLog],
    since: Mapping[str, int],
    kept: Sequence[SnapshotEntry],
) -> dict[str, set[str]]:
    """Return, by table, the files of the versions that are kept, and those that kept snapshots may have to publish."""
    needed = {table: log.files_since(since[table]) for table, log in logs.items()}
    for entry in kept:
        if entry.version < since[state.NAME]:
            needed[state.NAME] |= logs[state.NAME].files_at(entry.version)
    # Epochs that read no new rows may publish files of other epochs, so their manifests are read. Files of other epochs
    # have the epoch's number in their names, and a stream has too many epochs to read each manifest.
    for entry in kept:
        if entry.manifest["kind"] not in QUIET:
            continue
        for table, work in require_snapshot(tables, entry.version).manifest.publish.items():
            needed[table] |= {file.path for file in (*work.files, *(each.file for each in work.deleted))}
    return needed


def _dense_from(log: TableLog, snapshots: Sequence[int], kept: Collection[int]) -> int:
    """Return the oldest version of table state after which no version is missing and every snapshot is kept.

    The snapshots are given newest first.
    """
    recent = log.recent
    return min(takewhile(lambda version: version in kept and version >= recent[0], snapshots), default=recent[-1])


def _fence(
    tables: PipelineTables,
    at: Mapping[str, int],
    cleared: Sequence[str],
    since: Mapping[str, int],
    snapshots: Collection[int] = (),
) -> None:
    """Commit to tables on top of the version that a cleanup is based on, and record which versions of state are kept.

    For each table, `at` is the version that the cleanup is based on, and `since` the version from which all are kept.
    Table state always gets a commit; `cleared` names the tables that get one because they lose files.
    """
    kept = {"snapshots": sorted(version for version in snapshots if version < since[state.NAME]), "since": since}
    # Table state is last: nothing is given up until every table is fenced.
    for table in (*cleared, state.NAME):
        noted = {KEPT: kept} if table == state.NAME else {}
        commit(tables.warehouse, tables.open(table, at[table]), [], {FENCE: "vacuum", **noted})
    log_step("fenced")


def _superfluous(files: dict[str, int], needed: set[str], of_epochs: Collection[int]) -> dict[str, int]:
    """Return the data files that are not needed and that none of these epochs wrote."""
    return {
        name: size
        for name, size in files.items()
        if name.endswith(".parquet") and name not in needed and epoch_of(name) not in of_epochs
    }


THINNED = frozenset({"stream", "clock"})
"""Kinds of epochs for which retention keeps only one snapshot per hour."""

HOUR: Millis = 3_600_000


@dataclass(frozen=True, slots=True)
class Retention:
    """Rule for the snapshots and the versions of published tables to keep.

    Args:
        snapshots: number of newest snapshots to keep, at least 1.
        age: age up to which older snapshots are kept too; for a stream, the newest of each hour.
        readers: time for which replaced versions of the published tables are kept for readers; None for the age.
        epochs: time for which rows of table epochs are kept; None to keep them forever.

    Raises:
        UsageError: fewer than one snapshot.
        IllegalArgument: a negative duration.
    """

    snapshots: int
    age: Duration
    readers: Duration | None = None
    epochs: Duration | None = None

    def __post_init__(self) -> None:
        if self.snapshots < 1:
            raise UsageError(
                f"snapshots to keep: {self.snapshots}; the newest snapshot is never removed, so give 1 or more"
            )
        non_negative_millis(self.age, "age")
        for name, given in (("readers", self.readers), ("epochs", self.epochs)):
            if given is not None:
                non_negative_millis(given, name)

    @classmethod
    def of(cls, entry: PipelineEntry, snapshots: int | None = None, days: int | None = None) -> Self:
        """Read the rule from a pipeline's entry in tidegate.toml. `snapshots` and `days` override its settings."""
        age = timedelta(days=entry.retain_days if days is None else days)
        readers = min(age, timedelta(hours=entry.retain_log_hours))
        newest = entry.retain_snapshots if snapshots is None else snapshots
        return cls(newest, age, readers, timedelta(days=entry.retain_history_days))

    def oldest_snapshot(self, now: Millis) -> Millis:
        """Return the commit time before which snapshots are removed, unless they are among the newest."""
        return now - non_negative_millis(self.age, "age")

    def oldest_read(self, now: Millis) -> Millis:
        """Return the time before which replaced versions of published tables are removed."""
        return now - non_negative_millis(self.age if self.readers is None else self.readers, "readers")


def retained(entries: Sequence[SnapshotEntry], retention: Retention, now: Millis) -> set[int]:
    """Return the versions of the snapshots to keep, of entries that are newest first."""
    newest = entries[: retention.snapshots]
    return {entry.version for entry in (*newest, *_by_age(entries, retention.oldest_snapshot(now), now))}


def _by_age(entries: Sequence[SnapshotEntry], oldest: Millis, now: Millis) -> Iterator[SnapshotEntry]:
    """Yield the snapshots that are recent enough; for a stream, only the newest of each timeline and hour."""
    hours = set()
    times = not_ahead([entry.committed_at for entry in reversed(entries)], now)[::-1]
    for entry, committed_at in zip(entries, times, strict=True):
        if committed_at < oldest:
            continue
        hour = (entry.manifest["timeline"], entry.committed_at // HOUR)
        if entry.manifest["kind"] not in THINNED:
            yield entry
        elif hour not in hours:
            hours.add(hour)
            yield entry


PRUNED = (late.NAME, rejects.NAME)


def prune(tables: PipelineTables, before: Millis, now: Millis) -> dict[str, int]:
    """Remove the late and rejected rows of epochs that began before a time. Return their number by table.

    The caller holds the lease. The counters of these epochs are kept and still count the removed rows. If an epoch
    rejected a row because its time was ahead, its rejected rows are kept: without them, the row would be accepted once
    OPTIMIZE has rewritten its file.
    """
    head = required(tables, recover(tables))
    old, oldest, last = _epochs_before(tables, before, head.manifest.epoch)
    removed, counts = {}, {}
    for table in PRUNED:
        held = read_table(tables.warehouse, tables.newest(table), ["epoch"])["epoch"]
        spared = _ahead_epochs(tables) if table == rejects.NAME else frozenset[int]()
        is_spared = pc.is_in(held, value_set=pa.array(sorted(spared), pa.int64()))
        is_old = pc.or_(pc.is_in(held, value_set=old), pc.less(held, oldest))
        expired = held.filter(pc.and_not(is_old, is_spared))
        counts[table] = len(expired)
        # The newest old epoch is listed even if it has no rows here: files of an abandoned lineage may hold older rows.
        newest = next((epoch for epoch in range(last, 0, -1) if epoch not in spared), None)
        removed[table] = tuple(sorted({*expired.to_pylist(), *((newest,) if newest else ())}))
    if any(counts.values()):
        quiet = NewEpoch.without_rows("prune", head.manifest, now)
        new = replace(quiet, withdrawn=replace(quiet.withdrawn, epochs=removed))
        files = StateFiles.without_shards(tables, head, new.epoch, new.kind)
        publish(tables, commit_epoch(tables, head.handle, new, files))
    return counts


def _ahead_epochs(tables: PipelineTables) -> frozenset[int]:
    """Return the epochs on any lineage that rejected a row because its time was ahead."""
    handle = tables.newest(rejects.NAME)
    rows = read_table(tables.warehouse, handle, ["epoch"], where=pc.field("reason") == rejects.AHEAD)
    return frozenset(rows["epoch"].to_pylist())


def _epochs_before(tables: PipelineTables, before: Millis, newest: int) -> tuple[pa.Array, int, int]:
    """Return three values about the old epochs, which began before a time.

    They are the numbers of these epochs; a number below which all epochs are old too, even if table epochs no longer
    has their rows (0 for none); and the newest old number in any lineage (0 for none).
    """
    rows = read_table(tables.warehouse, tables.newest(epochs.NAME), ["epoch", "started_at"])
    is_old = pc.less(rows["started_at"], pa.scalar(from_millis(before)).cast(TIMESTAMP))
    old = rows["epoch"].filter(is_old).combine_chunks()
    oldest = pc.min(rows["epoch"]).as_py()
    others = rows["epoch"].filter(pc.invert(is_old))
    last = newest if not len(others) else pc.min(others).as_py() - 1
    return old, oldest if oldest in old.to_pylist() else 0, last if len(old) else 0

"""Retention: how long snapshots live, and the clean-up that can remove nothing which one of them needs.

Kept are the newest snapshots by number and by age, whichever keeps more. Older versions of the tables
go, and with them the log before the oldest that stays, so that the log lists just what can be restored.
Savepoints are tables of their own: nothing here touches them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties
from deltalake.exceptions import CommitFailedError

from pipelines.errors import Refused, UsageError
from pipelines.lease import NAME as LEASE
from pipelines.snapshots.head import list_snapshots, read_snapshot
from pipelines.snapshots.manifest import QUIET, Manifest
from pipelines.snapshots.recovery import require_recovered, require_trusted
from pipelines.storage import active_files
from pipelines.tables import state
from pipelines.tables.files import epoch_of
from pipelines.tables.pipeline_tables import ALL, PUBLISHED, PipelineTables
from windowing.time import Duration, Millis, non_negative_millis

_GOOD_PART = 1.1


@dataclass(frozen=True, slots=True)
class Retention:
    """Which snapshots stay.

    Args:
        snapshots: at least so many of the newest.
        age: and all that are not older than this; readers of the other tables have as long, too.

    Raises:
        UsageError: fewer than one snapshot. IllegalArgument: a negative age.
    """

    snapshots: int
    age: Duration

    def __post_init__(self) -> None:
        if self.snapshots < 1:
            raise UsageError(f"snapshots to keep: {self.snapshots}; the newest one always stays, so give 1 or more")
        non_negative_millis(self.age, "age")


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


def is_worthwhile(tables: PipelineTables, retention: Retention, now: Millis) -> bool:
    """Whether a clean-up would remove a good part of what there is: a tenth more than is to stay.

    It looks at one entry of the log; the clean-up itself reads all of it, which takes long where many snapshots stay.
    """
    versions = _versions(tables, state.NAME)
    if len(versions) <= retention.snapshots * _GOOD_PART:
        return False
    written = (
        action["commitInfo"]["timestamp"]
        for action in _actions(tables, state.NAME, versions[0])
        if "commitInfo" in action
    )
    return now - next(written, now) > non_negative_millis(retention.age, "age") * _GOOD_PART


def vacuum(tables: PipelineTables, retention: Retention, now: Millis, dry_run: bool = False) -> Clearing:
    """Remove what no retained snapshot, published row or unpublished manifest needs.

    The caller holds the lease. Drivers that hang with files they have not committed are fenced off first.

    Args:
        tables: the pipeline's tables.
        retention: which snapshots stay.
        now: int64 epoch milliseconds.
        dry_run: whether to only tell.

    Raises:
        Refused: the pipeline has no snapshot, or somebody commits at the same time.
    """
    head = require_trusted(tables) if dry_run else require_recovered(tables)
    if not dry_run:
        _fence(tables)
    oldest_moment = now - non_negative_millis(retention.age, "age")
    entries = list_snapshots(tables)
    kept = [
        entry
        for number, entry in enumerate(entries)
        if number < retention.snapshots or entry.committed_at >= oldest_moment
    ]
    oldest = {state.NAME: min((entry.version for entry in kept), default=head.version)}
    oldest |= {table: _version_at(tables.open(table), oldest_moment) for table in PUBLISHED}
    needed = {table: _files_since(tables, table, oldest[table]) for table in ALL}
    # Epochs that only read and computed publish files of their own, which are named for them; a stream has too many
    # to read the manifest of each.
    for manifest in _manifests(tables, [entry.version for entry in kept if entry.manifest["kind"] in QUIET]):
        for table, work in manifest.publish.items():
            needed[table] |= {file.path for file in work.files}
    versions = {entry.version for entry in kept}
    epochs = {entry.manifest["epoch"] for entry in kept}
    clearing = Clearing(
        tuple(entry.manifest["epoch"] for entry in entries if entry.version not in versions),
        {table: _superfluous(tables, table, needed[table], epochs if table in PUBLISHED else ()) for table in ALL},
    )
    if not dry_run:
        # The log first: a version that is listed can be read, whenever this ends.
        for table in ALL:
            tables.shorten_log(table, oldest[table])
            for name in clearing.files[table]:
                tables.warehouse.delete_file(tables.path(table), name)
        _clear_lease(tables)
    return clearing


def _fence(tables: PipelineTables) -> None:
    """A commit after which no driver can commit files that it wrote before."""
    handle = tables.open(state.NAME)
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


def _version_at(handle: DeltaTable, moment: Millis) -> int:
    """The version that was the newest at a moment; readers who opened a later one still read."""
    before = [commit["version"] for commit in handle.history() if commit["timestamp"] <= moment]
    return max(before, default=min((commit["version"] for commit in handle.history()), default=handle.version()))


def _files_since(tables: PipelineTables, table: str, version: int) -> set[str]:
    """Every file of a version and of those after it."""
    names = {file["path"] for file in active_files(tables.open(table, version))}
    head = tables.open(table).version()
    for after in range(version + 1, head + 1):
        names |= {unquote(add["path"]) for action in _actions(tables, table, after) if (add := action.get("add"))}
    return names


def _actions(tables: PipelineTables, table: str, version: int) -> Iterator[dict[str, Any]]:
    filesystem, root = tables.warehouse.filesystem(tables.path(table))
    log = f"{root}/_delta_log" if root else "_delta_log"
    with filesystem.open_input_stream(f"{log}/{version:020d}.json") as stream:
        for line in stream.read().splitlines():
            if line:
                yield json.loads(line)


def _manifests(tables: PipelineTables, versions: list[int]) -> Iterator[Manifest]:
    for version in versions:
        snapshot = read_snapshot(tables, version)
        if snapshot is not None:
            yield snapshot.manifest


def _superfluous(tables: PipelineTables, table: str, needed: set[str], epochs: Collection[int]) -> dict[str, int]:
    """Files that are neither needed nor of one of these epochs."""
    found = tables.warehouse.names(tables.path(table))
    return {
        name: size
        for name, size in found.items()
        if name.endswith(".parquet") and name not in needed and epoch_of(name) not in epochs
    }


def _versions(tables: PipelineTables, table: str) -> list[int]:
    """The versions that the log has an entry of."""
    names = tables.warehouse.names(tables.warehouse.path(tables.pipeline, table, "_delta_log"))
    return sorted(int(name[:20]) for name in names if name[:20].isdigit() and name[20:] == ".json")


def _clear_lease(tables: PipelineTables) -> None:
    tables.warehouse.open(tables.path(LEASE)).vacuum(retention_hours=1, dry_run=False, enforce_retention_duration=False)

"""Forgetting a key: its rows leave every table, snapshot and savepoint, and the files they were in are removed.

It is an epoch of its own: state and manifest in one commit, the other tables when it is published. After
that only the newest snapshot stays, since every older one may hold the key. An interrupted run is simply
repeated. The source is its owner's: what is still there comes back with a backfill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow.compute as pc
from deltalake import CommitProperties

from pipelines.epoch.publish import key_columns, publish
from pipelines.errors import Refused
from pipelines.pipeline import Pipeline
from pipelines.snapshots.commit import commit_snapshot
from pipelines.snapshots.head import Snapshot, require_snapshot
from pipelines.snapshots.manifest import DataFile, Manifest, Publish, Shard, line_after
from pipelines.snapshots.quiet import quiet_manifest
from pipelines.snapshots.retention import Retention, vacuum
from pipelines.snapshots.savepoint import broken_savepoints, list_savepoints, read_savepoint
from pipelines.storage import arrow_schema, read_table
from pipelines.tables import late, rejects, results, state
from pipelines.tables.files import add_action, check_written, remove_action, write_file
from pipelines.tables.key_groups import hash_of_texts, key_hashes, key_schema
from pipelines.tables.pipeline_tables import PUBLISHED, PipelineTables
from windowing.state.rows import WINDOW
from windowing.time import Millis


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What was erased.

    Args:
        epoch: that did it.
        rows: by table, how many rows the key had; of the savepoints by their names.
    """

    epoch: int
    rows: dict[str, int]


def forget(tables: PipelineTables, pipeline: Pipeline, key: Sequence[str], now: Millis) -> Forgotten:
    """Erase a key. The caller holds the lease.

    Args:
        tables: the pipeline's tables.
        pipeline: its value: a key that `columns=` derives can't be told in the source's rows.
        key: texts of the key columns' values, in order.
        now: int64 epoch milliseconds.

    Raises:
        UsageError: that is no key of this pipeline.
        Refused: late or rejected rows can't be told by the key, or somebody commits at the same time.
    """
    head = require_snapshot(tables)
    hash_ = hash_of_texts(key_schema(arrow_schema(head.handle), tuple(head.manifest.schemas.key)), key)
    _check_told(tables, pipeline, head)
    if broken := broken_savepoints(tables):
        raise Refused(
            f"savepoint {broken[0].name!r} can't be read, so it may hold the key: {broken[0].reason}. Delete it "
            f"(`tidegate savepoint delete {tables.pipeline} {broken[0].name}`) or mend it; nothing was erased"
        )
    publish(tables, head.manifest)
    rows = _published_rows(tables, head, hash_)
    rest = _without(tables, head, hash_, f"state-{head.manifest.epoch + 1:06d}-forget")
    manifest = _manifest(head.manifest, hash_, rest, now)
    commit_snapshot(tables, head.handle, manifest, arrow_schema(head.handle), rest.added, rest.kept)
    publish(tables, manifest)
    rows[state.NAME] = rest.gone
    for entry in list_savepoints(tables):
        rows[f"savepoint {entry.name}"] = _forget_in_savepoint(tables, entry.name, hash_)
    vacuum(tables, Retention(snapshots=1, age=0), now)
    return Forgotten(manifest.epoch, rows)


def _check_told(tables: PipelineTables, pipeline: Pipeline, head: Snapshot) -> None:
    # Rows of two inputs are kept with their key beside them.
    derived = sorted(set(pipeline.key) & set(pipeline.columns)) if pipeline.right is None else []
    for table in (late.NAME, rejects.NAME):
        handle = tables.open(table)
        known = key_columns(table, arrow_schema(handle), tuple(head.manifest.schemas.key))
        if (derived or not known) and len(read_table(tables.warehouse, handle, ["epoch"])):
            raise Refused(
                f"table {tables.path(table)} holds rows of the source, in which the derived key column(s) "
                f"{', '.join(derived) or 'of this pipeline'} can't be told: nothing was erased. Forget them in the "
                "source, restore a snapshot from before these rows, or give the pipeline a key of source columns"
            )


def _published_rows(tables: PipelineTables, head: Snapshot, hash_: int) -> dict[str, int]:
    counts = {}
    for table in (results.NAME, late.NAME, rejects.NAME):
        handle = tables.open(table)
        key = key_columns(table, arrow_schema(handle), tuple(head.manifest.schemas.key))
        if key:
            rows = read_table(tables.warehouse, handle, list(key))
            counts[table] = pc.sum(pc.equal(key_hashes(rows, key), hash_)).as_py() or 0
    return counts


class _Rest(NamedTuple):
    """A snapshot without a key: rows and open windows that are gone, files that come, paths that stay."""

    gone: int
    windows: int
    added: list[DataFile]
    kept: set[str]


def _without(tables: PipelineTables, snapshot: Snapshot, hash_: int, prefix: str) -> _Rest:
    names = tuple(snapshot.manifest.schemas.key)
    schema = arrow_schema(snapshot.handle)
    gone, windows, added, kept = 0, 0, [], set()
    for file in snapshot.files:
        rows = tables.warehouse.read_files(snapshot.path, [file["path"]], schema)
        rows = rows.filter(pc.not_equal(rows["key_group"], state.MANIFEST_KEY_GROUP))
        holds = pc.equal(key_hashes(rows, names), hash_)
        own = rows.filter(holds)
        if not len(own):
            kept.add(file["path"])
            continue
        gone += len(own)
        windows += pc.sum(pc.and_(pc.equal(own["namespace"], WINDOW), own["in_flight"])).as_py() or 0
        rest = write_file(tables.warehouse, snapshot.path, prefix, rows.filter(pc.invert(holds)))
        added += [] if rest is None else [rest]
    return _Rest(gone, windows, added, kept)


def _manifest(head: Manifest, hash_: int, rest: _Rest, now: Millis) -> Manifest:
    epoch = head.epoch + 1
    group = hash_ % head.max_parallelism
    return quiet_manifest(
        head,
        "forget",
        epoch,
        head.timeline,
        line_after(head, epoch),
        {table: Publish(forget_keys=(hash_,)) for table in PUBLISHED},
        now,
        tuple(_smaller(shard, rest) if shard.first <= group <= shard.last else shard for shard in head.shards),
    )


def _smaller(shard: Shard, rest: _Rest) -> Shard:
    windows = shard.counters.get("open_windows", rest.windows) - rest.windows
    counters = {**shard.counters, "open_windows": windows}
    return shard.model_copy(update={"rows": shard.rows - rest.gone, "counters": counters})


def _forget_in_savepoint(tables: PipelineTables, name: str, hash_: int) -> int:
    """Erase the key from a savepoint; how many rows it had there."""
    snapshot = read_savepoint(tables, name)
    rest = _without(tables, snapshot, hash_, "state-forget")
    own = {file["path"] for file in snapshot.manifest_files}
    if rest.gone:
        told = next(commit["tidegate"] for commit in snapshot.handle.history() if "tidegate" in commit)
        check_written(tables.warehouse, snapshot.path, rest.added)
        removes = [remove_action(file) for file in snapshot.files if file["path"] not in rest.kept | own]
        snapshot.handle.create_write_transaction(
            [*(add_action(file) for file in rest.added), *removes],
            "append",
            snapshot.handle.schema(),
            commit_properties=CommitProperties(custom_metadata={"tidegate": told}, max_commit_retries=0),
        )
    needed = rest.kept | own | {file.path for file in rest.added}
    for stray in tables.warehouse.names(snapshot.path).keys() - needed:
        if stray.endswith(".parquet"):
            tables.warehouse.delete_file(snapshot.path, stray)
    return rest.gone

"""Forgetting a key: its rows leave every table, snapshot and savepoint, and the files they were in are removed.

It is an epoch of its own: state and manifest in one commit, the other tables when it is published. A source
partition that is named for the key leaves the manifest, and the checks lose their examples. After that only
the newest snapshot stays, since every older one may hold the key. An interrupted run is simply repeated. A key that
nothing ever held changes nothing. The source is its owner's: what is still there comes back with a backfill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow.compute as pc
from deltalake import CommitProperties

from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import DataFile, Manifest, Publish, Shard, line_after
from tidegate.pipelines.snapshots.commit import commit_snapshot
from tidegate.pipelines.snapshots.head import Snapshot, required
from tidegate.pipelines.snapshots.key_traces import KeyTraces, partitions_of
from tidegate.pipelines.snapshots.publish import key_columns, publish
from tidegate.pipelines.snapshots.quiet import quiet_manifest
from tidegate.pipelines.snapshots.recovery import recover, trusted_head
from tidegate.pipelines.snapshots.retained import Retention
from tidegate.pipelines.snapshots.retention import vacuum
from tidegate.pipelines.snapshots.savepoint import broken_savepoints, list_savepoints, read_savepoint
from tidegate.pipelines.storage import arrow_schema, read_table
from tidegate.pipelines.tables import late, quality, rejects, results, state
from tidegate.pipelines.tables.files import add_action, check_written, remove_action, write_file
from tidegate.pipelines.tables.key_groups import hash_of_texts, key_hashes, key_schema
from tidegate.pipelines.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.state.rows import WINDOW
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class Forgotten:
    """What was erased.

    Args:
        epoch: that did it; None where nothing held the key, and nothing was changed.
        rows: by table, how many rows the key had; of the savepoints by their names.
    """

    epoch: int | None
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
    head = required(tables, trusted_head(tables))
    key_ = key_schema(arrow_schema(head.handle), tuple(head.manifest.schemas.key))
    hash_ = hash_of_texts(key_, key)
    _check_told(tables, pipeline, head)
    if broken := broken_savepoints(tables):
        raise Refused(
            f"savepoint {broken[0].name!r} can't be read, so it may hold the key: {broken[0].reason}. Delete it "
            f"(`tidegate savepoint delete {tables.pipeline} {broken[0].name}`) or mend it; nothing was erased"
        )
    head = required(tables, recover(tables))
    rows = _published_rows(tables, head, hash_)
    if not any(rows.values()) and not KeyTraces(tables, pipeline, key_, key, hash_).are_left:
        quality.forget_examples(tables, key, only_if_named=True)
        savepoints = [f"savepoint {entry.name}" for entry in list_savepoints(tables)]
        return Forgotten(None, {**rows, **dict.fromkeys((state.NAME, *savepoints), 0)})
    rest = _without(tables, head, hash_, f"state-{head.manifest.epoch + 1:06d}-forget")
    manifest = _manifest(_erased(head.manifest, pipeline, key_, key, rest), hash_, now)
    commit_snapshot(tables, head.handle, manifest, arrow_schema(head.handle), rest.added, rest.kept)
    publish(tables, manifest)
    rows[state.NAME] = rest.gone
    for entry in list_savepoints(tables):
        snapshot = read_savepoint(tables, entry.name)
        gone = _without(tables, snapshot, hash_, "state-forget")
        _rewrite_savepoint(tables, snapshot, gone, _erased(snapshot.manifest, pipeline, key_, key, gone))
        rows[f"savepoint {entry.name}"] = gone.gone
    quality.forget_examples(tables, key)
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
    """A snapshot without a key: rows and open windows that are gone, files that come, paths that stay.

    `group` is the key's group. A file with the manifest never stays: that is written anew.
    """

    group: int
    gone: int
    windows: int
    added: list[DataFile]
    kept: set[str]


def _without(tables: PipelineTables, snapshot: Snapshot, hash_: int, prefix: str) -> _Rest:
    names = tuple(snapshot.manifest.schemas.key)
    schema = arrow_schema(snapshot.handle)
    told = {file["path"] for file in snapshot.manifest_files}
    gone, windows, added, kept = 0, 0, [], set()
    for file in snapshot.files:
        rows = tables.warehouse.read_files(snapshot.path, [file["path"]], schema)
        rows = rows.filter(pc.not_equal(rows["key_group"], state.MANIFEST_KEY_GROUP))
        holds = pc.equal(key_hashes(rows, names), hash_)
        own = rows.filter(holds)
        if not len(own) and file["path"] not in told:
            kept.add(file["path"])
            continue
        gone += len(own)
        windows += pc.sum(pc.and_(pc.equal(own["namespace"], WINDOW), own["in_flight"])).as_py() or 0
        rest = write_file(tables.warehouse, snapshot.path, prefix, rows.filter(pc.invert(holds)))
        added += [] if rest is None else [rest]
    return _Rest(hash_ % snapshot.manifest.max_parallelism, gone, windows, added, kept)


def _erased(snapshot: Manifest, pipeline: Pipeline, schema: KeySchema, key: Sequence[str], rest: _Rest) -> Manifest:
    """A manifest that counts without the key, and in which no source partition is named for it."""
    shards = [_smaller(shard, rest) if shard.first <= rest.group <= shard.last else shard for shard in snapshot.shards]
    named = partitions_of(snapshot, pipeline, schema, key)
    partitions = {name: known for name, known in snapshot.partitions.items() if name not in named}
    return snapshot.model_copy(update={"shards": tuple(shards), "partitions": partitions})


def _manifest(erased: Manifest, hash_: int, now: Millis) -> Manifest:
    epoch = erased.epoch + 1
    return quiet_manifest(
        erased,
        "forget",
        epoch,
        erased.timeline,
        line_after(erased, epoch),
        {table: Publish(forget_keys=(hash_,)) for table in PUBLISHED},
        now,
    )


def _smaller(shard: Shard, rest: _Rest) -> Shard:
    windows = shard.counters.get("open_windows", rest.windows) - rest.windows
    counters = {**shard.counters, "open_windows": windows}
    return shard.model_copy(update={"rows": shard.rows - rest.gone, "counters": counters})


def _rewrite_savepoint(tables: PipelineTables, snapshot: Snapshot, rest: _Rest, erased: Manifest) -> None:
    """Put what is left into a savepoint, and remove every file that is not of it, also of a run that died."""
    listed = {file["path"]: file for file in (*snapshot.files, *snapshot.manifest_files)}
    needed = set(listed)
    if rest.gone or erased != snapshot.manifest:
        told = next(commit["tidegate"] for commit in snapshot.handle.history() if "tidegate" in commit)
        row = state.manifest_row(erased.model_dump_json(), arrow_schema(snapshot.handle))
        written = write_file(tables.warehouse, snapshot.path, "manifest-forget", row)
        added = [*rest.added, *([written] if written else [])]
        check_written(tables.warehouse, snapshot.path, added)
        removes = [remove_action(file) for path, file in listed.items() if path not in rest.kept]
        snapshot.handle.create_write_transaction(
            [*(add_action(file) for file in added), *removes],
            "append",
            snapshot.handle.schema(),
            commit_properties=CommitProperties(custom_metadata={"tidegate": told}, max_commit_retries=0),
        )
        needed = rest.kept | {file.path for file in added}
    for stray in tables.warehouse.names(snapshot.path).keys() - needed:
        if stray.endswith(".parquet"):
            tables.warehouse.delete_file(snapshot.path, stray)

"""Erasure of keys: remove their rows from every table, snapshot and savepoint, and delete the files that held them.

`forget` is a separate epoch: one commit changes state and manifest, and publishing changes the other tables. Source
partitions named after a key are removed from the manifest, and examples from checks. A partition that rows of other
keys share stays: without it, the watermark would overtake their rows. Then only the newest snapshot is
kept, because every older one may hold the keys. After an interruption, the user runs the command again. If nothing
holds any of the keys, nothing changes. `forget` does not change the source: a backfill brings back the rows that are
still there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.transaction import RemoveAction

from tidegate.pipelines.definition import epochs, late, rejects, results, state
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import Refused, TidegateError, UsageError
from tidegate.pipelines.ledger.manifest import DataFile, Manifest, Publish, Shard
from tidegate.pipelines.ledger.snapshots.commit import StateFiles, commit_epoch
from tidegate.pipelines.ledger.snapshots.head import Snapshot, list_snapshots, newest_record, require_snapshot, required
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.ledger.snapshots.recovery import recover, trusted_head
from tidegate.pipelines.ledger.snapshots.retention import keep_newest_only
from tidegate.pipelines.ledger.snapshots.savepoint import (
    broken_savepoints,
    list_savepoints,
    read_savepoint,
    remove_rests,
)
from tidegate.pipelines.ledger.snapshots.stages import NewEpoch
from tidegate.pipelines.ledger.snapshots.table_copies import FOLDER as COPIES
from tidegate.pipelines.ledger.snapshots.table_copies import copied_tables
from tidegate.pipelines.ledger.tables.commits import commit
from tidegate.pipelines.ledger.tables.files import add_action, check_written, held, remove_action, write_rows
from tidegate.pipelines.ledger.tables.keys import (
    Key,
    are_of_keys,
    digest_of,
    is_forgotten,
    key_columns,
    key_of_texts,
    mark_of_forgotten,
    texts_of_key,
)
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, REQUESTS, SAVEPOINTS, PipelineTables
from tidegate.pipelines.ledger.tables.quality import forget_examples
from tidegate.pipelines.ledger.tables.table_log import has_leftovers, leave_newest
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.storage.warehouse import active_files, arrow_schema, path_of, read_table
from tidegate.windowing.columnar.slices import open_windows
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.sides import SIDES
from tidegate.windowing.time import Millis


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The report of an erasure.

    Args:
        epoch: number of its epoch; None if nothing held the key, so nothing changed.
        rows: number of erased rows by table; for a savepoint, by `savepoint NAME`.
    """

    epoch: int | None
    rows: dict[str, int]


def forget(tables: PipelineTables, pipeline: Pipeline, keys: Sequence[Sequence[str]], now: Millis) -> Forgotten:
    """Erase keys, each given by the texts of its values, in one epoch. The caller holds the lease.

    Raises:
        UsageError: the strings are not keys of this pipeline.
        Refused: late or rejected rows don't have the key columns, or somebody commits at the same time.
    """
    head = required(tables, trusted_head(tables))
    values = [key_of_texts(head.key, key) for key in keys]
    shown = [texts_of_key(value, key) for value, key in zip(values, keys, strict=True)]
    if broken := broken_savepoints(tables):
        raise Refused(
            f"savepoint {broken[0].name!r} can't be read, so it may hold the key: {broken[0].reason}. Nothing was "
            "erased",
            Remedy(Act.DELETE_SAVEPOINT, tables.pipeline, broken[0].name),
        )
    _check_copied_tables(tables, pipeline, head)
    # Copies left by an interrupted command belong to no savepoint, and may hold the key.
    remove_rests(tables)
    head = required(tables, recover(tables))
    # An epoch that recovery published may have brought late rows.
    _check_key_columns(tables, pipeline, head)
    rows = _published_rows(tables, head, values)
    named_after = _NamedPartitions(tables, pipeline, head, values)
    tables.warehouse.delete_folder(tables.path(REQUESTS))
    if not any(rows.values()) and not _Traces(tables, pipeline, head.key.names, values, named_after).are_left:
        forget_examples(tables, shown, only_if_named=True)
        savepoints = [f"savepoint {entry.name}" for entry in list_savepoints(tables)]
        return Forgotten(None, {**rows, **dict.fromkeys((state.NAME, *savepoints), 0)})
    rest = _without(tables, head, values, f"state-{head.manifest.epoch + 1:06d}-forget")
    quiet = NewEpoch.without_rows("forget", _erased(head.manifest, named_after, values, rest), now)
    new = replace(quiet, withdrawn=replace(quiet.withdrawn, forgotten=tuple(map(mark_of_forgotten, values))))
    manifest = commit_epoch(tables, head.handle, new, StateFiles(rest.added, rest.kept))
    publish(tables, manifest)
    rows[state.NAME] = len(rest.removed)
    forget_examples(tables, shown)
    keep_newest_only(tables)
    # Savepoints come last: from here on, no file that holds the key can be copied. A command that was killed earlier
    # may have left a copy of one behind.
    remove_rests(tables)
    for entry in list_savepoints(tables):
        try:
            snapshot = read_savepoint(tables, entry.name)
            rest = _without(tables, snapshot, values, "state-forget")
            erased = _erased(snapshot.manifest, named_after, values, rest)
            _rewrite_savepoint(tables, entry.name, snapshot, rest, erased)
            copied = _erase_from_copies(tables, entry.name, snapshot, values)
        except (DeltaError, OSError, TidegateError):
            if tables.warehouse.exists(entry.path):
                raise
            # Another command has deleted the savepoint. If it ended halfway, remaining files may hold the key.
            remove_rests(tables)
            continue
        rows[f"savepoint {entry.name}"] = len(rest.removed) + copied
    return Forgotten(manifest.epoch, rows)


def _check_key_columns(tables: PipelineTables, pipeline: Pipeline, head: Snapshot) -> None:
    """Refuse if table late or rejects holds rows without the key columns: their key can't be determined."""
    for table in (late.NAME, rejects.NAME):
        handle = tables.open(table)
        key = key_columns(table, arrow_schema(handle), head.key.names, pipeline.derived_key)
        if not key and len(read_table(tables.warehouse, handle, ["epoch"])):
            derived = ", ".join(sorted(pipeline.derived_key)) or "of this pipeline"
            raise Refused(
                f"table {tables.path(table)} holds source rows without the derived key columns {derived}, so "
                "tidegate can't find the key: nothing was erased. Restore a snapshot from before them, or use a key of "
                "source columns",
                Remedy(Act.PRUNE_LATE, tables.pipeline),
            )


def _check_copied_tables(tables: PipelineTables, pipeline: Pipeline, head: Snapshot) -> None:
    """Refuse savepoints with late or rejected rows without the key columns: their key can't be determined."""
    for entry in list_savepoints(tables):
        for table, handle in copied_tables(tables.warehouse, entry.path) if entry.with_tables else ():
            if table not in (late.NAME, rejects.NAME):
                continue
            key = key_columns(table, arrow_schema(handle), head.key.names, pipeline.derived_key)
            if not key and len(read_table(tables.warehouse, handle, ["epoch"])):
                raise Refused(
                    f"savepoint {entry.name!r} has source rows without the derived key columns in its copy of table "
                    f"{table}, so tidegate can't find the key: nothing was erased",
                    Remedy(Act.DELETE_SAVEPOINT, tables.pipeline, entry.name),
                )


def _published_rows(tables: PipelineTables, head: Snapshot, values: Sequence[Key]) -> dict[str, int]:
    counts = {}
    for table in (results.NAME, late.NAME, rejects.NAME):
        handle = tables.open(table)
        key = key_columns(table, arrow_schema(handle), head.key.names)
        if key:
            rows = read_table(tables.warehouse, handle, list(key))
            counts[table] = pc.sum(are_of_keys(rows, key, values)).as_py() or 0
    return counts


class _Rest(NamedTuple):
    """The state files of a snapshot without some keys.

    `removed` has the removed rows, `key` names the key columns, `added` are the new files, and `kept` the paths of
    unchanged files. A file with the manifest is never kept, because the manifest changes.
    """

    removed: pa.Table
    key: tuple[str, ...]
    added: list[DataFile]
    kept: set[str]


def _without(tables: PipelineTables, snapshot: Snapshot, keys: Sequence[Key], prefix: str) -> _Rest:
    names, schema = snapshot.key.names, arrow_schema(snapshot.handle)
    with_manifest = {file["path"] for file in snapshot.manifest_files}
    of_keys, added, kept = list[pa.Table](), list[DataFile](), set[str]()
    for file in snapshot.files:
        rows = tables.warehouse.read_files(snapshot.path, [file["path"]], schema)
        rows = rows.filter(pc.not_equal(rows["key_group"], state.MANIFEST_KEY_GROUP))
        holds = are_of_keys(rows, names, keys)
        of_key = rows.filter(holds)
        if not len(of_key) and file["path"] not in with_manifest:
            kept.add(file["path"])
            continue
        of_keys.append(of_key)
        added += write_rows(tables.warehouse, snapshot.path, prefix, rows.filter(pc.invert(holds)))
    removed = held(pa.concat_tables(of_keys)) if of_keys else schema.empty_table()
    return _Rest(removed, names, added, kept)


def _erased(manifest: Manifest, named_after: _NamedPartitions, keys: Sequence[Key], rest: _Rest) -> Manifest:
    """Return the manifest of a snapshot without the keys' counts, source partitions and digests."""
    named = named_after.of(manifest)
    partitions = {name: partition for name, partition in manifest.partitions.items() if name not in named}
    publish = {table: _without_names(work, keys) for table, work in manifest.publish.items()}
    return manifest.model_copy(
        update={
            "shards": tuple(_smaller(shard, rest) for shard in manifest.shards),
            "partitions": partitions,
            "publish": publish,
        }
    )


def _without_names(work: Publish, keys: Sequence[Key]) -> Publish:
    """Return the changes to a table without entries that name a key, whose reopened late rows are already deleted."""
    of_keys = set(map(digest_of, keys))
    reopened = tuple(
        each.model_copy(update={"spans": tuple(span for span in each.spans if span[0] not in of_keys)})
        for each in work.reopened
        if each.digest not in of_keys
    )
    forgotten = tuple(mark for mark in work.forgotten if not any(is_forgotten(key, mark) for key in keys))
    return work.model_copy(update={"reopened": reopened, "forgotten": forgotten})


def _smaller(shard: Shard, rest: _Rest) -> Shard:
    groups = rest.removed["key_group"]
    gone = rest.removed.filter(pc.and_(pc.greater_equal(groups, shard.first), pc.less_equal(groups, shard.last)))
    if not len(gone):
        return shard
    counters = {**shard.counters, "open_windows": shard.counters["open_windows"] - len(open_windows(gone, rest.key))}
    return shard.model_copy(update={"rows": shard.rows - len(gone), "counters": counters})


def _rewrite_savepoint(tables: PipelineTables, name: str, snapshot: Snapshot, rest: _Rest, erased: Manifest) -> None:
    """Commit the remaining state to a savepoint, and delete everything that its newest version does not need."""
    table = f"{SAVEPOINTS}/{name}"
    record = newest_record(tables.warehouse, snapshot.handle)["tidegate"]
    added, removes = list[DataFile](), list[RemoveAction]()
    if len(rest.removed) or erased != snapshot.manifest:
        row = state.manifest_row(erased.model_dump_json(), arrow_schema(snapshot.handle))
        added = [*rest.added, *write_rows(tables.warehouse, snapshot.path, "manifest-forget", row)]
        check_written(tables.warehouse, snapshot.path, added)
        listed = {file["path"]: file for file in (*snapshot.files, *snapshot.manifest_files)}
        removes = [remove_action(file) for path, file in listed.items() if path not in rest.kept]
    present = tables.warehouse.names(snapshot.path)
    # This is necessary even if none of the files has the key: a hung process must not commit a file that is now
    # deleted.
    commit(tables.warehouse, snapshot.handle, [*(add_action(file) for file in added), *removes], {"tidegate": record})
    leave_newest(tables, table, tables.open(table).version(), present)


def _erase_from_copies(tables: PipelineTables, name: str, snapshot: Snapshot, keys: Sequence[Key]) -> int:
    """Remove keys from the copied tables of a savepoint. Return the number of removed rows."""
    erased = 0
    for table, handle in copied_tables(tables.warehouse, snapshot.path):
        folder, schema = f"{SAVEPOINTS}/{name}/{COPIES}/{table}", arrow_schema(handle)
        path, key = tables.path(folder), key_columns(table, schema, snapshot.key.names)
        added, removes = list[DataFile](), list[RemoveAction]()
        for file in active_files(handle) if key else ():
            rows = tables.warehouse.read_files(path, [file["path"]], schema)
            holds = are_of_keys(rows, key, keys)
            if count := pc.sum(holds).as_py() or 0:
                erased += count
                removes.append(remove_action(file))
                added += write_rows(tables.warehouse, path, f"{table}-forget", rows.filter(pc.invert(holds)))
        check_written(tables.warehouse, path, added)
        present = tables.warehouse.names(path)
        commit(tables.warehouse, handle, [*(add_action(file) for file in added), *removes], {})
        leave_newest(tables, folder, tables.open(folder).version(), present)
    return erased


_WITH_KEYS = (state.NAME, results.NAME, late.NAME, rejects.NAME)


@dataclass(frozen=True, slots=True)
class _Traces:
    """Search for keys in the files and manifests of a pipeline, including those that no snapshot refers to.

    If no key has a trace, there is nothing to forget. A file that can't be read may hold any key.
    """

    tables: PipelineTables
    pipeline: Pipeline
    names: tuple[str, ...]
    keys: Sequence[Key]
    named_after: _NamedPartitions

    @property
    def are_left(self) -> bool:
        """True if a file or a manifest may hold a key, or if the snapshot of an epoch that forgot one is retained.

        Every file in the folders counts: older snapshots refer to files that the newest one does not, and an
        interrupted `forget` leaves unreferenced files.
        """
        try:
            return (
                any(
                    self._are_in_snapshot(entry.version, entry.manifest["kind"])
                    for entry in list_snapshots(self.tables)
                )
                or any(self._are_in_table(table) for table in self.tables.with_windows(_WITH_KEYS))
                or any(self._are_in_savepoint(entry.name) for entry in list_savepoints(self.tables))
                or any(has_leftovers(self.tables, table) for table in self.tables.with_windows(ALL))
            )
        except Refused:
            return True

    def _are_in_snapshot(self, version: int, kind: str) -> bool:
        """Return True if a snapshot's manifest names the key. It is read only if it can name keys."""
        by_key = any(part.watermark_by in (part.key or self.pipeline.key) for part in self.pipeline.inputs)
        if not by_key and kind != "forget":
            return False
        return self._are_in_manifest(require_snapshot(self.tables, version).manifest)

    def _are_in_manifest(self, manifest: Manifest) -> bool:
        works = manifest.publish.values()
        return any(
            is_forgotten(key, mark) for work in works for mark in {*work.forgotten} for key in self.keys
        ) or bool(self.named_after.of(manifest))

    def _are_in_table(self, table: str) -> bool:
        schema = arrow_schema(self.tables.newest(table))
        derived = self.pipeline.derived_key
        columns = self.names if table == state.NAME else key_columns(table, schema, self.names, derived)
        return self._are_in_files(self.tables.path(table), schema, columns, table == state.NAME)

    def _are_in_savepoint(self, name: str) -> bool:
        snapshot = read_savepoint(self.tables, name)
        schema = arrow_schema(snapshot.handle)
        return (
            self._are_in_manifest(snapshot.manifest)
            or self._are_in_files(snapshot.path, schema, self.names, True)
            or any(self._are_in_copy(*copy) for copy in copied_tables(self.tables.warehouse, snapshot.path))
        )

    def _are_in_copy(self, table: str, handle: DeltaTable) -> bool:
        schema = arrow_schema(handle)
        if table == epochs.NAME:
            return False
        return self._are_in_files(path_of(handle), schema, key_columns(table, schema, self.names), False)

    def _are_in_files(self, path: str, schema: pa.Schema, columns: tuple[str, ...], is_state: bool) -> bool:
        """Return True if a data file has the key; without key columns, any file may have it."""
        names = [name for name in self.tables.warehouse.names(path) if name.endswith(".parquet")]
        if not columns:
            return bool(names)
        # Other tables may have a user's column named key_group.
        group = ["key_group"] if is_state else []
        for name in names:
            rows = self.tables.warehouse.read_files(path, [name], schema, [*columns, *group])
            if is_state:
                rows = rows.filter(pc.not_equal(rows["key_group"], state.MANIFEST_KEY_GROUP))
            if pc.any(are_of_keys(rows, columns, self.keys)).as_py():
                return True
        return False


@dataclass(frozen=True)
class _NamedPartitions:
    """The source partitions that are named after keys. Later rows of a key start new ones."""

    tables: PipelineTables
    pipeline: Pipeline
    head: Snapshot
    keys: Sequence[Key]

    def of(self, manifest: Manifest) -> set[str]:
        """Return the names of the partitions of a manifest that only these keys have."""
        named = set()
        for part, side in zip(self.pipeline.inputs, SIDES if manifest.inputs else ("",), strict=False):
            columns = part.key or self.pipeline.key
            by = manifest.watermark_by.get(side)
            if by not in columns:
                continue
            place, prefix = columns.index(by), f"{side}:" if side else ""
            of_side = [name for name in manifest.partitions if name.startswith(prefix)]
            for value in dict.fromkeys(key[place] for key in self.keys):
                found = {name for name in of_side if _is_same(name.removeprefix(prefix), value)}
                named |= set() if found and self._have_others(place, value) else found
        return named

    def _have_others(self, place: int, value: pa.Scalar) -> bool:
        """Return True if rows of other keys have a value in a key column."""
        return len(self.head.key.names) > 1 and any(
            pc.any(pc.equal(column, value)).as_py() for column in (rows.column(place) for rows in self._others)
        )

    @cached_property
    def _others(self) -> list[pa.Table]:
        """The key columns of the rows of other keys. Rejected rows are in no source partition."""
        tables, head, found = self.tables, self.head, []
        for table in (results.NAME, late.NAME):
            handle = tables.open(table)
            names = key_columns(table, arrow_schema(handle), head.key.names, self.pipeline.derived_key)
            if names:
                found.append(read_table(tables.warehouse, handle, [*names]).select(names))
        paths, schema = [file["path"] for file in head.files], arrow_schema(head.handle)
        rows = tables.warehouse.read_files(head.path, paths, schema, ["key_group", *head.key.names])
        found.append(rows.filter(pc.not_equal(rows["key_group"], state.MANIFEST_KEY_GROUP)).select(head.key.names))
        return [rows.filter(pc.invert(are_of_keys(rows, rows.column_names, self.keys))) for rows in found]


def _is_same(text: str, value: pa.Scalar) -> bool:
    """Return True if a string stands for a value of a key column. The partition of nulls is not named after a value."""
    if not value.is_valid or isinstance(value.as_py(), str):
        # The command line may parse another text to the same value.
        return bool(value.is_valid and text == value.as_py())
    try:
        (named,) = key_of_texts(KeySchema.of(part=value.type), (text,))
    except UsageError:
        # A partition's name need not be a value of the column: the name of the partition of nulls is not a number.
        return False
    return bool(named.equals(value))

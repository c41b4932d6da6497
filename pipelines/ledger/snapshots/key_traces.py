"""Traces of a key: files and manifests that hold it, including those that no snapshot refers to.

If a key has no trace, there is nothing to forget. A file that can't be read may hold any key.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import late, rejects, results, state
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.ledger.manifest import Manifest, NextPane
from tidegate.pipelines.ledger.snapshots.head import list_snapshots, read_snapshot
from tidegate.pipelines.ledger.snapshots.savepoint import list_savepoints, read_savepoint
from tidegate.pipelines.ledger.tables.keys import (
    Key,
    are_of_key,
    digest_of,
    hash_of,
    is_forgotten,
    key_columns,
    key_of_texts,
)
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, PipelineTables
from tidegate.pipelines.ledger.tables.table_log import has_leftovers
from tidegate.pipelines.storage.warehouse import arrow_schema
from tidegate.windowing.compute import Windows
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.two_inputs import SIDES

_WITH_KEYS = (state.NAME, results.NAME, late.NAME, rejects.NAME)


@dataclass(frozen=True, slots=True)
class KeyTraces:
    """Search for a key in the files and manifests of a pipeline."""

    tables: PipelineTables
    pipeline: Pipeline
    schema: KeySchema
    key: Key

    @property
    def are_left(self) -> bool:
        """True if a file or a manifest may hold the key, or if the snapshot of an epoch that forgot it is retained.

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
        compute = self.pipeline.compute
        may_vanish = isinstance(compute, Windows) and compute.assigner.merges and compute.lateness
        if not (by_key or may_vanish) and kind != "forget":
            return False
        snapshot = read_snapshot(self.tables, version)
        return snapshot is not None and self._are_in_manifest(snapshot.manifest)

    def _are_in_manifest(self, manifest: Manifest) -> bool:
        works = manifest.publish.values()
        return (
            any(is_of(item, self.schema, self.key) for item in manifest.next_panes)
            or any(is_forgotten(self.key, mark) for mark in {mark for work in works for mark in work.forgotten})
            # Only older versions of tidegate identified keys by their hashes.
            or any(hash_of(self.schema, self.key) in work.forget_keys for work in works)
            or bool(partitions_of(manifest, self.pipeline, self.schema, self.key))
        )

    def _are_in_table(self, table: str) -> bool:
        path = self.tables.path(table)
        names = self._data_files(path)
        schema = arrow_schema(self.tables.look(table))
        columns = self.schema.names if table == state.NAME else key_columns(table, schema, self.schema.names)
        is_derived = table in (late.NAME, rejects.NAME) and set(self.pipeline.key) & set(self.pipeline.columns)
        if not columns or is_derived:
            return bool(names)
        return self._are_in_files(path, names, schema, columns, is_state=table == state.NAME)

    def _are_in_savepoint(self, name: str) -> bool:
        snapshot = read_savepoint(self.tables, name)
        names = self._data_files(snapshot.path)
        schema = arrow_schema(snapshot.handle)
        return self._are_in_manifest(snapshot.manifest) or self._are_in_files(
            snapshot.path, names, schema, self.schema.names, is_state=True
        )

    def _data_files(self, path: str) -> list[str]:
        return [name for name in self.tables.warehouse.names(path) if name.endswith(".parquet")]

    def _are_in_files(
        self, path: str, names: Iterable[str], schema: pa.Schema, columns: tuple[str, ...], is_state: bool
    ) -> bool:
        # Other tables may have a user's column named key_group.
        group = ["key_group"] if is_state else []
        for name in names:
            rows = self.tables.warehouse.read_files(path, [name], schema, [*columns, *group])
            if is_state:
                rows = rows.filter(pc.not_equal(rows["key_group"], state.MANIFEST_KEY_GROUP))
            if pc.any(are_of_key(rows, columns, self.key)).as_py():
                return True
        return False


def is_of(item: NextPane, schema: KeySchema, key: Key) -> bool:
    """Return True if a next pane number belongs to a key."""
    if item.digest is None:
        # Only older versions of tidegate identified keys by their hashes.
        return item.key == hash_of(schema, key)
    return item.digest == digest_of(key)


def partitions_of(manifest: Manifest, pipeline: Pipeline, schema: KeySchema, key: Key) -> set[str]:
    """Return the source partitions that are named after a part of a key; later rows of it start a new one."""
    named = set()
    for part, side in zip(pipeline.inputs, SIDES if manifest.inputs else ("",), strict=False):
        columns = part.key or pipeline.key
        by = manifest.watermark_by.get(side, part.watermark_by)
        if by not in columns:
            continue
        index = columns.index(by)
        column = KeySchema((schema.names[index],), (schema.types[index],))
        prefix = f"{side}:" if side else ""
        named |= {
            name
            for name in manifest.partitions
            if name.startswith(prefix) and _is_same(column, name.removeprefix(prefix), key[index])
        }
    return named


def _is_same(column: KeySchema, text: str, value: pa.Scalar) -> bool:
    """Return True if a text stands for a value of a key column. The partition of nulls is not named after a value."""
    if not value.is_valid or isinstance(value.as_py(), str):
        # The command line may parse another text to the same value.
        return bool(value.is_valid and text == value.as_py())
    try:
        (named,) = key_of_texts(column, (text,))
    except UsageError:
        # A partition's name need not be a value of the column: the name of the partition of nulls is not a number.
        return False
    return bool(named.equals(value))

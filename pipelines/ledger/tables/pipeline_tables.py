"""The tables of one pipeline: their paths, their creation, and the checks when they are opened.

Only tidegate commits to them, through deltalake and under the lease. Opening refuses table features that would make
these commits silently wrong (column mapping, deletion vectors).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import DeltaError
from deltalake.schema import ArrayType, MapType, PrimitiveType, StructType, VariantType

from tidegate.pipelines.definition import epochs, late, rejects, results, state, windows
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.migrations import check_table, table_properties
from tidegate.pipelines.ledger.tables.commits import commit_by
from tidegate.pipelines.ledger.tables.newest import ends_at, is_moved, newest
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.storage.warehouse import Warehouse

ALL = (state.NAME, results.NAME, late.NAME, rejects.NAME, epochs.NAME)
PUBLISHED = (results.NAME, late.NAME, rejects.NAME, epochs.NAME)

LEASE = "lease"
"""Name of the folder of the lease, which names the running driver."""

QUALITY = "quality"
"""Name of the table of check outcomes, which no epoch depends on."""

SAVEPOINTS = "savepoints"
"""Name of a pipeline's folder with savepoints."""

COPIED = "_tables"
"""Name of a savepoint's folder with its copies of the published tables."""

REQUESTS = "requests"
"""Name of the folder of requests to the running driver, which may contain keys."""

FEED = "delta.enableChangeDataFeed"
"""Property of a table with a change feed. Only table `windows` has it, whose followers need it."""

_ALLOWED_FEATURES = {"appendOnly", "changeDataFeed", "invariants", "timestampNtz", "v2Checkpoint"}
_FORBIDDEN_PROPERTIES = {
    "delta.columnMapping.mode": ("none", ""),
    "delta.enableDeletionVectors": ("false", ""),
    "delta.enableRowTracking": ("false", ""),
    FEED: ("false", ""),
    "delta.appendOnly": ("false", ""),
}
# Old versions are snapshots, so retention must decide how long they are kept, not the log's default of 30 days. A
# VACUUM by somebody else spares files younger than deletedFileRetentionDuration, so it removes no file that a snapshot
# needs.
_PROPERTIES = {
    "delta.enableExpiredLogCleanup": "false",
    "delta.logRetentionDuration": "interval 3650 days",
    "delta.deletedFileRetentionDuration": "interval 3650 days",
    "delta.checkpointInterval": "10",
}

DeltaType: TypeAlias = PrimitiveType | ArrayType | MapType | StructType | VariantType


@dataclass(frozen=True)
class PipelineTables:
    """Paths and handles of one pipeline's tables."""

    warehouse: Warehouse
    pipeline: str

    @classmethod
    def of(cls, config: Config, pipeline: str) -> PipelineTables:
        """Return the tables of a pipeline that a project has; the pipeline itself is not imported.

        Raises:
            UsageError: the project has no pipeline with that name.
        """
        config.entry(pipeline)
        return cls(warehouse_of(config), pipeline)

    def path(self, table: str) -> str:
        """Return the path of a table."""
        return self.warehouse.path(self.pipeline, table)

    @property
    def application(self) -> str:
        """Application id of every commit of the pipeline, on all its timelines."""
        return f"tidegate/{self.pipeline}"

    @property
    def exist(self) -> bool:
        """True if the pipeline has a table `state`."""
        return self.warehouse.exists(self.path(state.NAME))

    @property
    def missing(self) -> list[str]:
        """Names of the tables that don't exist."""
        return [table for table in ALL if not self.warehouse.exists(self.path(table))]

    def with_windows(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the given table names, followed by `windows` if the pipeline has that table."""
        return (*names, windows.NAME) if self.warehouse.exists(self.path(windows.NAME)) else tuple(names)

    def open(self, table: str, version: int | None = None) -> DeltaTable:
        """Open a table.

        Raises:
            Refused: the table can't be opened, or has a protocol feature or property that would make commits wrong.
        """
        return self._checked(table, lambda path: self.warehouse.open(path, version))

    def newest(self, table: str) -> DeltaTable:
        """Return a table at its newest version, for reading only: this process may already have opened it.

        The errors are those of `open`.
        """
        return self._checked(table, lambda path: newest(self.warehouse, path))

    def newest_windows(self) -> DeltaTable:
        """Return table `windows` as `look` does; raise Refused if the pipeline has none."""
        if not self.warehouse.exists(self.path(windows.NAME)):
            raise Refused(f"pipeline {self.pipeline!r} has no table windows", *self.remedies(windows.NAME))
        return self.newest(windows.NAME)

    def _checked(self, table: str, opened: Callable[[str], DeltaTable]) -> DeltaTable:
        try:
            handle = opened(self.path(table))
        except DeltaError as error:
            reason = str(error).partition("\n")[0]
            if self._is_gone(table):
                raise self.gone(table) from error
            raise Refused(
                f"table {self.path(table)} can't be opened: {reason}. Only tidegate may change it",
                *self.remedies(table),
            ) from error
        protocol = handle.protocol()
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        unsafe = {f"feature {feature}" for feature in features - _ALLOWED_FEATURES}
        configuration = handle.metadata().configuration
        unsafe |= {
            f"property {name}={configuration[name]}"
            for name, allowed in _FORBIDDEN_PROPERTIES.items()
            if configuration.get(name, "").lower() not in allowed and (table, name) != (windows.NAME, FEED)
        }
        check_table(self.path(table), configuration)
        if unsafe:
            raise Refused(
                f"table {self.path(table)} has {', '.join(sorted(unsafe))}: with it, files that tidegate commits "
                "would be misread. Only tidegate may change its tables",
                *self.remedies(table),
            )
        return handle

    def gone(self, table: str) -> Refused:
        """Return the error for a table that is missing."""
        return Refused(f"table {self.path(table)} is gone", *self.remedies(table))

    def remedies(self, table: str) -> list[Remedy]:
        """Return the remedies that replace a damaged table without losing anything.

        A savepoint of the state is named only for table `state`, because it has no rows of the other tables.
        """
        if table == QUALITY:
            return [Remedy(Act.MOVE_AWAY, self.pipeline, table)]
        if table == windows.NAME:
            return [Remedy(Act.BUILD_WINDOWS, self.pipeline)]
        return [*self.savepoints(with_state=table == state.NAME), Remedy(Act.RESTART, self.pipeline)]

    def savepoints(self, with_state: bool = False) -> list[Remedy]:
        """Return the remedies that restore a savepoint with tables, and one of the state if `with_state`.

        Only savepoints in the warehouse are known; of those with equal content the one with the last name is named.
        """
        folder, found = self.warehouse.path(self.pipeline, SAVEPOINTS), list[Remedy]()
        with suppress(DeltaError, OSError):
            names = [name for name in self.warehouse.folders(folder) if self.warehouse.exists(f"{folder}/{name}")]
            complete = [name for name in names if self.warehouse.folders(f"{folder}/{name}/{COPIED}")]
            if names and with_state:
                found.append(Remedy(Act.RESTORE, self.pipeline, f"savepoint:{names[-1]}"))
            if complete:
                found.append(Remedy(Act.RESTORE_TABLES, self.pipeline, f"savepoint:{complete[-1]}"))
        return found

    def _is_gone(self, table: str) -> bool:
        try:
            return not self.warehouse.exists(self.path(table))
        except (DeltaError, OSError):
            # Something other than a folder is at the path.
            return False

    def create(self, schemas: dict[str, pa.Schema], partitions: Sequence[str] = (), *, replace: bool = False) -> None:
        """Create the tables that don't exist yet. The metadata of a schema becomes properties of its table."""
        for table, schema in schemas.items():
            ours = {name.decode(): value.decode() for name, value in (schema.metadata or {}).items()}
            self.create_one(table, schema, {**_PROPERTIES, **ours}, partitions, replace=replace)

    def create_one(
        self,
        table: str,
        schema: pa.Schema,
        properties: Mapping[str, str],
        partitions: Sequence[str] = (),
        *,
        replace: bool = False,
    ) -> None:
        """Create a table with these Delta properties. An existing table is kept, or emptied if it is replaced."""
        path = self.path(table)
        if self.warehouse.exists(path) and not replace:
            return
        try:
            version = DeltaTable.create(
                path,
                Schema.from_arrow(schema),
                mode="overwrite" if replace else "ignore",
                partition_by=list(partitions) or None,
                name=f"{self.pipeline}.{table}",
                configuration={**properties, **table_properties()},
                raise_if_key_not_exists=False,
                storage_options=self.warehouse.options_of(path),
            ).version()
        except (DeltaError, OSError):
            # A store may create the table although its response is lost; the repeated request then fails because the
            # table exists.
            if not self.warehouse.exists(path):
                raise
            version = 0
        # No later entry can be read without this one.
        self.warehouse.make_commit_durable(path, version)

    def _add_columns(self, table: str, version: int, added: list[Field]) -> None:
        handle = self.open(table, version)
        commit_by(
            lambda properties, hooks: handle.alter.add_columns(
                added, commit_properties=properties, post_commithook_properties=hooks
            ),
            self.warehouse,
            handle,
            {},
        )

    def widen(self, schemas: dict[str, pa.Schema]) -> bool:
        """Add missing columns to the tables; return True if any were missing.

        Columns of a file that its table lacks are never read. So the columns are added before an epoch is planned; if
        its driver then dies, the new columns do no harm.

        Raises:
            Refused: a column has another type, or somebody else commits at the same time.
        """
        widened = False
        for table, schema in schemas.items():
            if not self.warehouse.exists(self.path(table)):
                continue
            handle = self.newest(table)
            existing = {column.name: column for column in handle.schema().fields}
            added = []
            for column in Schema.from_arrow(schema).fields:
                was = existing.get(column.name)
                kind = column.type if was is None else merged_type(was.type, column.type)
                if kind is None:
                    raise Refused(
                        f"column {column.name!r} of table {self.path(table)} has type {was and was.type}, but in the "
                        f"code {column.type}: rename the column, or give the pipeline another name and backfill it"
                    )
                if was is None or kind != was.type:
                    # deltalake refuses to merge another comment, so a widened column keeps its own.
                    added.append(Field(column.name, kind, nullable=True, metadata=(was or column).metadata))
            if added:
                # Commit on top of the version whose columns were compared, or not at all.
                self._add_columns(table, handle.version(), added)
                widened = True
        return widened


@dataclass(frozen=True, slots=True)
class Handles:
    """The handles of published tables, which follow the commits of this process.

    Opening a table takes longer than reading the entry of a commit. A table that others have committed to is reopened.
    """

    _kept: dict[str, DeltaTable] = field(default_factory=dict)
    _shared: dict[str, DeltaTable | None] = field(default_factory=dict)

    def open(self, tables: PipelineTables, table: str) -> DeltaTable:
        """Return a table at its newest version, as `PipelineTables.open` does."""
        handle = self._kept.get(table)
        if handle is not None and ends_at(tables.warehouse, tables.path(table), handle.version()):
            return handle
        if table not in self._shared:
            # Most runs publish one epoch, and have already read the tables.
            self._shared[table] = handle = tables.newest(table)
            return handle
        self._kept[table] = handle = tables.open(table)
        return handle

    def keep(self, table: str, handle: DeltaTable) -> None:
        """Move a handle to the commit that this process made on it, unless other readers may hold it."""
        if handle is self._shared.get(table):
            self._shared[table] = None
        elif not is_moved(handle):
            self._kept.pop(table, None)


def merged_type(existing: DeltaType, wanted: DeltaType) -> DeltaType | None:
    """Return a type that holds the values of both types, or None if there is none.

    Two structs, even in lists, are merged into a struct with the fields of both. Other types have to be equal.
    """
    if isinstance(existing, ArrayType) and isinstance(wanted, ArrayType):
        element = merged_type(existing.element_type, wanted.element_type)
        return None if element is None else existing if element == existing.element_type else ArrayType(element)
    if not (isinstance(existing, StructType) and isinstance(wanted, StructType)):
        return existing if existing == wanted else None
    fields = {each.name: each for each in existing.fields}
    for each in wanted.fields:
        was = fields.get(each.name)
        kind = each.type if was is None else merged_type(was.type, each.type)
        if kind is None:
            return None
        if was is None or kind != was.type:
            fields[each.name] = Field(each.name, kind, nullable=True)
    return existing if list(fields.values()) == existing.fields else StructType(list(fields.values()))

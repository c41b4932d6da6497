"""The tables of one pipeline: where they are, how they are made, and whether they can be trusted.

Only this project commits to them, through deltalake and under the lease. Features that would make
its commits wrong without an error (column mapping, deletion vectors) are refused on opening.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
from deltalake import DeltaTable, Field, PostCommitHookProperties, Schema
from deltalake.exceptions import DeltaError
from deltalake.schema import ArrayType, MapType, PrimitiveType, StructType, VariantType

from tidegate.pipelines.errors import Refused
from tidegate.pipelines.storage import Warehouse
from tidegate.pipelines.tables import epochs, late, rejects, results, state

ALL = (state.NAME, results.NAME, late.NAME, rejects.NAME, epochs.NAME)
PUBLISHED = (results.NAME, late.NAME, rejects.NAME, epochs.NAME)

LEASE = "lease"
"""Name of the table that says which driver is at work."""

_ALLOWED_FEATURES = {"appendOnly", "invariants", "timestampNtz", "v2Checkpoint"}
_FORBIDDEN_PROPERTIES = {
    "delta.columnMapping.mode": ("none", ""),
    "delta.enableDeletionVectors": ("false", ""),
    "delta.enableRowTracking": ("false", ""),
    "delta.enableChangeDataFeed": ("false", ""),
    "delta.appendOnly": ("false", ""),
}
# Old versions are snapshots: how long they live is ours to say, not the log's default of 30 days.
# Somebody else's VACUUM spares every file that is younger than deletedFileRetentionDuration, so none that a
# snapshot needs goes.
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

    def path(self, table: str) -> str:
        """Where a table is."""
        return self.warehouse.path(self.pipeline, table)

    @property
    def application(self) -> str:
        """The application id of every commit: one for the pipeline, over all timelines."""
        return f"tidegate/{self.pipeline}"

    @property
    def exist(self) -> bool:
        """Whether the pipeline has ever made a snapshot table."""
        return self.warehouse.exists(self.path(state.NAME))

    @property
    def missing(self) -> list[str]:
        """The tables that are not there."""
        return [table for table in ALL if not self.warehouse.exists(self.path(table))]

    def open(self, table: str, version: int | None = None) -> DeltaTable:
        """Open a table.

        Raises:
            Refused: it can't be opened, or has a protocol feature or property under which our commits
                would be wrong.
        """
        try:
            handle = self.warehouse.open(self.path(table), version)
        except DeltaError as error:
            reason = str(error).partition("\n")[0]
            if self._is_gone(table):
                raise Refused(
                    f"table {self.path(table)} is gone: put its folder back and run again, or see `tidegate restore "
                    f"{self.pipeline} latest`"
                ) from error
            raise Refused(
                f"table {self.path(table)} can't be opened: {reason}. Only tidegate may change it. If an entry of its "
                f"log is damaged, `tidegate restore {self.pipeline} latest` sets it aside and goes on"
            ) from error
        protocol = handle.protocol()
        features = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
        found = {f"feature {feature}" for feature in features - _ALLOWED_FEATURES}
        configuration = handle.metadata().configuration
        found |= {
            f"property {name}={configuration[name]}"
            for name, allowed in _FORBIDDEN_PROPERTIES.items()
            if configuration.get(name, "").lower() not in allowed
        }
        if found:
            raise Refused(
                f"table {self.path(table)} has {', '.join(sorted(found))}: with it, files that tidegate commits would "
                "be read wrongly. Only tidegate may change its tables; restore the table from before that change"
            )
        return handle

    def _is_gone(self, table: str) -> bool:
        try:
            return not self.warehouse.exists(self.path(table))
        except (DeltaError, OSError):
            # Something is there, and it is no folder.
            return False

    def create(self, schemas: dict[str, pa.Schema]) -> None:
        """Make the tables that are not there yet."""
        for table, schema in schemas.items():
            path = self.path(table)
            if not self.warehouse.exists(path):
                DeltaTable.create(
                    path,
                    Schema.from_arrow(schema),
                    mode="ignore",
                    name=f"{self.pipeline}.{table}",
                    configuration=_PROPERTIES,
                    storage_options=self.warehouse.options or None,
                )

    def widen(self, schemas: dict[str, pa.Schema]) -> bool:
        """Give the tables the columns that they lack; whether there were any.

        A file with a column that its table does not have would be committed, and the column never be read.
        Added before an epoch is planned, they do no harm where its driver dies.

        Raises:
            Refused: a column has another type.
        """
        widened = False
        for table, schema in schemas.items():
            if not self.warehouse.exists(self.path(table)):
                continue
            handle = self.open(table)
            known = {field.name: field for field in handle.schema().fields}
            added = []
            for field in Schema.from_arrow(schema).fields:
                was = known.get(field.name)
                kind = field.type if was is None else merged_type(was.type, field.type)
                if kind is None:
                    raise Refused(
                        f"column {field.name!r} of table {self.path(table)} is {was and was.type}, and the code has "
                        f"{field.type}: give it another name, or the pipeline, and backfill it"
                    )
                if was is None or kind != was.type:
                    added.append(Field(field.name, kind, nullable=True, metadata=field.metadata))
            if added:
                hooks = PostCommitHookProperties(cleanup_expired_logs=False)
                handle.alter.add_columns(added, post_commithook_properties=hooks)
                widened = True
        return widened


def merged_type(known: DeltaType, wanted: DeltaType) -> DeltaType | None:
    """A type that holds what both hold; None where there is none. Structs, in lists too, may have more fields."""
    if isinstance(known, ArrayType) and isinstance(wanted, ArrayType):
        element = merged_type(known.element_type, wanted.element_type)
        return None if element is None else known if element == known.element_type else ArrayType(element)
    if not (isinstance(known, StructType) and isinstance(wanted, StructType)):
        return known if known == wanted else None
    fields = {field.name: field for field in known.fields}
    for field in wanted.fields:
        was = fields.get(field.name)
        kind = field.type if was is None else merged_type(was.type, field.type)
        if kind is None:
            return None
        if was is None or kind != was.type:
            fields[field.name] = Field(field.name, kind, nullable=True)
    return known if list(fields.values()) == known.fields else StructType(list(fields.values()))

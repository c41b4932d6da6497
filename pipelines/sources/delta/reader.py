"""Reader of a Delta table's files for the tasks. The log determines partition values, deleted rows and column names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.pipelines.errors import Refused, SourceFileMissing
from tidegate.pipelines.failures import in_words
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.sources.delta.deletion_vectors import DeletionVector
from tidegate.pipelines.sources.delta.partition_values import scalar_of
from tidegate.pipelines.sources.parquet_reader import FileColumns, Remedies, SourceParquet, open_parquet
from tidegate.pipelines.sources.rules import Int64s
from tidegate.pipelines.sources.stored_fields import StoredField, filled
from tidegate.pipelines.storage.warehouse import Warehouse

AS_IT_IS_NOW = (
    "The rows that remain are in the table as it is now. To compute from them, move the pipeline's folder in the "
    "warehouse away, and backfill the pipeline with a start and an end around all event times; a stream continues "
    "from there. Or start a new pipeline with such a backfill. Keep the source's files for longer than a "
    "pipeline may pause"
)
"""Remedy for files of a source that were vacuumed before they were read."""

PARTITION, DELETED = "partitionValues", "deletionVector"
"""Details of a file: fields of its add action in the log."""

DELETED_BESIDE = "deletedBeside"
"""Detail of a file that is compared with itself in another version: the deletion vector that it has there. Only rows
that this vector removes and its own does not are read.
"""

SIDE = "changeSide"
"""Detail of a file of the change feed, which has deleted and added rows: which of the two to read."""

DELETED_ROWS, ADDED_ROWS = "deleted", "added"

_CHANGE_TYPE = "_change_type"
"""Column of a change feed file that says how a row changed."""

_SIDES = {"delete": DELETED_ROWS, "update_preimage": DELETED_ROWS, "insert": ADDED_ROWS, "update_postimage": ADDED_ROWS}
"""Side of a row of the change feed, by its `_change_type`."""

DETAILS = (PARTITION, DELETED)


@dataclass(frozen=True, slots=True)
class DeltaReader:
    """Reader of the files of a Delta table."""

    warehouse: Warehouse
    table: str
    columns: pa.Schema
    fields: tuple[StoredField, ...]

    @contextmanager
    def open(self, part: FilePart) -> Iterator[SourceParquet]:
        stored = {field.name: field for field in self.fields}
        constants = self._constants(part, stored)

        def columns_of(rows: int) -> FileColumns:
            return FileColumns(self.columns, stored, constants, self._deleted(part, rows))

        remedies = Remedies(
            f"source table {self.table}",
            f"it was compacted and vacuumed before this pipeline read it. {AS_IT_IS_NOW}",
            "If the table was replaced by one with other types, run a backfill again from the first interval, with "
            "--again --and-following, or start a new pipeline. If Spark can read the file, give the pipeline's "
            "DeltaSource reader='spark'",
        )
        if DELETED in part.details:
            remedies = replace(
                remedies,
                miscounted="it was replaced, or its writer counted in the log only the rows that the file's deletion "
                "vector leaves. Restore the committed file if it was replaced; otherwise start a new pipeline with a "
                "backfill after `REORG TABLE ... APPLY (PURGE)`",
            )
        with open_parquet(self.warehouse, self.table, part, columns_of, remedies) as file:
            yield file

    def _constants(self, part: FilePart, stored: dict[str, StoredField]) -> dict[str, pa.Scalar]:
        """Return the values of a file's partition columns, which are those of the table when the file was written."""
        names = {field.stored.lower(): name for name, field in stored.items()}
        constants: dict[str, pa.Scalar] = {}
        for column, text in (part.details.get(PARTITION) or {}).items():
            if (name := names.get(column.lower())) is None:
                continue
            kind, length = self.columns.field(name).type, stored[name].length
            try:
                value = scalar_of(text, kind.value_type if pa.types.is_dictionary(kind) else kind)
                constants[name] = value if length is None else filled(pa.array([value]), length)[0]
            except ValueError as error:
                raise Refused(
                    f"source table {self.table}: file {part.path} has a partition value of column {name!r} that can't "
                    f"be read: {error}. Rewrite the file's rows with a valid value; with reader='spark' in the "
                    "pipeline's DeltaSource, Spark decides what it means, usually null"
                ) from error
        return constants

    def _deleted(self, part: FilePart, rows: int) -> Int64s:
        """Return the positions of the rows not to read, such as deleted ones; see `DELETED_BESIDE` and `SIDE`."""
        if side := part.details.get(SIDE):
            return self._of_other_side(part, side)
        deleted = self._rows_of(part.details.get(DELETED), part, rows)
        if not (beside := part.details.get(DELETED_BESIDE)):
            return deleted
        read = np.setdiff1d(self._rows_of(beside, part, rows), deleted, assume_unique=True)
        return np.setdiff1d(np.arange(rows), read, assume_unique=True)

    def _of_other_side(self, part: FilePart, side: str) -> Int64s:
        """Return the positions of the rows of a change feed file that are not on the given side.

        Raises:
            pa.ArrowInvalid: the file has no column of changes, or an unknown kind of change.
        """
        # Commands that only read the log should not wait for this import.
        import pyarrow.parquet as pq

        with self.warehouse.open_file(self.table, part.path) as stream:
            table = pq.ParquetFile(stream, page_checksum_verification=True).read([_CHANGE_TYPE])
        if _CHANGE_TYPE not in table.column_names:
            raise pa.ArrowInvalid(f"it is a file of the change feed without column {_CHANGE_TYPE}")
        kinds = table[_CHANGE_TYPE].combine_chunks().dictionary_encode(null_encoding="encode")
        values = kinds.dictionary.to_pylist()
        if unknown := set(values) - _SIDES.keys():
            raise pa.ArrowInvalid(f"its column {_CHANGE_TYPE} has {', '.join(map(repr, unknown))}")
        is_other = np.array([_SIDES[value] != side for value in values], np.bool_)
        return np.flatnonzero(is_other[np.asarray(kinds.indices)]) if len(kinds) else np.zeros(0, np.int64)

    def _rows_of(self, described: Mapping[str, Any] | None, part: FilePart, rows: int) -> Int64s:
        """Return the positions of the rows that a deletion vector removes, or none without a vector."""
        if not described:
            return np.zeros(0, np.int64)
        try:
            return DeletionVector.of(described).rows(self.warehouse, self.table, rows)
        except FileNotFoundError as error:
            raise SourceFileMissing(
                f"source table {self.table}: the deletion vector of file {part.path} is missing ({in_words(error)}): a "
                "VACUUM removed it before this pipeline read it. Start a new pipeline with a backfill of the table as "
                "it is now"
            ) from error
        except (OSError, ValueError) as error:
            raise Refused(
                f"source table {self.table}: the deletion vector of file {part.path} can't be used: {in_words(error)}. "
                "Restore the committed file of the vector, or start a new pipeline with a backfill after "
                "`REORG TABLE ... APPLY (PURGE)`"
            ) from error

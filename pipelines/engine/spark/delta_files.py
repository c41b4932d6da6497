"""Read a Delta table's files with Spark, through its public API: rows of a version, identified by file and position.

Delta supports features that Tidegate's reader lacks, and applies deletion vectors and column mapping itself. A commit's
rows are read in the newest version that still lists all its files, so a later OPTIMIZE does not hide them.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType, StructType

from tidegate.pipelines.definition.columns import quoted
from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME, PATH, PLACE, ROW
from tidegate.pipelines.engine.spark.versions import to_arrow
from tidegate.pipelines.sources.base import SparkTable
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.sources.source_columns import without_metadata
from tidegate.pipelines.storage.delta_log import FOLDER

_LOCAL = "^file:/+"
"""Start of the URI of a local file, which Spark writes with one slash or three."""

_EXACT = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""Spark options that convert times to text with full precision."""


@dataclass(frozen=True, slots=True)
class DeltaFiles:
    """The files of a Delta table, as Spark reads them.

    Args:
        spark: the session.
        of: the table.
    """

    spark: SparkSession
    of: SparkTable

    def schema(self, version: int) -> pa.Schema:
        """Return the columns of a version."""
        return without_metadata(to_arrow(self._version(version).schema))

    def empty(self, version: int) -> DataFrame:
        """Return a frame with the columns of a version, and no rows."""
        return self._version(version).limit(0)

    def rows(self, parts: Sequence[FilePart], are_placed: bool = False) -> DataFrame:
        """Return the rows of files with all columns, path, position in the file, and all columns as a struct.

        Args:
            parts: the files; rows outside the intervals of all parts may be missing.
            are_placed: True if positions must distinguish the rows of a file; otherwise they may all be 0.
        """
        by_version: dict[int, set[str]] = {}
        of_part = {part.path: part for part in sorted(parts, key=lambda part: part.version)}
        alive = self._newest_alive({part.version for part in of_part.values()})
        for path, part in of_part.items():
            by_version.setdefault(alive[part.version], set()).add(path)
        frames = [
            self._located(version, parts, are_placed).where(F.col(PATH).isin(*paths))
            for version, paths in by_version.items()
        ]
        return reduce(DataFrame.unionByName, frames)

    def _located(self, version: int, parts: Sequence[FilePart], are_placed: bool) -> DataFrame:
        """Return the rows of a version with paths as in its log."""
        frame = self._version(version)
        metadata = frame.metadataColumn("_metadata")
        # `url_decode` would turn a plus into a space, but in a path it means a plus.
        uri = F.url_decode(F.replace(metadata.getField("file_path"), F.lit("+"), F.lit("%2B")))
        path, root = F.regexp_replace(uri, _LOCAL, "/"), f"{self._root}/"
        inside = F.substring(path, F.lit(len(root) + 1), F.length(path))
        elsewhere = F.raise_error(
            F.concat(
                F.lit(f"source table {self.of.table}: a row of file "),
                path,
                F.lit(", which none of the commits being read added. Nothing was committed; this is a bug in tidegate"),
            )
        )
        # If a path is spelled differently, a plain filter would silently lose the rows of its file.
        located = F.when(F.startswith(path, F.lit(root)), inside).otherwise(elsewhere.cast("string"))
        columns = self._columns(frame, version)
        whole = F.struct(*columns)
        rows = frame.select(*columns, located.alias(PATH), _place(frame, metadata).alias(PLACE), whole.alias(ROW))
        rows = rows.where(self._bounds(parts))
        if not are_placed or _has_row_index(frame, metadata):
            return rows
        # Equal rows of a file are distinguished by a number; it does not matter which row gets which. The
        # text is digested first, because rows with the same xxhash64 can be constructed on purpose.
        text = F.to_json(F.col(ROW), _EXACT)
        number = F.row_number().over(Window.partitionBy(PATH, text).orderBy(PATH))
        digest = F.xxhash64(F.sha2(text, 256))
        return rows.withColumn(PLACE, digest.bitwiseXOR(number.cast("long")))

    def _columns(self, frame: DataFrame, version: int) -> list[Column]:
        """Return the columns of a version. An empty partition value is null, as in Delta's protocol; Spark keeps it."""
        names = [*self.of.warehouse.names(f"{self.of.table}/{FOLDER}")]
        partitioned = self.of.warehouse.log(self.of.table).metadata(version, names).get("partitionColumns") or []
        texts = {
            field.name
            for field in frame.schema
            if field.name in partitioned and isinstance(field.dataType, StringType | BinaryType)
        }
        columns = {name: F.col(quoted(name)) for name in frame.columns}
        return [
            F.when(F.length(column) > 0, column).alias(name) if name in texts else column
            for name, column in columns.items()
        ]

    def _bounds(self, parts: Sequence[FilePart]) -> Column:
        """Return a condition on the event time that holds for all rows of the parts."""
        since, until = min(part.since for part in parts), max(part.until for part in parts)
        if self.of.timestamp is None or (since <= FIRST_TIME and until >= LAST_TIME):
            return F.lit(True)
        time = F.col(quoted(self.of.timestamp))
        return (time >= F.timestamp_millis(F.lit(since))) & (time < F.timestamp_millis(F.lit(until)))

    def _newest_alive(self, versions: set[int]) -> dict[int, int]:
        """Map each version to the newest of these versions that still has all its files."""
        log, alive, ordered = self.of.warehouse.log(self.of.table), {}, sorted(versions, reverse=True)
        newest = ordered[0]
        for version, following in zip(ordered, [newest, *ordered], strict=False):
            between = range(version + 1, following + 1)
            if any("remove" in action for number in between for action in log.actions(number)):
                newest = version
            alive[version] = newest
        return alive

    def _version(self, version: int) -> DataFrame:
        return self.spark.read.format("delta").option("versionAsOf", version).load(self.of.table)

    @property
    def _root(self) -> str:
        """Path of the table as Spark writes it in the paths of its files."""
        scheme, sign, rest = self.of.table.rpartition("://")
        if not sign:
            return os.path.abspath(rest)
        root = f"{scheme}://{posixpath.normpath(rest)}"
        return re.sub(_LOCAL, "/", root)


def _has_row_index(frame: DataFrame, metadata: Column) -> bool:
    """Return True if Delta reports the positions of rows in their files, as for tables with deletion vectors."""
    (described,) = frame.select(metadata.alias("metadata")).schema
    kind = described.dataType
    return isinstance(kind, StructType) and "row_index" in kind.names


def _place(frame: DataFrame, metadata: Column) -> Column:
    """Return the position of each row in its file, or 0 if Delta does not report it."""
    return metadata.getField("row_index").cast("long") if _has_row_index(frame, metadata) else F.lit(0).cast("long")

"""A pipeline's source as it is now: what epochs are planned over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from tidegate.pipelines.definition.binding import BoundPipeline, bind_all
from tidegate.pipelines.definition.bound_input import BoundInput
from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.definition.retyped import with_renamed
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import Manifest, Position
from tidegate.pipelines.snapshots.compatibility import check_restorable
from tidegate.pipelines.sources.ahead import rejected_again, rejected_ahead
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.frames import SourceFrames
from tidegate.pipelines.sources.log import SourceFile, SourceLog
from tidegate.pipelines.sources.places import check_places
from tidegate.pipelines.sources.plain import slice_of, why_through_spark
from tidegate.pipelines.tables import rejects
from tidegate.pipelines.tables.columns import quoted
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import Millis


@dataclass(frozen=True)
class Source:
    """An input of a pipeline as it is now: its log, its rows, its columns; and the second input with it.

    Args:
        log: of the table.
        frames: over the table.
        bound: the pipeline.
        number: which input it is.
        right: the second input, where this is the first of two.
    """

    log: SourceLog
    frames: SourceFrames
    bound: BoundPipeline
    number: int = 0
    right: Source | None = None

    @classmethod
    def open(cls, spark: SparkSession, tables: PipelineTables, pipeline: Pipeline) -> Source:
        """Open the source (both, of two inputs) and check the pipeline against it."""
        check_places(tables.warehouse, pipeline)
        paths = [tables.warehouse.path(one.source.table) for one in pipeline.inputs]
        logs = [SourceLog(tables.warehouse, path) for path in paths]
        frames = [SourceFrames(spark, path, pipeline, one) for path, one in zip(paths, pipeline.inputs, strict=True)]
        return cls._bound(pipeline, logs, frames)

    @classmethod
    def _bound(cls, pipeline: Pipeline, logs: Sequence[SourceLog], frames: Sequence[SourceFrames]) -> Source:
        bound = bind_all(pipeline, [one.schemas(log.head) for one, log in zip(frames, logs, strict=True)])
        bound = with_renamed(bound, PipelineTables(logs[0].warehouse, pipeline.name))
        for one, log in zip(pipeline.inputs, logs, strict=True):
            check_collations(one, log)
        right = cls(logs[1], frames[1], bound, 1) if len(logs) > 1 else None
        return cls(logs[0], frames[0], bound, 0, right)

    @property
    def inputs(self) -> tuple[Source, ...]:
        """Every input, in order."""
        return (self,) if self.right is None else (self, self.right)

    @property
    def input(self) -> BoundInput:
        """What is bound of this input alone."""
        return self.bound.inputs[self.number]

    @property
    def table(self) -> str:
        """The table that it reads, as a manifest names it."""
        return self.input.input.source.table

    def now(self) -> Source:
        """The source as it is now; what follows from its columns is found anew only where they changed."""
        logs = [one.log.now() for one in self.inputs]
        before = [(one.log.table_id, one.log.columns) for one in self.inputs]
        if before == [(log.table_id, log.columns) for log in logs]:
            right = None if self.right is None else replace(self.right, log=logs[1])
            return replace(self, log=logs[0], right=right)
        return self._bound(self.bound.pipeline, logs, [one.frames for one in self.inputs])

    @cached_property
    def files(self) -> FileSlice | None:
        """A slice of the source without any file yet, if the tasks can read its files themselves."""
        if why_through_spark(self.bound, self.log) is not None:
            return None
        return slice_of(self.bound, self.log)

    @property
    def has_instants(self) -> bool:
        """Whether event time is a TIMESTAMP column of the table itself, so that statistics of files bound it."""
        schema, name = self.input.source, self.input.input.source.timestamp
        if name not in schema.names or name in self.input.input.columns:
            return False
        kind = schema.field(name).type
        return pa.types.is_timestamp(kind) and kind.tz is not None

    def rejected_ahead(self, manifest: Manifest) -> pa.Table | None:
        """Rows of this input that the line of a snapshot rejected for lying ahead; None if there are none."""
        bound, tables = self.bound, PipelineTables(self.log.warehouse, self.bound.pipeline.name)
        rows = rejected_ahead(tables, manifest, bound.source, bound.renamed.get(rejects.NAME, {}))
        side = self.input.side
        if rows is None or side is None:
            return rows
        own = rows.filter(pc.equal(rows["side"], side))[side].combine_chunks()
        return pa.Table.from_arrays(own.flatten(), schema=pa.schema(list(own.type))) if len(own) else None

    def rows_at(self, version: int, after: Manifest | None = None) -> DataFrame:
        """The judged rows of a version, as one commit.

        Args:
            version: of the table.
            after: a snapshot; what it or one before it rejected for lying ahead is rejected again.
        """
        judged = self._judged_at(version)
        rejected = None if after is None else self.rejected_ahead(after)
        return judged if rejected is None else rejected_again(judged.sparkSession, judged, rejected)

    def _judged_at(self, version: int) -> DataFrame:
        files = self.log.active(self.input.input.source.timestamp, version)
        ahead = self.bound.pipeline.max_ahead_millis
        # Statistics mostly say that no row can lie too far ahead of the time its file was written.
        none_ahead = self.has_instants and all(
            file.newest is not None and file.newest <= file.written + ahead for file in files
        )
        return self.frames.judged(
            self.frames.snapshot(version), self.input.source, None if none_ahead else _written(files)
        )

    def rows_of(self, files: Sequence[SourceFile]) -> DataFrame:
        """The judged rows of files that commits added, as one commit."""
        frame = self.frames.files(self.log.head, [file.action for file in files])
        return self.frames.judged(frame, self.input.source, _written(files))

    def check_read(self, files: Sequence[SourceFile], rows: int) -> None:
        """Hold the rows that Spark gave for files against what the log says they have.

        Args:
            files: all files that were read, whole.
            rows: how many rows came, with those that can't be used.

        Raises:
            Refused: they are not the same, so rows would be lost or counted twice.
        """
        known = [file.rows for file in files if file.rows is not None]
        if len(known) == len(files) and sum(known) != rows:
            raise Refused(
                f"source table {self.log.path}: {rows} rows were read from {len(files)} file(s) that have {sum(known)} "
                f"by the log, {files[0].path} the first of them. Nothing was committed. A file was replaced, or the "
                "statistics in the log are wrong: put the files back that were committed"
            )

    def position_of(self, manifest: Manifest) -> Position:
        """How far a snapshot has read this input, once it is sure that it can go on with this code and table.

        Raises:
            Refused: it can't; the message names what differs.
        """
        check_restorable(self.bound, manifest)
        position = manifest.position_in(self.table)
        self.log.check(position)
        return position

    def settled(self, position: Position) -> Position:
        """A position with the newest version that holds the same rows, whose files are there still."""
        return position.model_copy(update={"version": self.log.settled(position.version)})

    def position(self, version: int, frontier: Millis | None = None, files: int = 0) -> dict[str, Position]:
        """A position in this input, as a manifest has it."""
        return {self.table: Position(version=version, frontier=frontier, files=files, table_id=self.log.table_id)}


def check_collations(one: Input, log: SourceLog) -> None:
    """Refuse keys and source partitions that Spark compares by a collation: here they are compared byte by byte.

    Raises:
        Refused: naming the column, and how to say which values are one.
    """
    collations = log.collations if one.key or one.watermark_by else {}
    for name in (*one.key, *([one.watermark_by] if one.watermark_by else [])):
        if name in collations and name not in one.columns:
            raise Refused(
                f"column {name!r} of source table {log.path} has the collation {collations[name]}, by which Spark "
                "takes values for one key that have other bytes, and tidegate does not. Say which are one, for example "
                f"columns={{{name!r}: 'lower({quoted(name)}) collate UTF8_BINARY'}}"
            )


def _written(files: Sequence[SourceFile]) -> dict[str, tuple[int, Millis]]:
    """In event order a run is one commit, and a row is held against the time its file was written."""
    return {file.path: (0, file.written) for file in files}

"""A pipeline's source at its newest version, from which epochs are planned."""

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
from tidegate.pipelines.sources.commits import SourceFile
from tidegate.pipelines.sources.delta.choose_reader import slice_of, why_through_spark
from tidegate.pipelines.sources.delta.frames import SourceFrames
from tidegate.pipelines.sources.delta.log import SourceLog
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.places import check_places
from tidegate.pipelines.tables import rejects
from tidegate.pipelines.tables.columns import quoted
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import Millis


@dataclass(frozen=True)
class OpenInput:
    """An input of a pipeline at its newest version: its log, its rows and its columns, and the second input.

    Args:
        log: log of the table.
        frames: Spark frames over the table.
        bound: the bound pipeline.
        number: index of the input.
        right: the second input, if this is the first of two.
    """

    log: SourceLog
    frames: SourceFrames
    bound: BoundPipeline
    number: int = 0
    right: OpenInput | None = None

    @classmethod
    def open(cls, spark: SparkSession, tables: PipelineTables, pipeline: Pipeline) -> OpenInput:
        """Open the source, or both sources of two inputs, and check the pipeline against them."""
        check_places(tables.warehouse, pipeline)
        paths = [tables.warehouse.path(part.source.table) for part in pipeline.inputs]
        logs = [SourceLog(tables.warehouse, path) for path in paths]
        frames = [SourceFrames(spark, path, pipeline, part) for path, part in zip(paths, pipeline.inputs, strict=True)]
        return cls._bound(pipeline, logs, frames)

    @classmethod
    def _bound(cls, pipeline: Pipeline, logs: Sequence[SourceLog], frames: Sequence[SourceFrames]) -> OpenInput:
        bound = bind_all(pipeline, [frame.schemas(log.head) for frame, log in zip(frames, logs, strict=True)])
        bound = with_renamed(bound, PipelineTables(logs[0].warehouse, pipeline.name))
        for part, log in zip(pipeline.inputs, logs, strict=True):
            check_collations(part, log)
        right = cls(logs[1], frames[1], bound, 1) if len(logs) > 1 else None
        return cls(logs[0], frames[0], bound, 0, right)

    @property
    def inputs(self) -> tuple[OpenInput, ...]:
        """All inputs, in order."""
        return (self,) if self.right is None else (self, self.right)

    @property
    def input(self) -> BoundInput:
        """This input, bound to the columns of its table."""
        return self.bound.inputs[self.number]

    @property
    def table(self) -> str:
        """Name of the table in manifests."""
        return self.input.input.source.table

    def now(self) -> OpenInput:
        """Return the source at its newest version. The pipeline is bound again only if the columns changed."""
        logs = [source.log.now() for source in self.inputs]
        before = [(source.log.table_id, source.log.columns) for source in self.inputs]
        if before == [(log.table_id, log.columns) for log in logs]:
            right = None if self.right is None else replace(self.right, log=logs[1])
            return replace(self, log=logs[0], right=right)
        return self._bound(self.bound.pipeline, logs, [source.frames for source in self.inputs])

    @cached_property
    def files(self) -> FileSlice | None:
        """Slice of the source without files, if the tasks can read its files themselves; else None."""
        if why_through_spark(self.bound, self.log, self._setting) is not None:
            return None
        return slice_of(self.bound, self.log, self._setting)

    def _setting(self, name: str) -> str | None:
        return self.frames.setting(name)

    @property
    def has_instants(self) -> bool:
        """True if event time is a TIMESTAMP column of the table itself, so that statistics of files bound it."""
        schema, name = self.input.source, self.input.input.source.timestamp
        if name not in schema.names or name in self.input.input.columns:
            return False
        kind = schema.field(name).type
        return pa.types.is_timestamp(kind) and kind.tz is not None

    def rejected_ahead(self, manifest: Manifest) -> pa.Table | None:
        """Return the rows of this input that the line of a snapshot rejected because their time was ahead, or None."""
        bound, tables = self.bound, PipelineTables(self.log.warehouse, self.bound.pipeline.name)
        rows = rejected_ahead(tables, manifest, bound.source, bound.renamed.get(rejects.NAME, {}))
        side = self.input.side
        if rows is None or side is None:
            return rows
        structs = rows.filter(pc.equal(rows["side"], side))[side].combine_chunks()
        return pa.Table.from_arrays(structs.flatten(), schema=pa.schema(list(structs.type))) if len(structs) else None

    def rows_at(self, version: int, after: Manifest | None = None) -> DataFrame:
        """Return the judged rows of a version, as one commit.

        Args:
            version: version of the table.
            after: a snapshot. Rows that its line rejected because their time was ahead are rejected again.
        """
        judged = self._judged_at(version)
        rejected = None if after is None else self.rejected_ahead(after)
        return judged if rejected is None else rejected_again(judged.sparkSession, judged, rejected)

    def _judged_at(self, version: int) -> DataFrame:
        files = self.log.active(self.input.input.source.timestamp, version)
        ahead = self.bound.pipeline.max_ahead_millis
        # Mostly, statistics show that no row is too far ahead of the time at which its file was written.
        none_ahead = self.has_instants and all(
            file.newest is not None and file.newest <= file.written + ahead for file in files
        )
        return self.frames.judged(
            self.frames.snapshot(version), self.input.source, None if none_ahead else _written(files)
        )

    def rows_of(self, files: Sequence[SourceFile]) -> DataFrame:
        """Return the judged rows of files that commits added, as one commit."""
        frame = self.frames.files(self.log.head, [file.action for file in files])
        return self.frames.judged(frame, self.input.source, _written(files))

    def check_read(self, files: Sequence[SourceFile], rows: int) -> None:
        """Compare the number of rows that Spark read from files with their number in the log.

        Args:
            files: all files that were read completely.
            rows: number of rows that were read, including rejected rows.

        Raises:
            Refused: the numbers differ, so rows would be lost or counted twice.
        """
        in_log = [file.rows for file in files if file.rows is not None]
        if len(in_log) == len(files) and sum(in_log) != rows:
            raise Refused(
                f"source table {self.log.path}: {rows} rows were read from {len(files)} file(s) that have "
                f"{sum(in_log)} by the log, {files[0].path} the first of them. Nothing was committed. A file was "
                "replaced, or the statistics in the log are wrong: put the files back that were committed"
            )

    def position_of(self, manifest: Manifest) -> Position:
        """Return the position of a snapshot in this input, after a check that this code and table can continue from it.

        Raises:
            Refused: they can't; the message names the difference.
        """
        check_restorable(self.bound, manifest)
        position = manifest.position_in(self.table)
        self.log.check(position)
        return position

    def settled(self, position: Position) -> Position:
        """Return a position with the newest version that holds the same rows. The files of that version still exist."""
        return position.model_copy(update={"version": self.log.settled(position.version)})

    def position(self, version: int, frontier: Millis | None = None, files: int = 0) -> dict[str, Position]:
        """Return a position in this input, in the form of a manifest."""
        return {self.table: Position(version=version, frontier=frontier, files=files, table_id=self.log.table_id)}


def check_collations(part: Input, log: SourceLog) -> None:
    """Refuse keys and source partitions with a collation in Spark, because tidegate compares them byte by byte.

    Raises:
        Refused: the message names the column, and an expression that makes equal values equal bytes.
    """
    collations = log.collations if part.key or part.watermark_by else {}
    for name in (*part.key, *([part.watermark_by] if part.watermark_by else [])):
        if name in collations and name not in part.columns:
            raise Refused(
                f"column {name!r} of source table {log.path} has the collation {collations[name]}, by which Spark "
                "takes values for one key that have other bytes, and tidegate does not. Say which are one, for example "
                f"columns={{{name!r}: 'lower({quoted(name)}) collate UTF8_BINARY'}}"
            )


def _written(files: Sequence[SourceFile]) -> dict[str, tuple[int, Millis]]:
    """Return commit 0 and the time of writing for each file: in event order, a run counts as one commit."""
    return {file.path: (0, file.written) for file in files}

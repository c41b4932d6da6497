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
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.definition.retyped import with_renamed
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import Manifest, Position
from tidegate.pipelines.snapshots.compatibility import check_restorable
from tidegate.pipelines.sources.ahead import rejected_again, rejected_ahead
from tidegate.pipelines.sources.base import Source, SparkReader
from tidegate.pipelines.sources.bind import columns_of, no_spark
from tidegate.pipelines.sources.choose_reader import Setting, slice_of, unset, why_through_spark
from tidegate.pipelines.sources.commits import SourceCommit, SourceFile
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.open_source import open_source
from tidegate.pipelines.sources.places import check_places
from tidegate.pipelines.storage import Warehouse
from tidegate.pipelines.tables import rejects
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import Millis


@dataclass(frozen=True)
class OpenInput:
    """An input of a pipeline at its newest version: its source, its rows and its columns, and the second input.

    Args:
        log: the source, with its log of commits.
        spark_reader: reader of the source by Spark; None if the tasks alone can read it.
        bound: the bound pipeline.
        number: index of the input.
        right: the second input, if this is the first of two.
        warehouse: the warehouse of the pipeline's tables.
        setting: returns the value of a setting of Spark; None if it is not set.
    """

    log: Source
    spark_reader: SparkReader | None
    bound: BoundPipeline
    warehouse: Warehouse
    number: int = 0
    right: OpenInput | None = None
    setting: Setting = unset

    @classmethod
    def open(cls, spark: SparkSession, tables: PipelineTables, pipeline: Pipeline) -> OpenInput:
        """Open the source, or both sources of two inputs, and check the pipeline against them."""
        check_places(tables.warehouse, pipeline)
        logs = [open_source(part.source, tables.warehouse) for part in pipeline.inputs]
        readers = [log.spark_reader(spark, pipeline, part) for log, part in zip(logs, pipeline.inputs, strict=True)]

        def setting(name: str) -> str | None:
            return spark.conf.get(name, None)

        return cls._bound(pipeline, tables.warehouse, logs, readers, setting)

    @classmethod
    def _bound(
        cls,
        pipeline: Pipeline,
        warehouse: Warehouse,
        logs: Sequence[Source],
        readers: Sequence[SparkReader | None],
        setting: Setting = unset,
    ) -> OpenInput:
        parts = list(zip(pipeline.inputs, logs, readers, strict=True))
        bound = bind_all(pipeline, [columns_of(pipeline, *part, setting) for part in parts])
        bound = with_renamed(bound, PipelineTables(warehouse, pipeline.name))
        for part, log, _ in parts:
            log.check_input(part)
        right = cls(logs[1], readers[1], bound, warehouse, 1, setting=setting) if len(logs) > 1 else None
        return cls(logs[0], readers[0], bound, warehouse, 0, right, setting)

    @property
    def inputs(self) -> tuple[OpenInput, ...]:
        """All inputs, in order."""
        return (self,) if self.right is None else (self, self.right)

    @property
    def input(self) -> BoundInput:
        """This input, bound to the columns of its source."""
        return self.bound.inputs[self.number]

    @property
    def table(self) -> str:
        """Name of the source in manifests."""
        return self.input.input.source.table

    def now(self) -> OpenInput:
        """Return the source at its newest version. The pipeline is bound again only if the columns changed."""
        logs = [source.log.now() for source in self.inputs]
        before = [(source.log.identity, source.log.columns) for source in self.inputs]
        if before == [(log.identity, log.columns) for log in logs]:
            right = None if self.right is None else replace(self.right, log=logs[1])
            return replace(self, log=logs[0], right=right)
        readers = [source.spark_reader for source in self.inputs]
        return self._bound(self.bound.pipeline, self.warehouse, logs, readers, self.setting)

    @property
    def frames(self) -> SparkReader:
        """Reader of the source by Spark.

        Raises:
            Refused: the source has none.
        """
        if self.spark_reader is None:
            raise no_spark(self.bound.pipeline, self.log, "Spark would have to read its rows")
        return self.spark_reader

    def commits(self, after: int, until: int | None = None) -> list[SourceCommit]:
        """Return the commits that `Source.unread` yields."""
        return list(self.log.unread(after, until))

    def next_commit(self, after: int) -> SourceCommit | None:
        """Return the first version after `after` that added data; None if there is none.

        Raises:
            Refused: `Source.unread` refuses.
        """
        following = self.log.settled(after) + 1
        return next(self.log.unread(following - 1, following), None) if following <= self.log.head else None

    @cached_property
    def files(self) -> FileSlice | None:
        """Slice of the source without files, if the tasks can read its files themselves; else None.

        Raises:
            Refused: the tasks can't read them, and Spark can't read the source either.
        """
        reason = why_through_spark(self.bound, self.log, self.setting)
        if reason is not None and self.spark_reader is None:
            raise no_spark(self.bound.pipeline, self.log, reason)
        return slice_of(self.bound, self.log, self.setting) if reason is None else None

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
        bound, tables = self.bound, PipelineTables(self.warehouse, self.bound.pipeline.name)
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
        return self._moved(position, self.log.settled(position.version))

    def passed(self, position: Position) -> Position:
        """Return a position moved past the versions without data that follow it, unless it is within a commit.

        A position before these versions would need their log entries, which the source may remove after a while.
        """
        return position if position.files else self.settled(position)

    def _moved(self, position: Position, version: int) -> Position:
        if version == position.version:
            return position
        return position.model_copy(
            update={"version": version, "own": {**position.own, **self.log.of_position(version)}}
        )

    def position(self, version: int, frontier: Millis | None = None, files: int = 0) -> dict[str, Position]:
        """Return a position in this input, in the form of a manifest."""
        fields = dict(self.log.of_position(version))
        return {self.table: Position(version=version, frontier=frontier, files=files, own=fields)}


def _written(files: Sequence[SourceFile]) -> dict[str, tuple[int, Millis]]:
    """Return commit 0 and the time of writing for each file: in event order, a run counts as one commit."""
    return {file.path: (0, file.written) for file in files}

"""A pipeline's source at its newest version, from which epochs are planned, and the check of a pipeline against it.

A rejected row stays rejected, even if a later read would accept it. OPTIMIZE writes a row again at a later time, so the
row's event time may no longer be ahead of its commit; and new code may have rules that accept the row. Table rejects
has the rows with all their columns, so the same number of rows with equal values is rejected in every later read. The
pipeline can't tell such rows apart anyway.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Field, Schema

from tidegate.pipelines.definition import epochs, late, rejects
from tidegate.pipelines.definition.binding import BoundPipeline, bind_all
from tidegate.pipelines.definition.bound_input import BoundInput
from tidegate.pipelines.definition.column_names import free_name, input_rows
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.definition.row_sets import texts_of
from tidegate.pipelines.engine.base import Engine, settings_of
from tidegate.pipelines.engine.choose import engine_of
from tidegate.pipelines.engine.spark.jvm import function_names
from tidegate.pipelines.epoch.file_measure import Measures, measure_files
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest, of_line
from tidegate.pipelines.ledger.snapshots.compatibility import check_restorable
from tidegate.pipelines.ledger.tables.pipeline_tables import DeltaType, PipelineTables, merged_type
from tidegate.pipelines.sources.base import ChangingSource, Source, SparkSource
from tidegate.pipelines.sources.choose_reader import (
    ReaderChoice,
    check_correctable,
    choose_reader,
    columns_of,
    slice_of,
)
from tidegate.pipelines.sources.commits import SourceCommit
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.open_source import check_places, open_source
from tidegate.pipelines.sources.rules import Int64s
from tidegate.pipelines.sources.source_columns import ColumnsToRead, without_metadata
from tidegate.pipelines.sources.source_table import EvaluatedRows
from tidegate.pipelines.storage.warehouse import Warehouse, read_table
from tidegate.windowing.time import Millis

_FOUND = pa.schema([("number", pa.int64()), ("place", pa.int64()), ("accepted", pa.int64()), ("text", pa.string())])


def rejecting_again(files: FileSlice, rejected: pa.Table, engine: Engine) -> FileSlice:
    """Return the rows of a version, with the positions of those that were rejected before and are rejected again.

    The slice has all files of one input that may have such rows.
    """
    if not files.parts:
        return files
    columns = files.table_of(0).columns
    copies = Counter(_texts(rejected, columns))
    times = None
    if columns.by_spark is None or columns.time_in_files is not None:
        times, _ = columns.millis(columns.derive(rejected, [columns.timestamp])[columns.timestamp])
    find = partial(_find, files, times)
    if files.needs_spark:
        equal_rows = engine.over(files, find, _FOUND, are_placed=True)
    else:
        names = [[table.columns.timestamp] for table in files.tables]
        equal_rows = pa.Table.from_batches(find(files.evaluated(names=names)), _FOUND)
    places: dict[int, list[int]] = {}
    # Among rows with equal values, those that are still ahead of their file are rejected first.
    order = [(name, "ascending") for name in ("accepted", "number", "place")]
    for row in equal_rows.sort_by(order).to_pylist():
        if copies[row["text"]] > 0:
            copies[row["text"]] -= 1
            places.setdefault(row["number"], []).append(row["place"])
    again = {number: tuple(sorted(rows)) for number, rows in places.items()}
    return files.of((replace(part, again=again.get(number, ())) for number, part in enumerate(files.parts)), files.late)


def _find(files: FileSlice, times: Int64s | None, judged: Iterator[EvaluatedRows]) -> Iterator[pa.RecordBatch]:
    """Yield the rows with one of the given event times: part, position, 0 if it is ahead of its file, and values."""
    for rows in judged:
        wanted = np.ones(len(rows.times), np.bool_) if times is None else np.isin(rows.times, times)
        if not wanted.any():
            continue
        whole = rows.rows
        if whole is None:
            whole = files.table_of(rows.number).source_rows(files.parts[rows.number], rows.places[wanted])
        else:
            whole = whole.filter(pa.array(wanted))
        ahead = rows.rejected.get(rejects.AHEAD, np.zeros(len(rows.times), np.bool_))[wanted]
        columns = [
            pa.array(np.full(len(whole), rows.number)),
            pa.array(rows.places[wanted]),
            pa.array((~ahead).astype(np.int64)),
            pa.array(_texts(whole, files.table_of(rows.number).columns), pa.string()),
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=_FOUND)


def _texts(rows: pa.Table, columns: ColumnsToRead) -> list[str]:
    """Return each row as text, without columns that the pipeline does not read.

    The source may have changed those columns, and rows that differ only in them have the same results.
    """
    by_spark = columns.by_spark
    names = columns.reads(columns.names) if by_spark is None else by_spark.reads(columns.names, rows.column_names)
    return texts_of(rows.select([name for name in rows.column_names if name in names]))


@dataclass(frozen=True)
class OpenInput:
    """An input of a pipeline at its newest version: its source, rows and columns, and the second input, if any.

    `files` is a slice of all inputs, without files. The first of two inputs has the second one as `right`.
    """

    log: Source
    bound: BoundPipeline
    warehouse: Warehouse
    engine: Engine
    files: FileSlice
    number: int = 0
    right: OpenInput | None = None

    @classmethod
    def open(cls, engine: Engine, tables: PipelineTables, pipeline: Pipeline) -> OpenInput:
        """Open the source, or both sources of two inputs, and check the pipeline against them."""
        check_places(tables.warehouse, pipeline)
        logs = [open_source(part.source, tables.warehouse) for part in pipeline.inputs]
        return cls._bound(pipeline, tables.warehouse, logs, engine)

    @classmethod
    def _bound(cls, pipeline: Pipeline, warehouse: Warehouse, logs: Sequence[Source], engine: Engine) -> OpenInput:
        parts = list(zip(pipeline.inputs, logs, strict=True))
        choices = [choose_reader(pipeline, *part, engine.setting) for part in parts]
        for (part, log), choice in zip(parts, choices, strict=True):
            check_correctable(pipeline, part, log, choice)
        columns = [
            columns_of(pipeline, *part, choice, engine.columns) for part, choice in zip(parts, choices, strict=True)
        ]
        bound = bind_all(pipeline, [(typed.source, typed.derived) for typed in columns])
        bound = with_renamed(bound, PipelineTables(warehouse, pipeline.name))
        for part, log in parts:
            if isinstance(log, SparkSource):
                log.check_input(part)
        files = slice_of(bound, logs, choices, columns)
        right = cls(logs[1], bound, warehouse, engine, files, 1) if len(logs) > 1 else None
        return cls(logs[0], bound, warehouse, engine, files, 0, right)

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
        """Return the source at its newest version. The pipeline is only bound again if the columns changed."""
        logs = [source.log.now() for source in self.inputs]
        before = [(source.log.identity, source.log.columns) for source in self.inputs]
        if before == [(log.identity, log.columns) for log in logs]:
            right = None if self.right is None else replace(self.right, log=logs[1])
            return replace(self, log=logs[0], right=right)
        return self._bound(self.bound.pipeline, self.warehouse, logs, self.engine)

    @property
    def corrects(self) -> bool:
        """True if windows are corrected when rows of the source change."""
        return self.input.input.corrects

    @property
    def columns(self) -> ColumnsToRead:
        """Columns to read from this input."""
        return self.files.tables[self.number].columns

    def measure(self, files: FileSlice, with_rejects: bool = True, with_times: bool = True) -> Measures:
        """Count the rows of a slice of the inputs; see `measure_files`."""
        return measure_files(files, with_rejects, self.engine, with_times)

    def rejecting_again(self, files: FileSlice, after: Manifest, only_ahead: bool = False) -> FileSlice:
        """Mark, in rows of this input, those that a snapshot's lineage rejected and the rules might accept now."""
        rejected = self.rejected_before(after, only_ahead)
        return files if rejected is None else rejecting_again(files, rejected, self.engine)

    def derived(self, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        """Return columns of events for rows with all columns of this input's source, in order."""
        columns = self.columns
        if columns.by_spark is None:
            return columns.derive(rows, names)
        # Late rows passed the `where` of their epoch; the current one may differ.
        return self.engine.derived(columns.by_spark, rows, names)

    def commits(self, after: int, until: int | None = None) -> list[SourceCommit]:
        """Return the commits that `Source.unread` yields."""
        return list(self.log.unread(after, until))

    def next_commit(self, after: int) -> SourceCommit | None:
        """Return the first version after `after` that added data, or None if there is none."""
        following = self.passed_version(after) + 1
        return next(self.log.unread(following - 1, following), None) if following <= self.log.head else None

    def skipped(self, manifest: Manifest | None, positions: Mapping[str, Position]) -> int:
        """Return the number of versions, over all inputs, that are skipped because they removed rows.

        Without a manifest, they are counted from the first version.
        """
        return sum(
            input_.log.skipped(
                -1 if manifest is None else manifest.position_in(input_.table).version, positions[input_.table].version
            )
            for input_ in self.inputs
            if isinstance(input_.log, ChangingSource)
        )

    @property
    def has_instants(self) -> bool:
        """True if event time is a TIMESTAMP column of the table itself, so that file statistics bound it."""
        schema, name = self.input.source, self.input.input.source.timestamp
        if name not in schema.names or name in self.input.input.columns:
            return False
        kind = schema.field(name).type
        return pa.types.is_timestamp(kind) and kind.tz is not None

    def rejected_before(self, manifest: Manifest, only_ahead: bool = False) -> pa.Table | None:
        """Return the rows of this input that a snapshot's lineage rejected and the rules might accept now, or None.

        They are the rows whose time was ahead, and, unless `only_ahead`, rows that other code rejected.
        """
        bound, tables = self.bound, PipelineTables(self.warehouse, self.bound.pipeline.name)
        if not tables.warehouse.exists(tables.path(rejects.NAME)):
            return None
        where = pc.field("reason") == rejects.AHEAD
        if not only_ahead and (by_others := by_other_code(bound, tables, manifest)) is not None:
            where |= by_others & (pc.field("reason") != rejects.USER_CODE)
        where &= of_line(manifest.line)
        found = read_table(tables.warehouse, tables.newest(rejects.NAME), where=where)
        if not len(found):
            return None
        rows = input_rows(found, rejects.TRAILING, bound.source, bound.renamed.get(rejects.NAME, {}))
        side = self.input.side
        if side is None:
            return rows
        structs = rows.filter(pc.equal(rows["side"], side))[side].combine_chunks()
        return pa.Table.from_arrays(structs.flatten(), schema=pa.schema(list(structs.type))) if len(structs) else None

    def position_of(self, manifest: Manifest) -> Position:
        """Return a snapshot's position in this input after checking that this code and table can continue from it."""
        check_restorable(self.bound, manifest)
        position = manifest.position_in(self.table)
        self.log.check(position)
        return position

    def settled(self, position: Position) -> Position:
        """Return the position at the newest version that has the same rows and whose files still exist."""
        return self._moved(position, self.log.settled(position.version))

    def whole(self, position: Position) -> Position:
        """Move a position to a version that changed rows if its correction is complete. Otherwise return it unchanged.

        Until then, the position stays at the end of that version's files, because its rows have not yet moved the
        watermark.
        """
        if not position.files:
            return position
        commit = next(self.log.unread(position.version, position.version + 1), None)
        if commit is None or not commit.changes:
            return position
        return self._moved(position, commit.version).model_copy(update={"files": 0})

    def passed(self, position: Position) -> Position:
        """Move a position past the versions without data that follow it, unless it is within a commit.

        If the position stayed before them, it would need their log entries, which the source may remove after a while.
        """
        return position if position.files else self._moved(position, self.passed_version(position.version))

    def passed_version(self, version: int) -> int:
        """Return the last of the versions that follow a version and are not read: maintenance and skipped ones.

        A skipped version may have different rows, so rows are read from the `settled` version.
        """
        while True:
            version = self.log.settled(version)
            if not isinstance(self.log, ChangingSource) or version >= self.log.head:
                return version
            if not self.log.skipped(version, version + 1):
                return version
            version += 1

    def _moved(self, position: Position, version: int) -> Position:
        if version == position.version:
            return position
        return position.model_copy(
            update={"version": version, "own": {**position.own, **self.log.of_position(version)}}
        )

    def position(self, version: int, frontier: Millis | None = None, files: int = 0) -> Position:
        """Return a position in this input."""
        return Position(version=version, frontier=frontier, files=files, own=dict(self.log.of_position(version)))


def by_other_code(bound: BoundPipeline, tables: PipelineTables, manifest: Manifest) -> pc.Expression | None:
    """Return the filter for rows of published tables that epochs with other code added, or None if none did.

    Epochs that table epochs no longer has may have run other code.
    """
    columns = ["epoch", "parent", epochs.FINGERPRINT]
    rows = read_table(tables.warehouse, tables.newest(epochs.NAME), columns, of_line(manifest.line)).sort_by("epoch")
    is_own = pc.fill_null(pc.equal(rows[epochs.FINGERPRINT], bound.fingerprint), True)
    if pc.all(is_own, min_count=0).as_py() and rows["parent"][:1].null_count == min(1, len(rows)):
        return None
    return ~pc.field("epoch").isin(rows["epoch"].filter(is_own).to_pylist())


def choices_of(config: Config, pipeline: Pipeline) -> list[ReaderChoice]:
    """Return how each input of a pipeline is read, without starting Spark.

    Raises:
        MissingSource: a source does not exist.
        Refused: an expression can't be parsed, names a missing column or function, has types that don't fit, or has a
            different value in each run; or Spark reads a source whose changes are to be corrected.
    """
    warehouse, choices = warehouse_of(config), []
    for part in pipeline.inputs:
        source = open_source(part.source, warehouse)
        choice = choose_reader(pipeline, part, source, settings_of(config))
        if choice.expressions:
            # Pipelines without SQL should not wait for this import.
            from tidegate.pipelines.sources.sql.words import check_expressions

            check_expressions(pipeline, part, without_metadata(source.schema).names, function_names(config))
        check_correctable(pipeline, part, source, choice)
        choices.append(choice)
    return choices


def bind_to_source(config: Config, pipeline: Pipeline) -> BoundPipeline:
    """Check a pipeline against the newest version of its source. Spark starts only if it evaluates columns."""
    warehouse = warehouse_of(config)
    check_places(warehouse, pipeline)
    sources = [open_source(part.source, warehouse) for part in pipeline.inputs]
    choices = [
        choose_reader(pipeline, part, source, settings_of(config))
        for part, source in zip(pipeline.inputs, sources, strict=True)
    ]
    typed = [
        (without_metadata(source.schema), choice.derived)
        for source, choice in zip(sources, choices, strict=True)
        if choice.derived is not None
    ]
    if len(typed) == len(sources):
        return bind_all(pipeline, typed)
    engine = engine_of(config, f"check {pipeline.name}")
    try:
        columns = [
            columns_of(pipeline, part, source, choice, engine.columns)
            for part, source, choice in zip(pipeline.inputs, sources, choices, strict=True)
        ]
        return bind_all(pipeline, [(part.source, part.derived) for part in columns])
    finally:
        engine.close()


def with_renamed(bound: BoundPipeline, tables: PipelineTables) -> BoundPipeline:
    """Return the pipeline with the names that its tables use for source columns whose type changed.

    A column of a Delta table has one type, unless the table uses a feature that Tidegate's commits don't support. So if
    `amount` was an INT and is now a BIGINT in the source, new rows of late and rejects have it in `amount_long`.

    Raises:
        Refused: a key column changed its type, and finding the rows of a key in these tables depends on the type.
    """
    wanted = {late.NAME: late.schema(bound.source), rejects.NAME: rejects.schema(bound.source)}
    renamed = {}
    for table, schema in wanted.items():
        if tables.warehouse.exists(tables.path(table)):
            existing = {field.name: field.type for field in tables.newest(table).schema().fields}
            renamed[table] = {
                field.name: _free_name(field, existing, {name.casefold() for name in schema.names})
                for field in Schema.from_arrow(schema).fields
                if field.name in existing and merged_type(existing[field.name], field.type) is None
            }
            _check_key(bound, tables.path(table), renamed[table])
    return replace(bound, renamed={table: names for table, names in renamed.items() if names})


def _check_key(bound: BoundPipeline, table: str, renamed: dict[str, str]) -> None:
    for name in bound.pipeline.key:
        if name in renamed or f"input_{name}" in renamed:
            kind = bound.source.field(name).type if name in bound.source.names else bound.derived.field(name).type
            raise Refused(
                f"key column {name!r} of pipeline {bound.pipeline.name!r} is now {kind} in its source, but table "
                f"{table} has another type, so tidegate would not find the rows of a key there. Give the pipeline "
                "another name and backfill it, or undo the change"
            )


def _free_name(field: Field, existing: dict[str, DeltaType], others: set[str]) -> str:
    """Return the name of the additional column for a type. The column may exist from an earlier run."""
    type_name = getattr(field.type, "type", "")
    base = f"{field.name}_{re.sub('[^a-z0-9]+', '_', str(type_name)).strip('_')}"
    mismatched = {name.casefold() for name, kind in existing.items() if merged_type(kind, field.type) is None}
    numbers = count(2)
    return free_name(base, others | mismatched, lambda _: f"{base}_{next(numbers)}")

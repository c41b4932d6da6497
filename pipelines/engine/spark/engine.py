"""Spark as the engine: functions run in its tasks, its shuffle moves packs, and it provides what only Spark supports.

tasks read and evaluate      files -> checked rows -> the caller's function
Spark evaluates the SQL      files -> columns of the source -> Spark: `columns`, `where` -> checked rows -> ...
Spark reads the files, too   rows of Spark -> Spark: `columns`, `where` -> checked rows -> ...
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial, reduce
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.event_columns import FILE, KEPT, MARKER, PACK, PARTITION, PATH, PLACE, ROW, SHARD
from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.engine.base import PACKED, Batches, Names, Pack, Run, balanced_groups
from tidegate.pipelines.engine.spark.connect import count_cores, keep_alive, runs_here
from tidegate.pipelines.engine.spark.versions import from_arrow, place_by_number
from tidegate.pipelines.errors import Refused, TidegateError
from tidegate.pipelines.failures import remedies_as_data
from tidegate.pipelines.sources.base import Source, SparkSource
from tidegate.pipelines.sources.choose_reader import InputColumns, ReaderChoice
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.source_columns import without_metadata
from tidegate.pipelines.sources.source_table import EvaluatedRows, SourceTable
from tidegate.pipelines.sources.sql.expression import SparkSql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASKS_PER_CORE = 4
_ORIGIN = {FILE: pa.int32(), PLACE: pa.int64()}
_BATCH = pa.schema([("batch", pa.binary())])

_OUT_OF_MEMORY = 3
"""Exit code of a JVM with `-XX:+ExitOnOutOfMemoryError`."""
_HEARTBEATS_MISSED = 56
"""Exit code of a Spark executor whose heartbeats failed; in local mode the executor is the whole process."""


class SparkEngine:
    """A session of Spark as the engine of a run.

    Args:
        session: a running session; this engine neither monitors nor stops it.
    """

    name = "spark"
    threads = 1

    def __init__(self, session: SparkSession | None = None) -> None:
        self._session = session
        self._config: Config | None = None
        self._purpose = ""
        self._known: Callable[[str], str | None] | None = None
        self._starts: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, config: Config, purpose: str, starts: Callable[[], None] = lambda: None) -> SparkEngine:
        """Return the engine of a project, whose session starts on first use and ends with the engine.

        Args:
            config: the project.
            purpose: purpose of the session, shown in Spark's UI.
            starts: called before the session starts.
        """
        from tidegate.pipelines.engine.spark.jvm import known_settings

        engine = cls()
        engine._config, engine._purpose, engine._known = config, purpose, known_settings(config)
        engine._starts = starts
        return engine

    @property
    def session(self) -> SparkSession:
        """The session; it is started if it is not running. See `start_session` for the errors."""
        if self._session is None:
            from tidegate.pipelines.engine.spark.session import start_session

            assert self._config is not None
            self._starts()
            with _own_interrupt():
                self._session = start_session(self._config, self._purpose)
        return self._session

    def start(self) -> None:
        """Start the session."""
        _ = self.session

    @cached_property
    def cores(self) -> int:
        """Number of tasks that the session runs at the same time."""
        return count_cores(self.session)

    @property
    def is_on_one_machine(self) -> bool:
        """True if all tasks run on this machine."""
        return runs_here(self.session)

    def setting(self, name: str) -> str | None:
        """Return the value of a setting of the session, or None if it is not set."""
        if self._session is None and self._known is not None:
            return self._known(name)
        return self.session.conf.get(name, None)

    def check(self, error: Exception | None = None, within: float = 0.0) -> None:
        """Raise an error if Spark's process has ended.

        Args:
            error: an error that this may have caused; an error with another known cause is kept.
            within: seconds to wait for the end.

        Raises:
            TidegateError: it has ended.
        """
        from tidegate.pipelines.engine.spark.session import ended_with

        if self._config is None or self._session is None:
            return
        if error is None:
            keep_alive(self._session)
        if isinstance(error, Refused) or (code := ended_with(self._session, within)) is None:
            return
        raise TidegateError(f"{_end_of_spark(code, self._config)}. The last snapshot is intact: run again") from error

    def close(self) -> None:
        """Stop the session, if this engine started it."""
        from tidegate.pipelines.engine.spark.session import stop_session

        if self._config is not None and self._session is not None:
            stop_session(self._session)

    def tasks(self, pieces: int, rows: int) -> int:
        """Return the number of tasks. A task costs more than a piece without events, so each gets several pieces."""
        return min(pieces, _TASKS_PER_CORE * self.cores)

    def in_place(
        self, tasks: Sequence[Sequence[int]], run: Callable[[Sequence[int]], Batches], schema: pa.Schema
    ) -> list[pa.RecordBatch]:

        def work(batches: Batches) -> Batches:
            return (out for number in _tasks(batches) for out in run(tasks[number]))

        return _collected(self._range(len(tasks)).mapInArrow(_in_task(work), from_arrow(schema)))

    def over(
        self,
        files: FileSlice,
        run: Run,
        schema: pa.Schema,
        names: Names | None = None,
        are_placed: bool = False,
    ) -> pa.Table:
        run, unnamed = _unnamed(run, schema)
        batches = _collected(self._frame(files, run, unnamed, names, are_placed))
        return pa.Table.from_batches(batches, unnamed).rename_columns(schema.names)

    def in_order(self, files: FileSlice, run: Run, schema: pa.Schema, names: Names, by: Sequence[str]) -> Batches:
        run, unnamed = _unnamed(run, schema)
        ordered = self._frame(files, run, unnamed, names).orderBy(
            *(unnamed.names[schema.get_field_index(name)] for name in by)
        )
        # As bytes, values arrive as Arrow wrote them, without Spark's conversions on the driver.
        for row in ordered.mapInArrow(_as_bytes, from_arrow(_BATCH)).toLocalIterator(prefetchPartitions=True):
            for batch in pa.ipc.open_stream(row["batch"]):
                yield batch.rename_columns(schema.names)

    def exchanged(
        self,
        files: FileSlice | None,
        pack: Run,
        markers: Mapping[int, str],
        run: Callable[[str, Sequence[Pack]], Batches],
        schema: pa.Schema,
    ) -> list[pa.RecordBatch]:
        """Pack events by shard, shuffle the packs, and run a function once for each shard; see `Engine.exchanged`.

        One marker row for each shard is part of the data: without it, Spark would run no task for a shard without
        events, and no timer would fire.
        """
        frame = self.session.createDataFrame(list(markers.items()), f"{SHARD} int, {MARKER} string")
        if files is not None and files.parts:
            frame = frame.unionByName(self._frame(files, pack, PACKED), allowMissingColumns=True)
        placed = place_by_number(frame, SHARD, max(markers) + 1)

        def work(batches: Batches) -> Batches:
            marker, packs = _of_shard(batches)
            if marker is not None:
                yield from run(marker, [partial(_same, pack) for pack in packs])

        return _collected(placed.mapInArrow(_in_task(work), from_arrow(schema)))

    def columns(self, pipeline: Pipeline, input_: Input, source: Source, choice: ReaderChoice) -> InputColumns:
        from tidegate.pipelines.engine.spark.delta_files import DeltaFiles
        from tidegate.pipelines.engine.spark.sql import empty_frame, typed

        schema = without_metadata(source.schema)
        if choice.files_by_spark is None:
            frame = empty_frame(self.session, schema)
        else:
            if not isinstance(source, SparkSource):
                raise Refused(
                    f"pipeline {pipeline.name!r} can't read source {source.path}: {choice.files_by_spark}, but Spark "
                    "can't read this kind of source. Change that part of the pipeline, or write the events into a "
                    "Delta table"
                )
            files = DeltaFiles(self.session, source.spark_reader(None))
            frame, schema = files.empty(source.head), files.schema(source.head)
        sql = typed(SparkSql.of(pipeline, input_), frame)
        return InputColumns(schema, sql.schema, sql)

    def derived(self, sql: SparkSql, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        from tidegate.pipelines.engine.spark.sql import evaluated

        numbered = rows.append_column(PLACE, pa.array(range(len(rows)), pa.int64()))
        frame = evaluated(replace(sql, where=None), self.session.createDataFrame(numbered), names, [PLACE])
        return frame.toArrow().sort_by(PLACE).select(list(names))

    def _range(self, tasks: int) -> DataFrame:
        return self.session.range(0, tasks, 1, tasks)

    def _frame(
        self, files: FileSlice, run: Run, schema: pa.Schema, names: Names | None = None, are_placed: bool = False
    ) -> DataFrame:
        """Return what a function yields over the checked rows of a slice, however they are read and evaluated."""
        names = names or [table.columns.names for table in files.tables]
        frames = []
        by_tasks = [number for number in range(len(files.parts)) if not files.table_of(number).needs_spark]
        if by_tasks:
            groups = balanced_groups(files.parts, by_tasks, _TASKS_PER_CORE * self.cores)

            def read(batches: Batches) -> Batches:
                return run(files.evaluated(_numbers(batches, groups), names))

            frames.append(self._range(len(groups)).mapInArrow(_in_task(read), from_arrow(schema)))
        for input_, table in enumerate(files.tables):
            numbers = [number for number, part in enumerate(files.parts) if part.input == input_]
            if table.needs_spark and numbers:
                frames.append(self._through_spark(files, numbers, names[input_], run, schema, are_placed))
        return reduce(lambda frame, other: frame.unionByName(other), frames)

    def _through_spark(
        self,
        files: FileSlice,
        numbers: list[int],
        names: Sequence[str],
        run: Run,
        schema: pa.Schema,
        are_placed: bool,
    ) -> DataFrame:
        """Run a function over the rows of parts of one table, after Spark has evaluated the SQL."""
        from tidegate.pipelines.engine.spark.delta_files import DeltaFiles
        from tidegate.pipelines.engine.spark.sql import evaluated

        table = files.table_of(numbers[0])
        sql = table.columns.by_spark
        assert sql is not None
        if table.for_spark is None:
            source = sql.reads(names, table.columns.schema.names)
            rows, origin = self._stored(files, numbers, source), list(_ORIGIN)
        else:
            parts, origin = [files.parts[number] for number in numbers], [PATH, PLACE, ROW]
            placed = are_placed or any(part.again for part in parts)
            rows = DeltaFiles(self.session, table.for_spark).rows(parts, placed)
        by_path: dict[str, list[int]] = {}
        for number in numbers:
            by_path.setdefault(files.parts[number].path, []).append(number)

        def judge(batches: Batches) -> Batches:
            return run(judged for batch in batches for judged in _evaluated(files, table, by_path, names, batch))

        return _map_in_arrow(evaluated(sql, rows, names, origin), judge, schema)

    def _stored(self, files: FileSlice, numbers: list[int], names: Sequence[str]) -> DataFrame:
        """Return columns of the source, read by tasks, with the part and the position of each row."""
        groups = balanced_groups(files.parts, numbers, _TASKS_PER_CORE * self.cores)
        columns = files.table_of(numbers[0]).columns.schema
        kinds = pa.schema([*(columns.field(name).with_nullable(True) for name in names), *_ORIGIN.items()])

        def read(batches: Batches) -> Batches:
            for number in _numbers(batches, groups):
                for stored, places in files.table_of(number).stored(files.parts[number], names):
                    numbered = pa.repeat(pa.scalar(number, pa.int32()), len(stored))
                    yield from pa.table([*stored.columns, numbered, pa.array(places)], schema=kinds).to_batches()

        return self._range(len(groups)).mapInArrow(_in_task(read), from_arrow(kinds))


def _evaluated(
    files: FileSlice, table: SourceTable, by_path: dict[str, list[int]], names: Sequence[str], batch: pa.RecordBatch
) -> Iterator[EvaluatedRows]:
    rows = pa.Table.from_batches([batch])
    origin = rows.column_names[len(names)]
    events = rows.select([*names, KEPT, PARTITION])
    for origin_of_rows in pc.unique(rows[origin]).to_pylist():
        of_file = pc.equal(rows[origin], origin_of_rows)
        places = np.asarray(rows[PLACE].filter(of_file).to_numpy())
        whole = None
        if origin == PATH:
            structs = rows[ROW].filter(of_file).combine_chunks()
            whole = pa.Table.from_arrays(structs.flatten(), schema=table.columns.schema)
        for number in by_path.get(origin_of_rows, ()) if origin == PATH else (origin_of_rows,):
            yield table.evaluated_by_spark(number, files.parts[number], events.filter(of_file), places, whole)
        if origin == PATH and origin_of_rows not in by_path:
            raise TidegateError(
                f"source table {table.name}: a row of file {origin_of_rows}, which none of the commits being read "
                "added. Nothing was committed; this is a bug in tidegate"
            )


def _unnamed(run: Run, schema: pa.Schema) -> tuple[Run, pa.Schema]:
    """Return a function and its schema with numbered columns: names may contain dots, which Spark takes for fields."""
    unnamed = pa.schema([field.with_name(f"c{place}") for place, field in enumerate(schema)])

    def renamed(judged: Iterator[EvaluatedRows]) -> Batches:
        return (batch.rename_columns(unnamed.names) for batch in run(judged))

    return renamed, unnamed


def _tasks(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    return (number for batch in batches for number in batch.column(0).to_pylist())


def _numbers(batches: Iterable[pa.RecordBatch], groups: Sequence[Sequence[int]]) -> Iterator[int]:
    """Yield the numbers of the parts that a task reads."""
    return (number for task in _tasks(batches) for number in groups[task])


def _map_in_arrow(frame: DataFrame, run: Callable[[Batches], Batches], schema: pa.Schema) -> DataFrame:
    """Run a function over the batches of a frame, whose columns may have any names.

    Spark's own `mapInArrow` looks each column up by its name, and reads a dot in the name as a field of a struct.
    """
    names = frame.columns

    def renamed(batches: Batches) -> Batches:
        return run(batch.rename_columns(names) for batch in batches)

    return frame.toDF(*(f"c{number}" for number in range(len(names)))).mapInArrow(_in_task(renamed), from_arrow(schema))


def _in_task(run: Callable[[Batches], Batches]) -> Callable[[Batches], Batches]:
    """Return a function for tasks of Spark, whose errors keep their remedies."""

    def running(batches: Batches) -> Batches:
        with remedies_as_data():
            yield from run(batches)

    return running


def _collected(frame: DataFrame) -> list[pa.RecordBatch]:
    batches: list[pa.RecordBatch] = frame.toArrow().to_batches()
    return batches


def _as_bytes(batches: Batches) -> Batches:
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield pa.RecordBatch.from_arrays([pa.array([sink.getvalue().to_pybytes()], pa.binary())], schema=_BATCH)


def _of_shard(batches: Iterable[pa.RecordBatch]) -> tuple[str | None, list[pa.Buffer]]:
    """Return the marker and the packs of one shard. The marker is None in a task without a shard."""
    marker: str | None = None
    packs: list[pa.Buffer] = []
    for batch in batches:
        for text in batch.column(MARKER).drop_null().to_pylist():
            marker = text
        if PACK in batch.schema.names:
            packs += [pack.as_buffer() for pack in batch.column(PACK).drop_null()]
    return marker, packs


def _same(pack: pa.Buffer) -> pa.Buffer:
    return pack


@contextmanager
def _own_interrupt() -> Iterator[None]:
    """Keep a command's Ctrl-C handler, which PySpark would replace. PySpark may replace Python's default handler."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if before not in (signal.default_int_handler, None) and signal.getsignal(signal.SIGINT) is not before:
            signal.signal(signal.SIGINT, before)


def _end_of_spark(code: int, config: Config) -> str:
    """Describe the end of Spark's process by its exit code, with a remedy. A code below 0 or above 128 is a signal."""
    more = f'Give it more memory with "spark.driver.memory" under [spark] in {config.file_name}'
    if code == _OUT_OF_MEMORY:
        return f"Spark's process ran out of memory (exit code {code}). {more}"
    if code == _HEARTBEATS_MISSED:
        return (
            f"Spark's process was not scheduled for minutes and ended itself (exit code {code}): it was stopped, the "
            f"machine was suspended, or other programs used all processors"
        )
    if (number := -code if code < 0 else code - 128) in set(signal.Signals):
        name = signal.Signals(number).name
        return f"Spark's process was ended by {name}: it was killed, or the system ran out of memory"
    return f"Spark's process ended with exit code {code}: it may have run out of memory or been killed. {more}"

"""Runs of tasks over the rows of a slice, whoever reads its files and evaluates its SQL.

    tasks read and evaluate      files -> judged rows -> the caller's function
    Spark evaluates the SQL      files -> columns of the source -> Spark: `columns`, `where` -> judged rows -> ...
    Spark reads the files, too   rows of Spark -> Spark: `columns`, `where` -> judged rows -> ...

A plan and a job see judged rows alone, so they don't ask which of the three it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.event_columns import FILE, KEPT, PARTITION, PATH, PLACE, ROW
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.source_table import JudgedRows, SourceTable
from tidegate.pipelines.spark.connect import count_cores
from tidegate.pipelines.spark.versions import from_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Run: TypeAlias = Callable[[Iterator[JudgedRows]], Iterator[pa.RecordBatch]]
"""Function of a task: it gets the judged rows of some parts, and yields batches."""

Names: TypeAlias = Sequence[Sequence[str]]
"""Columns of events by input."""

_TASKS_PER_CORE = 4
_ORIGIN = {FILE: pa.int32(), PLACE: pa.int64()}


def tasks_of(spark: SparkSession) -> int:
    """Return the largest number of tasks that read files."""
    return _TASKS_PER_CORE * count_cores(spark)


def run_over(
    spark: SparkSession,
    files: FileSlice,
    run: Run,
    schema: str | StructType,
    names: Names | None = None,
    are_placed: bool = False,
) -> DataFrame:
    """Run a function in tasks over the judged rows of a slice; return the batches that it yields.

    Args:
        spark: the session.
        files: the slice, which has parts.
        run: the function.
        schema: schema of the batches that the function yields.
        names: columns of events by input; None for those that an event has.
        are_placed: True if places must tell rows of a file apart, also if Spark reads them.
    """
    names = names or [table.columns.names for table in files.tables]
    frames = []
    by_tasks = [number for number in range(len(files.parts)) if not files.table_of(number).needs_spark]
    if by_tasks:
        heaps = heaped(files.parts, by_tasks, tasks_of(spark))

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            return run(files.judged(_numbers(batches, heaps), names))

        frames.append(spark.range(0, len(heaps), 1, len(heaps)).mapInArrow(read, schema))
    for input_, table in enumerate(files.tables):
        numbers = [number for number, part in enumerate(files.parts) if part.input == input_]
        if table.needs_spark and numbers:
            frames.append(_through_spark(spark, files, numbers, names[input_], run, schema, are_placed))
    return reduce(lambda frame, other: frame.unionByName(other), frames)


def _through_spark(
    spark: SparkSession,
    files: FileSlice,
    numbers: list[int],
    names: Sequence[str],
    run: Run,
    schema: str | StructType,
    are_placed: bool,
) -> DataFrame:
    """Run a function over the rows of parts of one table, after Spark evaluated its SQL."""
    table = files.table_of(numbers[0])
    sql = table.columns.by_spark
    assert sql is not None
    if table.spark_reader is None:
        source = sql.reads(names, table.columns.schema.names)
        rows, origin = _stored(spark, files, numbers, source), list(_ORIGIN)
    else:
        parts, origin = [files.parts[number] for number in numbers], [PATH, PLACE, ROW]
        rows = table.spark_reader.rows(spark, parts, are_placed or any(part.again for part in parts))
    by_path: dict[str, list[int]] = {}
    for number in numbers:
        by_path.setdefault(files.parts[number].path, []).append(number)

    def judge(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run(judged for batch in batches for judged in _judged(files, table, by_path, names, batch))

    return map_in_arrow(sql.evaluated(rows, names, origin), judge, schema)


def _stored(spark: SparkSession, files: FileSlice, numbers: list[int], names: Sequence[str]) -> DataFrame:
    """Return columns of the source, which tasks read, with the part and the place of each row."""
    heaps = heaped(files.parts, numbers, tasks_of(spark))
    columns = files.table_of(numbers[0]).columns.schema
    kinds = pa.schema([*(columns.field(name).with_nullable(True) for name in names), *_ORIGIN.items()])

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in _numbers(batches, heaps):
            for stored, places in files.table_of(number).stored(files.parts[number], names):
                numbered = pa.repeat(pa.scalar(number, pa.int32()), len(stored))
                yield from pa.table([*stored.columns, numbered, pa.array(places)], schema=kinds).to_batches()

    return spark.range(0, len(heaps), 1, len(heaps)).mapInArrow(read, from_arrow(kinds))


def _judged(
    files: FileSlice, table: SourceTable, by_path: dict[str, list[int]], names: Sequence[str], batch: pa.RecordBatch
) -> Iterator[JudgedRows]:
    """Yield the rows of a batch that Spark evaluated, by parts."""
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
            yield table.judged_by_spark(number, files.parts[number], events.filter(of_file), places, whole)
        if origin == PATH and origin_of_rows not in by_path:
            raise TidegateError(
                f"source table {table.name}: a row of file {origin_of_rows}, which no commit that is read added. "
                "Nothing was committed; this is a fault of tidegate"
            )


def heaped(parts: Sequence[FilePart], numbers: Sequence[int], most: int) -> list[list[int]]:
    """Return numbers of parts in at most `most` heaps, each with about the same number of rows."""
    heaps: list[list[int]] = [[] for _ in range(min(most, len(numbers)))]
    heights = [0] * len(heaps)
    for number in sorted(numbers, key=lambda number: -(parts[number].rows or 0)):
        lowest = heights.index(min(heights))
        heaps[lowest].append(number)
        heights[lowest] += parts[number].rows or 1
    return heaps


def _numbers(batches: Iterable[pa.RecordBatch], heaps: Sequence[Sequence[int]]) -> Iterator[int]:
    """Yield the numbers of the parts that a task reads."""
    return (number for batch in batches for task in batch.column(0).to_pylist() for number in heaps[task])


def map_in_arrow(
    frame: DataFrame, run: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str | StructType
) -> DataFrame:
    """Run a function over the batches of a frame; its columns may have any names.

    Spark's own `mapInArrow` looks each column up by its name, and reads a dot in the name as a field of a struct.

    Args:
        frame: the rows.
        run: function that gets batches with the names of the frame.
        schema: schema of the batches that the function yields.
    """
    names = frame.columns

    def renamed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return run(batch.rename_columns(names) for batch in batches)

    return frame.toDF(*(f"c{number}" for number in range(len(names)))).mapInArrow(renamed, schema)

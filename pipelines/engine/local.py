"""The local engine: small epochs run in the driver itself, larger ones in a pool of processes, without a JVM.

The pool starts with the first epoch that is large enough to need it. It ends with the run, or is left to the next run
of the pipeline in the same `Project`. Packs of an exchange are Arrow files in the work folder. Expressions or files
that need Spark are refused by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.event_columns import PACK, SHARD
from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.engine.base import Batches, Names, Pack, Run, balanced_groups, exchange_folder, settings_of
from tidegate.pipelines.engine.processes import Pool, Processes
from tidegate.pipelines.errors import Refused, TidegateError
from tidegate.pipelines.sources.base import Source
from tidegate.pipelines.sources.choose_reader import InputColumns, ReaderChoice
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.source_columns import without_metadata
from tidegate.pipelines.sources.sql.expression import SparkSql

if TYPE_CHECKING:
    from tidegate.pipelines.definition.config import Config

_ROWS_IN_DRIVER = 300_000
"""Largest epoch, in rows, that runs in the driver: sending so few rows to processes, even running ones, saves no time.
"""
_ROWS_TO_START = 1_000_000
"""Number of rows from which starting the processes pays off: each of them first imports the libraries."""
_ROWS_OF_A_BATCH = 100_000


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalEngine:
    """The cores of this machine as the engine of a run.

    Args:
        cores: number of processes; None for the cores that this process may use.
        work: folder for the exchange of events; None for the system's temporary folder.
        setting: returns the value of a Spark setting of the project. Expressions whose meaning the setting changes are
            left to Spark, and so refused.
        rows_in_driver: number of rows up to which an epoch runs in the driver, even if the pool is running; None for
            the default.
        processes: where the run finds the pool of an earlier one, and leaves its own.
        pipeline: name of the only pipeline that the engine runs; None for several, whose pool no other run gets.
    """

    name = "local"
    is_on_one_machine = True

    def __init__(
        self,
        cores: int | None = None,
        work: Path | None = None,
        setting: Callable[[str], str | None] = lambda name: None,
        rows_in_driver: int | None = None,
        processes: Processes | None = None,
        pipeline: str | None = None,
    ) -> None:
        self.cores = cores or count_cores()
        self._work = work
        self._setting = setting
        self._rows_in_driver = rows_in_driver
        self._processes = processes
        self._pipeline = pipeline
        self._pool: Pool | None = None

    @classmethod
    def of(cls, config: Config, pipeline: str | None = None) -> LocalEngine:
        """Return the engine of a project, for the run of a pipeline. Nothing starts yet."""
        return cls(work=config.work_folder, setting=settings_of(config), processes=config.processes, pipeline=pipeline)

    @property
    def threads(self) -> int:
        """Number of threads for a task of the driver, which has all cores."""
        return self.cores

    def start(self) -> None:
        """Do nothing: the first epoch decides whether processes are worth starting."""

    def setting(self, name: str) -> str | None:
        """Return the value of a setting of Spark in tidegate.toml, or None if it is not set."""
        return self._setting(name)

    def check(self, error: Exception | None = None, within: float = 0.0) -> None:
        """Do nothing: if a process ends, the task that it was running reports it."""

    def close(self) -> None:
        """End the processes, or leave them to the next run."""
        pool, self._pool = self._pool, None
        if pool is not None and self._processes is not None and self._pipeline is not None:
            self._processes.leave(self._pipeline, pool)
        elif pool is not None:
            pool.close()

    def tasks(self, pieces: int, rows: int) -> int:
        """Return the number of tasks: one, in the driver, for few rows."""
        return min(pieces, self.cores) if self._needs_pool(rows) else 1

    def in_place(
        self, tasks: Sequence[Sequence[int]], run: Callable[[Sequence[int]], Batches], schema: pa.Schema
    ) -> list[pa.RecordBatch]:
        """Run a function once for each task; see `Engine.in_place`. A single task runs in the driver."""
        if len(tasks) < 2:
            return [batch for numbers in tasks for batch in run(numbers)]
        return self._in_pool([partial(_call, run, numbers) for numbers in tasks])

    def over(
        self,
        files: FileSlice,
        run: Run,
        schema: pa.Schema,
        names: Names | None = None,
        are_placed: bool = False,
    ) -> pa.Table:
        groups = self._groups(files)
        calls = [partial(_call, lambda numbers: run(files.evaluated(numbers, names)), heap) for heap in groups]
        batches = [batch for call in calls for batch in call()] if len(calls) < 2 else self._in_pool(calls)
        return pa.Table.from_batches(batches, schema)

    def in_order(self, files: FileSlice, run: Run, schema: pa.Schema, names: Names, by: Sequence[str]) -> Batches:
        """Run a function over the checked rows of a slice, and yield its rows in order; see `Engine.in_order`.

        One commit at a time is in memory.
        """
        by_commit: dict[int, list[int]] = {}
        for number, part in enumerate(files.parts):
            by_commit.setdefault(part.commit, []).append(number)
        for _, numbers in sorted(by_commit.items()):
            table = pa.Table.from_batches(run(files.evaluated(numbers, names)), schema)
            yield from table.take(order_by(table, by)).to_batches(max_chunksize=_ROWS_OF_A_BATCH)

    def exchanged(
        self,
        files: FileSlice | None,
        pack: Run,
        markers: Mapping[int, str],
        run: Callable[[str, Sequence[Pack]], Batches],
        schema: pa.Schema,
    ) -> list[pa.RecordBatch]:
        if self._work is not None:
            self._work.mkdir(parents=True, exist_ok=True)
        with exchange_folder(self._work) as folder:
            if files is not None and files.parts:
                groups = self._groups(files)
                packing = partial(_call, _write_packs, folder, files, pack, frozenset(markers))
                calls = [partial(packing, task, heap) for task, heap in enumerate(groups)]
                _ = [call() for call in calls] if len(calls) < 2 else self._in_pool(calls)
            shards = [
                partial(_call, _run_shard, run, marker, sorted(folder.glob(f"{shard}-*")))
                for shard, marker in markers.items()
            ]
            if self._pool is None:
                return [batch for call in shards for batch in call()]
            return self._in_pool(shards)

    def columns(self, pipeline: Pipeline, input_: Input, source: Source, choice: ReaderChoice) -> InputColumns:
        """Refuse an input whose rows go through Spark, with the reason."""
        if choice.expressions:
            # What even Spark can't evaluate is reported as such.
            from tidegate.pipelines.sources.sql.words import check_expressions

            check_expressions(pipeline, input_, without_metadata(source.schema).names)
        raise needs_spark(pipeline, source.path, choice)

    def derived(self, sql: SparkSql, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        """Raise an error: no input of this engine has such SQL."""
        raise TidegateError(f"pipeline {sql.pipeline!r} has SQL for Spark; this is a bug in tidegate")

    def _needs_pool(self, rows: int) -> bool:
        if self._rows_in_driver is not None:
            return self.cores > 1 and rows > self._rows_in_driver
        if self.cores < 2 or rows <= _ROWS_IN_DRIVER:
            return False
        return rows > _ROWS_TO_START or self._running() is not None

    def _running(self) -> Pool | None:
        """Return the pool of this run, or the one that an earlier run left to it; None if none is running."""
        if self._pool is None and self._processes is not None and self._pipeline is not None:
            self._pool = self._processes.take(self._pipeline, self.cores)
        return self._pool

    def _groups(self, files: FileSlice) -> list[list[int]]:
        """Return the numbers of the parts for each task, or one group for the driver if there are few rows."""
        parts = files.parts
        groups = balanced_groups(parts, range(len(parts)), self.tasks(max(1, len(parts)), files.expected_rows))
        # In the order of commits, so that a pack has events of few of them.
        return [sorted(group) for group in groups]

    def _in_pool(self, calls: Sequence[Callable[[], list[pa.RecordBatch]]]) -> list[pa.RecordBatch]:
        pool = self._pool = self._running() or Pool(self.cores)
        try:
            return pool.run(calls)
        except BaseException:
            # Tasks that are still running belong to a failed epoch.
            self._pool = None
            pool.close()
            raise


def needs_spark(pipeline: Pipeline, source: str, choice: ReaderChoice) -> Refused:
    """Return the error for an input whose rows go through Spark.

    Args:
        pipeline: the pipeline.
        source: table or path of the input's source.
        choice: what reads the input.
    """
    reason = choice.files_by_spark or choice.sql_by_spark
    return Refused(
        f'pipeline {pipeline.name!r} can\'t read source {source} with engine = "local": {reason}, which '
        'needs Spark. Run it with --engine spark (engine = "spark" in tidegate.toml), or change that part of the '
        "pipeline"
    )


def order_by(table: pa.Table, by: Sequence[str]) -> pa.Array:
    """Return the numbers of rows ordered by columns, as Spark orders them: nulls first, NaN last."""
    keys = {}
    for name in by:
        column = table[name]
        if column.null_count:
            keys[f"valid:{name}"] = pc.is_valid(column)
        if pa.types.is_floating(column.type):
            keys[f"nan:{name}"] = pc.is_nan(column)
        keys[name] = column
    return pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys])


def _call(run: Callable[..., Batches], *arguments: object) -> list[pa.RecordBatch]:
    """Run a function that yields batches to completion."""
    return list(run(*arguments))


def _write_packs(
    folder: Path, files: FileSlice, pack: Run, shards: frozenset[int], task: int, parts: Sequence[int]
) -> Batches:
    """Run the first half of an exchange for a task: write the packs of its parts, each to its own file."""
    try:
        for bundle, packs in enumerate(pack(files.evaluated(parts))):
            for shard, content in zip(packs.column(SHARD).to_pylist(), packs.column(PACK), strict=True):
                if shard in shards:
                    (folder / f"{shard}-{task:04d}-{bundle:06d}").write_bytes(content.as_buffer())
    except OSError as error:
        raise TidegateError(
            f"work folder {folder.parent}: the events of the epoch can't be exchanged there "
            f"({error.strerror}). Nothing was committed: free some space, or set `work` in tidegate.toml, and run "
            "again"
        ) from error
    return iter(())


def _run_shard(run: Callable[[str, Sequence[Pack]], Batches], marker: str, paths: Sequence[Path]) -> Batches:
    """Run the second half of an exchange for a shard, over the files with its packs."""
    return run(marker, [partial(_mapped, path) for path in paths])


def _mapped(path: Path) -> pa.Buffer:
    with pa.memory_map(str(path)) as file:
        return file.read_buffer()

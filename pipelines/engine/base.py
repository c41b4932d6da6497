"""The engine of a run: it runs functions over Arrow batches in tasks, over a slice's rows or given pieces of work.

It can do three things for an epoch. Each call returns when all tasks have ended, and fails if a task fails.

    over        files -> checked rows -> the caller's function -> batches
    in_place    pieces of work -> the caller's function -> batches
    exchanged   files -> checked rows -> packs of events by shard -> the caller's function, once per shard -> batches

`SparkEngine` runs Spark tasks, and also evaluates SQL and reads files that only Spark supports. `LocalEngine` runs them
in processes on this machine. An epoch writes the same rows with either, so each continues the other's snapshots.
"""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import pyarrow as pa

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.event_columns import PACK, SHARD
from tidegate.pipelines.definition.pipeline import Input, Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.storage.shared_folder import SharedFolder

if TYPE_CHECKING:
    from tidegate.pipelines.sources.base import Source
    from tidegate.pipelines.sources.choose_reader import InputColumns, ReaderChoice
    from tidegate.pipelines.sources.file_slice import FileSlice
    from tidegate.pipelines.sources.source_table import EvaluatedRows
    from tidegate.pipelines.sources.sql.expression import SparkSql

TIME_ZONE = "spark.sql.session.timeZone"

Batches: TypeAlias = "Iterator[pa.RecordBatch]"

Run: TypeAlias = "Callable[[Iterator[EvaluatedRows]], Batches]"
"""Function of a task: it gets the checked rows of some parts, and yields batches."""

Names: TypeAlias = Sequence[Sequence[str]]
"""Columns of events by input."""

Pack: TypeAlias = Callable[[], pa.Buffer]
"""Function that opens a pack. The table that it returns takes no memory until it is read."""

PACKED = pa.schema([(SHARD, pa.int32()), (PACK, pa.binary())])
"""Columns of packs: the number of the shard, and its events as an Arrow stream."""


class Engine(Protocol):
    """Runs the tasks of epochs. Functions are pickled, so they hold no session and no open file."""

    @property
    def name(self) -> str:
        """`spark` or `local`, as in tidegate.toml."""

    @property
    def cores(self) -> int:
        """Number of tasks that run at the same time."""

    @property
    def threads(self) -> int:
        """Number of threads in which a task may read and combine events: 1 if there is a task for each core."""

    @property
    def is_on_one_machine(self) -> bool:
        """True if all tasks can access the folders of this machine."""

    def start(self) -> None:
        """Start whatever is slow to start. Without this call, the first task starts it."""

    def setting(self, name: str) -> str | None:
        """Return the value of a setting of Spark, which may change what an SQL expression means; None if unset."""

    def check(self, error: Exception | None = None, within: float = 0.0) -> None:
        """Raise an error if the engine has ended on its own; a stream calls this between two polls.

        Args:
            error: an error that this may have caused; an error with another known cause is kept.
            within: seconds to wait for the end.

        Raises:
            TidegateError: the engine has ended; the message says how.
        """

    def tasks(self, pieces: int, rows: int) -> int:
        """Return the number of tasks for a number of pieces of work.

        Args:
            pieces: number of pieces, at least one.
            rows: number of rows in all pieces, if known.
        """

    def in_place(
        self, tasks: Sequence[Sequence[int]], run: Callable[[Sequence[int]], Batches], schema: pa.Schema
    ) -> list[pa.RecordBatch]:
        """Run a function once for each task. Return the batches that it yields, in any order."""

    def over(
        self,
        files: FileSlice,
        run: Run,
        schema: pa.Schema,
        names: Names | None = None,
        are_placed: bool = False,
    ) -> pa.Table:
        """Run a function in tasks over the checked rows of a slice. Return everything that it yields.

        Args:
            files: the slice, which has parts.
            run: the function.
            schema: schema of the batches that the function yields.
            names: columns of events by input; None for those that an event has.
            are_placed: True if positions must distinguish the rows of a file, even if Spark reads them.
        """

    def in_order(self, files: FileSlice, run: Run, schema: pa.Schema, names: Names, by: Sequence[str]) -> Batches:
        """Run a function over the checked rows of a slice, and yield its results ordered by columns.

        The rows need not fit in memory. Nulls come first.

        Args:
            files: the slice, which has parts.
            run: the function.
            schema: schema of the batches that the function yields; the first column of `by` is the number of the
                part's commit.
            names: columns of events by input.
            by: the columns that order the rows.
        """

    def exchanged(
        self,
        files: FileSlice | None,
        pack: Run,
        markers: Mapping[int, str],
        run: Callable[[str, Sequence[Pack]], Batches],
        schema: pa.Schema,
    ) -> list[pa.RecordBatch]:
        """Pack the events of a slice by shard, move the packs, and run a function once for each shard.

        Args:
            files: the slice; None if it has no rows.
            pack: function that yields packs (`PACKED`).
            markers: text for the function, by number of the shard; packs of other shards are dropped.
            run: function that gets the text and the packs of a shard.
            schema: schema of the batches that the function yields.
        """

    def columns(self, pipeline: Pipeline, input_: Input, source: Source, choice: ReaderChoice) -> InputColumns:
        """Return the columns of an input whose rows go through Spark.

        Raises:
            Refused: an expression can't be evaluated, or this engine can't read the source.
        """

    def derived(self, sql: SparkSql, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        """Return columns of events for rows with all columns of a source, in order and without `where`."""

    def close(self) -> None:
        """End everything that the engine started."""


def settings_of(config: Config) -> Callable[[str], str | None]:
    """Return a function that returns the value of a setting of Spark in tidegate.toml, or None.

    A Spark session passed to the project has its own settings, except for the time zone: that of a run is always UTC.
    """

    def setting(name: str) -> str | None:
        if config.session is not None and name != TIME_ZONE:
            given: str | None = config.session.conf.get(name, None)
            return given
        value = config.spark.get(name)
        return None if value is None else str(value)

    return setting


def balanced_groups(parts: Sequence[FilePart], numbers: Sequence[int], most: int) -> list[list[int]]:
    """Divide the numbers of parts into at most `most` groups, each with about the same number of rows."""
    groups: list[list[int]] = [[] for _ in range(min(most, len(numbers)))]
    heights = [0] * len(groups)
    for number in sorted(numbers, key=lambda number: -(parts[number].rows or 0)):
        lowest = heights.index(min(heights))
        groups[lowest].append(number)
        heights[lowest] += parts[number].rows or 1
    return groups


def split(count: int, tasks: int) -> list[range]:
    """Divide the numbers below `count` into `tasks` ranges of about equal length, leaving out empty ones."""
    bounds = [count * task // tasks for task in range(tasks + 1)]
    return [range(first, end) for first, end in pairwise(bounds) if first < end]


_PREFIX, _LOCK = "tidegate-exchange-", "driver.lock"


@contextmanager
def exchange_folder(within: Path | None = None) -> Iterator[Path]:
    """Create a folder in which tasks of this machine leave events, and remove it afterwards.

    Args:
        within: the folder in which it is created; None for the system's temporary folder.
    """
    remove_abandoned(within)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=within))
    try:
        with (folder / "new").open("w") as lock:
            # Others see the lock only once it is held. Where no file can be locked, folders of killed drivers stay.
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
                (folder / "new").rename(folder / _LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove_abandoned(within: Path | None = None) -> None:
    """Remove the exchange folders of killed drivers, whose locks nobody holds any longer."""
    root = Path(within or tempfile.gettempdir())
    for folder in root.glob(f"{_PREFIX}*"):
        try:
            with SharedFolder(root).open(f"{folder.name}/{_LOCK}") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except (OSError, Refused):
            # Its driver is running, another process has just removed the folder, or it belongs to another user.
            continue

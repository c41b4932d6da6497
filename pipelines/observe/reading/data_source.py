"""Spark's format `tidegate`: the tables of a pipeline as data frames and streams, read with Arrow in Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

from tidegate.pipelines.definition.config import ENVIRONMENT, find_config
from tidegate.pipelines.engine.spark.versions import ends_with_what_is_there, from_arrow, to_arrow
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.observe.reading.filters import condition
from tidegate.pipelines.observe.reading.reached import NEW_QUERY, Reached
from tidegate.pipelines.observe.reading.target import FINAL, Target
from tidegate.pipelines.observe.reading.views import FileRows, View

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

OPTIONS = ("path", "view", "where", "config", "forgottenThrough")

_BYTES = 64 << 20
"""Total size of files in bytes at which a task is full."""


@dataclass
class _Part(InputPartition):
    """The files of one task, and the rows to read from them."""

    view: View


class TidegateFormat(DataSource):
    """The tables of a pipeline, as a Spark format.

    Its options are:

    - `path`: name of the pipeline, which `load` takes.
    - `view`: `final` (default), `latest`, `windows`, `all`, `late`, `rejects`, `epochs` or `state`.
    - `where`: comparisons on the rows, such as `user = 'ann' AND window_end > '2024-03-01'` (in UTC). Files without
      such rows are not read. Spark's own filters are applied by Spark.
    - `config`: path of tidegate.toml; by default the file that `register_format` was given or found.
    - `forgottenThrough`: for a stream, the newest epoch of a `tidegate forget` whose key has been erased downstream as
      well.
    """

    config: str | None = None
    """Path of tidegate.toml if no option names one. None searches for the file from the folder of Spark's Python
    process, which for Spark Connect is on the server.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "tidegate"

    def schema(self) -> StructType:
        """Return the columns of the view."""
        return _all_nullable(from_arrow(self._target.schema))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the current view."""
        return Reader(self._target, to_arrow(schema), self._pushed())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of the view's changes."""
        self._target.check_can_be_followed()
        pushed = self._pushed(self._target.changing)
        where = self.options.get("where", "").strip()
        return StreamReader(self._target, to_arrow(schema), pushed, self._forgotten_through, where)

    @cached_property
    def _target(self) -> Target:
        names = {option.casefold() for option in OPTIONS}
        if unknown := sorted(name for name in self.options if name.casefold() not in names):
            raise UsageError(
                f"option {unknown[0]!r} is unknown to format tidegate: the options are {', '.join(OPTIONS)}"
            )
        config = self.options.get("config", self.config)
        try:
            path = find_config() if config is None else Path(config)
        except UsageError as error:
            raise UsageError(
                f"no tidegate.toml in {Path.cwd()} or above, where Spark runs Python: name the file in the read, "
                f'.option("config", PATH), or set {ENVIRONMENT} where Spark, or its Connect server, starts'
            ) from error
        return Target.of(self.options.get("path"), self.options.get("view", FINAL), path)

    def _pushed(self, without: frozenset[str] = frozenset()) -> list[pc.Expression]:
        """Return the condition of option `where`, which must not name some columns."""
        text = self.options.get("where")
        if text is None:
            return []
        columns = [field for field in self._target.schema if field.name not in without]
        return [condition(text, pa.schema(columns))]

    @property
    def _forgotten_through(self) -> int:
        text = self.options.get("forgottenThrough", "0")
        if not text.isdecimal():
            raise UsageError(f"option forgottenThrough = {text!r}: give the number of the epoch that forgot the key")
        return int(text)


def format_of(config: Path | None) -> type[TidegateFormat]:
    """Return the format with a default for its option `config`, or None for no default."""
    if config is None:
        return TidegateFormat
    # Spark sends the class to another process. It sends this class by value, with the path.
    return type("FormatOfProject", (TidegateFormat,), {"config": str(config.absolute())})


class Reader(DataSourceReader):
    """Reads a view as of the time when the first query over a frame is planned; in Spark 4.0, when each query is.

    It accepts no filters from Spark's optimizer, because Spark reuses the last ones for all queries over the frame.
    """

    def __init__(self, target: Target, wanted: pa.Schema, pushed: Sequence[pc.Expression]) -> None:
        self._target = target
        self._wanted = wanted
        self._pushed = pushed

    def partitions(self) -> Sequence[InputPartition]:
        """Return the tasks, without files in which no row satisfies the condition."""
        return _tasks(self._target.rows(self._pushed))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        if isinstance(partition, _Part):
            yield from _cast(self._target.read(partition.view, self._pushed), self._wanted)


@ends_with_what_is_there
class StreamReader(DataSourceStreamReader):
    """Reads the changes of a view from epoch to epoch.

    A batch between two offsets has the same rows whenever it is read, so a query that fails in a batch reads the same
    batch again.
    """

    def __init__(
        self,
        target: Target,
        wanted: pa.Schema,
        pushed: Sequence[pc.Expression] = (),
        forgotten_through: int = 0,
        where: str = "",
    ) -> None:
        self._target = target
        self._wanted = wanted
        self._pushed = pushed
        self._forgotten_through = forgotten_through
        self._read = {"view": target.view, "where": where}
        self._until: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Return the offset before the first row."""
        return self._offset(Reached.nothing())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Record how far the view is published: an available-now query ends there."""
        self._until = self._offset(self._target.now())

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Return how far the view is published. Spark 4.0 and 4.1 pass neither the start nor a limit."""
        if start is not None:
            # This comes before Spark records the batch, so that the query can continue once the options are set back.
            self._moment(start)
        return self._offset(self._target.now()) if self._until is None else self._until

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of a batch.

        Raises:
            Refused: the rows between the offsets can no longer be determined, a key was forgotten, or the query used to
            read other rows.
        """
        first, last = self._moment(start), self._moment(end)
        return [] if first == last else _tasks(self._target.changes(first, last, self._forgotten_through))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task."""
        if isinstance(partition, _Part):
            yield from _cast(self._target.read(partition.view, self._pushed), self._wanted)

    def _offset(self, at: Reached) -> dict[str, Any]:
        return asdict(at) | self._read

    def _moment(self, offset: dict[str, Any]) -> Reached:
        """Return the position of an offset of this query; older offsets don't record what was read."""
        at = Reached(**{name: value for name, value in offset.items() if name not in self._read})
        for option, now in self._read.items():
            before = offset.get(option, now)
            if at.epoch and before != now:
                raise Refused(
                    f"option {option}: this query has read {before or 'all rows'!r} so far and now asks for "
                    f"{now or 'all rows'!r}, so its target would have a mix of both. {NEW_QUERY}"
                )
        return at


def _tasks(view: View) -> list[InputPartition]:
    """Divide the files of a view into tasks of about 64 MB. A file is never split."""
    tasks: list[InputPartition] = []
    files: list[FileRows] = []
    size = 0
    for file in view.files:
        if files and size + file.size > _BYTES:
            tasks.append(_Part(replace(view, files=tuple(files))))
            files, size = [], 0
        files.append(file)
        size += file.size
    return [*tasks, *([_Part(replace(view, files=tuple(files)))] if files else [])]


def _cast(batches: Iterator[pa.RecordBatch], wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield batches with exactly the columns and types that Spark expects."""
    for batch in batches:
        yield from pa.Table.from_batches([batch]).select(wanted.names).cast(wanted).to_batches()


def _all_nullable(schema: StructType) -> StructType:
    for field in schema.fields:
        field.nullable = True
    return schema

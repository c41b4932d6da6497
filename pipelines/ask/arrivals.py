"""The rows of a pipeline's sources as they arrived, by source commit, and the watermarks that a setting gives them.

Nothing is run: rows are read as in an epoch, and event time advances through the code that plans a stream's epochs.
Only times, keys and commits are kept. If there are many, they are kept on disk, with one share of the keys in memory at
a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.event_columns import plain
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.epoch.event_times import partitions_of, sides_of, times_of, watermarks_of
from tidegate.pipelines.epoch.file_measure import Measures
from tidegate.pipelines.epoch.open_input import OpenInput, choices_of
from tidegate.pipelines.epoch.plan_commits import ReadCommit, in_steps, of_commits, steps_of
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.sources.base import Source
from tidegate.pipelines.sources.commits import SourceCommit, SourceFile, in_order
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.windowing.columnar.key_codes import encode_keys
from tidegate.windowing.time import MIN_TIMESTAMP, Millis
from tidegate.windowing.watermarks import EventTimes, WatermarkStrategy

Int64s = npt.NDArray[np.int64]

ROWS_AT_ONCE = 5_000_000
"""Largest number of rows in memory, about 1 GB including sorting. More rows are divided into shares of the keys."""


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Event time over the commits of a stream, one entry per commit.

    Args:
        before: watermark that decides which rows of the commit are late, int64 epoch milliseconds.
        after: watermark after the commit.
        holding: for each source partition, the number of commits after which it held the watermark back.
        behind: for each source partition, the most by which it held the watermark back, milliseconds.
    """

    before: Int64s
    after: Int64s
    holding: dict[str, int]
    behind: dict[str, Millis]

    def equals(self, other: Watermarks) -> bool:
        """Return True if the watermarks of all commits are equal."""
        return np.array_equal(self.before, other.before) and np.array_equal(self.after, other.after)


@dataclass(frozen=True, slots=True)
class Arrived:
    """Rows as they arrived, one entry per row.

    Args:
        keys: hash of the key.
        times: event time, int64 epoch milliseconds.
        commits: number of the commit.
        partitions: number of the source partition, an index of `Arrivals.partitions`.
        gaps: gap of a session, if a column has it, milliseconds; otherwise empty.
    """

    keys: Int64s
    times: Int64s
    commits: Int64s
    partitions: Int64s
    gaps: Int64s

    def __len__(self) -> int:
        return len(self.times)

    @property
    def columns(self) -> list[Int64s]:
        """The fields, in order."""
        return [getattr(self, name) for name in self.__slots__]


class Divided:
    """Rows on disk, divided into shares of the keys: files in a temporary folder, which is removed with this value."""

    def __init__(self, pieces: Iterator[Arrived], shares: int, work: Path | None) -> None:
        if work is not None:
            work.mkdir(parents=True, exist_ok=True)
        self._folder = TemporaryDirectory(prefix="rows-", dir=work)
        self._blocks: list[list[tuple[int, ...]]] = [[] for _ in range(shares)]
        for piece in pieces:
            numbers = piece.keys % shares
            for share, blocks in enumerate(self._blocks):
                rows = np.flatnonzero(numbers == share)
                columns = [column[rows] if len(column) else column for column in piece.columns]
                with self._path(share).open("ab") as file:
                    np.concatenate(columns).tofile(file)
                blocks.append(tuple(map(len, columns)))

    def rows(self, share: int) -> Arrived:
        """Return the rows of a share."""
        lengths = self._blocks[share]
        bounds = np.cumsum([length for block in lengths for length in block])[:-1]
        parts = np.split(np.fromfile(self._path(share), np.int64), bounds) if lengths else []
        width = len(Arrived.__slots__)
        columns = (parts[number::width] or [np.empty(0, np.int64)] for number in range(width))
        return Arrived(*map(np.concatenate, columns))

    def _path(self, share: int) -> Path:
        return Path(self._folder.name, f"{share}.rows")


class Arrivals:
    """All rows that a stream would read from the beginning of the sources.

    Args:
        source: the opened inputs.
        reads: the commits, in the order in which they are read.
        changed: number of versions that changed rows; they are left out.
        work: folder for shares of the rows; None for the system's temporary folder.
    """

    def __init__(self, source: OpenInput, reads: list[ReadCommit], changed: int, work: Path | None = None) -> None:
        self.source, self.changed, self._work = source, changed, work
        self.reads = [replace(read, step=number) for number, read in enumerate(reads)]
        self.files: FileSlice = of_commits(source.files, self.reads)
        self.measures: Measures = source.measure(self.files)
        # Event time waits for an input without a partition column even if it has no usable rows.
        inputs = zip(sides_of(self.pipeline), self.pipeline.inputs, strict=True)
        awaited = {side for side, each in inputs if each.watermark_by is None}
        found = (
            self._name(read.number, name) for read in self.reads for name in self.measures.largest.get(read.step, {})
        )
        self.partitions = sorted(awaited.union(found))
        self._numbers = {name: number for number, name in enumerate(self.partitions)}

    @classmethod
    def open(cls, config: Config, pipeline: Pipeline, from_version: int = 0) -> Arrivals:
        """List the commits of a pipeline's sources from a version on, and measure their rows.

        Raises:
            Refused: Spark would have to read a source, or a version can no longer be read.
        """
        source = _opened(config, pipeline)
        try:
            commits = list(in_order([part.log.unread(from_version - 1) for part in source.inputs]))
        except Refused as error:
            raise Refused(
                f"{error}. To use only later versions, set --from-version to the first one after that"
            ) from error
        reads = [
            ReadCommit(commit, commit.files, len(commit.files), True, number)
            for number, commit in commits
            if not commit.changes
        ]
        return cls(source, reads, len(commits) - len(reads), config.work_folder)

    @classmethod
    def newest(cls, config: Config, pipeline: Pipeline, rows: int) -> Arrivals:
        """List the newest commits of a pipeline's sources with about as many rows, and measure these.

        If the newest commit alone has more rows, files evenly chosen from it are read.

        Raises:
            Refused: Spark would have to read a source, or only a run shows its watermarks.
        """
        source = _opened(config, pipeline)
        of_inputs = [_newest(part.log, rows // len(source.inputs)) for part in source.inputs]
        reads = [
            ReadCommit(commit, files, len(files), True, number)
            for number, commit in in_order(of_inputs)
            if (files := _some(commit.files, rows // len(source.inputs)))
        ]
        return cls(source, reads, 0, config.work_folder)

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline."""
        return self.source.bound.pipeline

    @property
    def strategies(self) -> list[WatermarkStrategy]:
        """The watermark strategies of the inputs."""
        return [each.watermark or self.pipeline.watermark for each in self.pipeline.inputs]

    @property
    def largest(self) -> Int64s:
        """Largest event time up to each commit, int64 epoch milliseconds."""
        of_commits = [
            max(self.measures.largest.get(number, {}).values(), default=MIN_TIMESTAMP)
            for number in range(len(self.reads))
        ]
        return np.maximum.accumulate(np.array(of_commits, np.int64))

    @property
    def clock(self) -> Int64s:
        """Largest commit time up to each commit, int64 epoch milliseconds."""
        return np.maximum.accumulate(np.array([read.commit.time for read in self.reads], np.int64))

    def watermarks(
        self, change: Callable[[WatermarkStrategy], WatermarkStrategy] | None = None, observe: bool = False
    ) -> Watermarks:
        """Return the watermarks of the inputs by the strategies of the pipeline, or by the changed ones.

        With `observe`, they say after how many commits each source partition held the watermark back, and by how much.
        """
        pipeline = self.pipeline
        if change is not None:
            right = pipeline.right and replace(
                pipeline.right, watermark=change(pipeline.right.watermark or pipeline.watermark)
            )
            pipeline = replace(pipeline, watermark=change(pipeline.watermark), right=right)
        times = times_of(pipeline, None)
        before, after = [MIN_TIMESTAMP], [MIN_TIMESTAMP]
        holding, behind = dict.fromkeys(self.partitions, 0), dict.fromkeys(self.partitions, 0)
        for read in self.reads:
            # The epoch has only this commit: how commits are grouped into epochs makes no difference.
            (alone,) = in_steps([read], times)
            largest = {alone.step: self.measures.largest.get(read.step, {})}
            steps = steps_of([alone], times, largest, lambda read: ())
            before.append(steps[0].watermark if len(steps) > 1 else after[-1])
            after.append(times.watermark)
            if observe:
                _observe(times, holding, behind)
        return Watermarks(np.array(before[1:], np.int64), np.array(after[1:], np.int64), holding, behind)

    def rows(self) -> Arrived:
        """Return the usable rows."""
        found = list(self._read())
        columns = ([getattr(each, name) for each in found] for name in Arrived.__slots__)
        return Arrived(*(np.concatenate(column) if found else np.empty(0, np.int64) for column in columns))

    def divided(self, shares: int) -> Divided:
        """Read the source once, and return its usable rows on disk, divided into shares of the keys."""
        return Divided(self._read(), shares, self._work)

    def _read(self) -> Iterator[Arrived]:
        nothing = np.empty(0, np.int64)
        tables = [table.columns for table in self.files.tables]
        names = [
            list(
                dict.fromkeys(
                    [columns.timestamp, *columns.key, *columns.limited, *filter(None, [columns.partition_by])]
                )
            )
            for columns in tables
        ]
        for judged in self.files.evaluated(names=names):
            part = self.files.parts[judged.number]
            columns, wanted = tables[part.input], judged.usable(part.since, part.until)
            table = judged.table
            kept = np.flatnonzero(wanted)
            yield Arrived(
                self._keys(table)[kept],
                judged.times[kept],
                np.full(len(kept), part.commit),
                self._partitions_of(part.input, columns.partitions(table))[kept],
                nothing if columns.gap is None else np.asarray(plain(table[columns.gap]).fill_null(0))[kept],
            )

    def _keys(self, table: pa.Table) -> Int64s:
        """Return the hash of each row's key, or 0 if windows have no key."""
        bound = self.source.bound
        if len(bound.inputs) > 1 or not bound.key.names:
            return np.zeros(len(table), np.int64)
        keys = encode_keys(bound.key, ({name: table[name] for name in bound.key.names}, len(table)))
        hashes: Int64s = keys.hashes[keys.codes[0]].view(np.int64)
        return hashes

    def _partitions_of(self, number: int, names: pa.ChunkedArray) -> Int64s:
        coded = names.combine_chunks().dictionary_encode()
        numbers = [self._numbers.get(self._name(number, name), 0) for name in coded.dictionary.to_pylist()]
        partitions: Int64s = np.array(numbers, np.int64)[np.asarray(coded.indices)]
        return partitions

    def _name(self, number: int, partition: str) -> str:
        """Return the name of a source partition, as in manifests."""
        side = sides_of(self.pipeline)[number]
        return (f"{side}:{partition}" if partition else side) if side else partition

    @property
    def shares(self) -> int:
        """Number of shares of the keys, such that a share has about `ROWS_AT_ONCE` rows."""
        return max(1, -(-self.measures.usable // ROWS_AT_ONCE))


def _opened(config: Config, pipeline: Pipeline) -> OpenInput:
    if any((part.watermark or pipeline.watermark).reads_events for part in pipeline.inputs):
        raise Refused(
            f"pipeline {pipeline.name!r}: its watermark generator sees every event, so only a run shows what it "
            "would do",
            Remedy(Act.SHOW_LATE, pipeline.name),
        )
    for choice in choices_of(config, pipeline):
        if (reason := choice.files_by_spark or choice.sql_by_spark) is not None:
            raise Refused(
                f"pipeline {pipeline.name!r}: {reason}, and rows are read without Spark here. Change that "
                "part of the pipeline"
            )
    return OpenInput.open(LocalEngine.of(config), PipelineTables(warehouse_of(config), pipeline.name), pipeline)


_MOST_COMMITS = 500
"""Largest number of commits that are read from the end of a log: each is a request on a store."""


def _newest(log: Source, rows: int) -> list[SourceCommit]:
    """Return the newest commits that only added rows, with at least so many rows if there are as many, in order."""
    found, taken = list[SourceCommit](), 0
    for version in range(log.head, max(-1, log.head - _MOST_COMMITS), -1):
        try:
            commits = [commit for commit in log.unread(version - 1, version) if not commit.changes]
        except Refused:
            # The entry no longer exists, or it removed rows: the sample begins after it.
            break
        found += commits
        taken += sum(rows if file.rows is None else file.rows for commit in commits for file in commit.files)
        if taken >= rows:
            break
    return found[::-1]


def _some(files: Sequence[SourceFile], rows: int) -> tuple[SourceFile, ...]:
    """Return files that are evenly chosen from files with more rows than that, at least one; otherwise all."""
    total = sum(file.rows or 0 for file in files)
    return tuple(files[:: max(1, -(-total // max(1, rows)))])


def _observe(times: EventTimes, holding: dict[str, int], behind: dict[str, Millis]) -> None:
    """Count the partitions that currently hold back the watermark, and record by how much."""
    aligned = {}
    for name, partition in partitions_of(times).items():
        watermark = watermarks_of(times).get(name.partition(":")[0], times.watermark)
        if partition.aligned and partition.watermark <= times.watermark:
            aligned[name] = partition.watermark
    others = [partition.watermark for name, partition in partitions_of(times).items() if not partition.idle]
    for name, watermark in aligned.items():
        holding[name] += 1
        further = [other for other in others if other > watermark]
        if further and watermark > MIN_TIMESTAMP:
            behind[name] = max(behind[name], min(further) - watermark)

"""The stream: Spark's structured streaming finds new data, and each of its batches becomes an epoch.

Spark's checkpoint is never trusted: every run makes a new one from the position in the manifest, and a batch only
tells how far it reaches in the source; its number is not used. After a backfill a run begins with the handoff. While
there is no data to read, clock epochs advance time.
"""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import reduce
from pathlib import Path
from time import perf_counter

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.epoch.plan import EpochPlan
from tidegate.pipelines.epoch.plan_clock import plan_clock
from tidegate.pipelines.epoch.plan_commits import plan_commits
from tidegate.pipelines.epoch.plan_end import plan_end
from tidegate.pipelines.epoch.plan_hand_over import plan_hand_over
from tidegate.pipelines.epoch.read_commits import ReadCommit
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.failures import in_words, told_as, way_out
from tidegate.pipelines.manifest import Manifest, Position
from tidegate.pipelines.run.driver import Driver
from tidegate.pipelines.run.spark_checkpoint import UNREAD, ends_of_batch, seed_checkpoint
from tidegate.pipelines.run.upkeep import Upkeep
from tidegate.pipelines.snapshots.compatibility import ready
from tidegate.pipelines.snapshots.head import Snapshot, is_newest, read_snapshot
from tidegate.pipelines.sources.interleave import interleaved
from tidegate.pipelines.sources.source import Source
from tidegate.windowing.time import Millis

OnEpoch = Callable[[Manifest], None]

_POLL_SECONDS = 1


@dataclass
class Stream:
    """One run of a pipeline as a stream.

    Args:
        driver: the driver, which holds the lease.
        work: folder for Spark's checkpoint, which is removed at the end.
        on_epoch: called with the manifest of each epoch.
        options: options of Spark's Delta source, such as maxFilesPerTrigger.
        upkeep: upkeep of the tables between epochs; None leaves it to the commands.
        anew: True to start from scratch at the beginning of the source, on a new timeline; published rows stay
            untouched until the new timeline has its first epoch.
    """

    driver: Driver
    work: Path
    on_epoch: OnEpoch
    options: Mapping[str, str] = field(default_factory=dict)
    upkeep: Upkeep | None = None
    anew: bool = False
    plan_seconds: float = field(default=0.0, init=False)
    _failure: list[Exception] = field(default_factory=list, init=False)
    _at_work: threading.Lock = field(default_factory=threading.Lock, init=False)
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _head: Snapshot | None = field(default=None, init=False)
    _opened: Source | None = field(default=None, init=False)
    _begun: float = field(default=0.0, init=False)

    def run_available(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Run epochs over everything that is in the source now, then advance the clock, and return.

        Args:
            should_stop: called every second; a running epoch is ended first, and the rest is left to the next run.

        Raises:
            Refused: the source is not the table in which the position was taken.
        """
        positions = self._begin()
        if any(input_.log.next_commit(at.version) for input_, at in zip(self._source().inputs, positions, strict=True)):
            self._run_query(None, should_stop)
        if not self._stopping.is_set():
            self._tick()

    def end_of_input(self) -> None:
        """End event time after the data that is read, so that open windows fire; later elements are late.

        Raises:
            Refused: a commit was read in part.
        """
        self._begun = perf_counter()
        driver, head = self.driver, self._parent()
        if head is not None and not self._stopping.is_set():
            self._run(plan_end(self._source(), driver.tables, head, driver.clock(), driver.shards))

    def run_continuously(self, interval: timedelta, should_stop: Callable[[], bool]) -> None:
        """Run epochs as data comes, and clock epochs between, until asked to stop.

        Args:
            interval: time between two looks at the source.
            should_stop: called every second; a running epoch is ended first.

        Raises:
            Refused: the source is not the table in which the position was taken.
        """
        self._begin()
        self._run_query(interval, should_stop)

    def _run_query(self, interval: timedelta | None, should_stop: Callable[[], bool]) -> None:
        """Run the query until it ends or is stopped; if Spark ends it because of a new column, start it again."""
        while True:
            source, positions = self._source(), self._positions()
            # Spark would also stop at a change that is not append-only, but its message names no way out.
            _check_append_only(source, positions)
            try:
                with self._query(source, positions, interval) as query:
                    self._await(query, should_stop)
            except _ColumnsChanged:
                continue
            return

    def _await(self, query: StreamingQuery, should_stop: Callable[[], bool]) -> None:
        """Wait for the end of the query; if it is to stop, let the running epoch end first."""
        while not query.awaitTermination(_POLL_SECONDS):
            if should_stop():
                self._stopping.set()
                with self._at_work:
                    pass
                # Spark waits here for a batch that may have begun, and that batch waits for the lock: so not under it.
                query.stop()
                if self._failure:
                    # A query that is stopped does not report the failure of its last batch.
                    raise self._failure[0]
                return

    def _begin(self) -> tuple[Position, ...]:
        """Recover after a crash, take over from a backfill, and return the position in each input."""
        self._begun = perf_counter()
        self.driver.recover()
        head = self._head = self._ready(self._source().bound)
        if head is not None and not self.anew and head.manifest.position_in(self._table).frontier is not None:
            driver = self.driver
            self._run(plan_hand_over(self._source(), driver.tables, head, driver.clock(), driver.shards))
        return self._positions()

    def _ready(self, bound: BoundPipeline) -> Snapshot | None:
        """Give the tables every column of the code and of the source, and return the head."""
        tables = self.driver.tables
        if self.anew:
            tables.widen(bound.table_schemas)
            return read_snapshot(tables)
        return ready(tables, bound, read_snapshot(tables))

    def _query(self, source: Source, positions: tuple[Position, ...], interval: timedelta | None) -> _Running:
        self._remove_checkpoints()
        return _Running(self, source, positions, interval)

    def _remove_checkpoints(self) -> None:
        """Remove the checkpoints of killed runs; none of those runs is at work, since this one holds the lease."""
        for left in (self.work / "checkpoints").glob(f"{self.driver.pipeline.name}-*"):
            if left.name.rpartition("-")[0] == self.driver.pipeline.name:
                shutil.rmtree(left, ignore_errors=True)

    def _take(self, checkpoint: Path, number: int) -> None:
        """Turn a batch into an epoch over its data, or into a clock epoch if it has none."""
        with self._at_work:
            if self._stopping.is_set():
                return
            try:
                self._epoch(ends_of_batch(checkpoint, number))
            except Exception as error:
                # Spark wraps the error, but the caller should get the error itself.
                self._failure.append(error)
                raise

    def _epoch(self, ends: Sequence[Position]) -> None:
        self._begun = perf_counter()
        # The clock is read before the log, so a commit that is not yet in the log is younger than the clock.
        driver, now = self.driver, self.driver.clock()
        # The source is read before the head: its new columns widen the tables, which makes a new version of `state`.
        source, head = self._source(), self._parent()
        positions = self._positions()
        # The end of a batch in a table that was replaced since has no meaning in the new table.
        reached = [
            end if end.table_id == input_.log.table_id else UNREAD
            for input_, end in zip(source.inputs, ends, strict=True)
        ]
        between = _between if source.right is None else _interleaved
        commits = between(source, positions, reached)
        if commits:
            plan = plan_commits(source, driver.tables, commits, head, now, driver.shards)
            replaced = self._current_head() if self.anew else None
            self._run(plan if replaced is None else plan.replacing(replaced))
        else:
            self._beat(source, head, now)

    def _tick(self) -> None:
        """Advance the clock after the last data."""
        self._begun = perf_counter()
        now = self.driver.clock()
        self._beat(self._source(), self._parent(), now)

    def _beat(self, source: Source, head: Snapshot | None, now: Millis) -> None:
        """Advance the clock, at most to the oldest unread commit; mostly nothing is due, and no epoch is made."""
        if head is None or head.manifest.position_in(self._table).files:
            return
        manifest, driver = head.manifest, self.driver
        unread = [input_.log.next_commit(manifest.position_in(input_.table).version) for input_ in source.inputs]
        until = min([now, *(commit.time for commit in unread if commit is not None)])
        self._run(plan_clock(source, driver.tables, head, until, driver.shards))

    def _run(self, plan: EpochPlan | None) -> None:
        if plan is not None:
            self.plan_seconds = perf_counter() - self._begun
            self.driver.tell("planned")
            manifest = self.driver.run(plan)
            self.anew = False
            self.on_epoch(manifest)
            if self.upkeep is not None:
                driver = self.driver
                self.upkeep.after(driver.tables, manifest.epoch, driver.clock(), driver.lease.check)

    def _source(self) -> Source:
        """Return the source as it is now; the pipeline is bound to it again only if its columns changed."""
        driver, opened = self.driver, self._opened
        self._opened = Source.open(driver.spark, driver.tables, driver.pipeline) if opened is None else opened.now()
        if opened is not None and self._opened.bound is not opened.bound:
            # Late and rejected rows are kept with all columns, so their tables need the new ones before the next epoch.
            self._head = self._ready(self._opened.bound)
        return self._opened

    def _current_head(self) -> Snapshot | None:
        """Return the newest snapshot, read again only if somebody committed since."""
        head = self._head
        if head is None or not is_newest(head, self.driver.tables):
            self._head = read_snapshot(self.driver.tables)
        return self._head

    def _parent(self) -> Snapshot | None:
        """Return the snapshot to continue from; None to start from scratch."""
        return None if self.anew else self._current_head()

    @property
    def _table(self) -> str:
        return self.driver.pipeline.source.table

    def _positions(self) -> tuple[Position, ...]:
        """Return the position in each input."""
        head, inputs = self._parent(), self.driver.pipeline.inputs
        return tuple(UNREAD if head is None else head.manifest.position_in(input_.source.table) for input_ in inputs)


class _ColumnsChanged(Exception):
    """The error of a query that Spark ended because the source's columns changed."""


@dataclass
class _Running:
    """A structured-streaming query with a checkpoint of its own, which is removed with it."""

    stream: Stream
    source: Source
    positions: tuple[Position, ...]
    interval: timedelta | None
    checkpoint: Path = field(init=False)
    _query: StreamingQuery = field(init=False)

    def __enter__(self) -> StreamingQuery:
        stream, driver = self.stream, self.stream.driver
        self.checkpoint = stream.work / "checkpoints" / f"{driver.pipeline.name}-{uuid.uuid4().hex}"
        beats = self.interval is not None
        # Spark can't resume at version 0, so a checkpoint is made only if an input was read before.
        if any(position.version >= 0 for position in self.positions):
            tables = [input_.log.table_id for input_ in self.source.inputs]
            seed_checkpoint(self.checkpoint, list(zip(tables, self.positions, strict=True)), beats)
        inputs = zip(self.source.inputs, self.positions, strict=True)
        frames = [self._reader(input_, position) for input_, position in inputs]
        if beats or len(frames) > 1:
            frames = [frame.select(F.lit(None).cast("long").alias("beat")) for frame in frames]
        frame = reduce(DataFrame.union, [*frames, *([_beats(driver)] if beats else [])])
        writer = frame.writeStream.foreachBatch(lambda batch, number: stream._take(self.checkpoint, number))
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        if self.interval is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{self.interval / timedelta(milliseconds=1):.0f} milliseconds")
        with told_as(
            f"the stream of {driver.pipeline.name} can't be started with its checkpoint in {self.checkpoint}",
            "Mend that and run again: it goes on from the newest snapshot",
        ):
            self._query = writer.start()
        return self._query

    def _reader(self, input_: Source, position: Position) -> DataFrame:
        driver = self.stream.driver
        reader = driver.spark.readStream.format("delta").options(**self.stream.options)
        # Without a starting version Delta first lists all files of the table, and not in the order of their commits.
        reader = reader.option("startingVersion", min(position.version + 1, input_.log.head))
        return reader.load(driver.tables.warehouse.path(input_.table))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._query.isActive:
            self._query.stop()
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        if isinstance(error, StreamingQueryException):
            failure = self.stream._failure
            if failure:
                raise failure[0] from error
            # If a change in the source stopped Spark, the check of its log gives a better message.
            _check_append_only(self.source, self.positions)
            if any(input_.log.now().columns != input_.log.columns for input_ in self.source.inputs):
                raise _ColumnsChanged from error
            message = f"the stream of {self.stream.driver.pipeline.name} stopped: {in_words(error)}"
            then = "Run again: it goes on from the newest snapshot"
            raise TidegateError(". ".join(filter(None, (message, way_out(error), then)))) from error


def _beats(driver: Driver) -> DataFrame:
    """Return a frame with a row each second, so that Spark makes batches while no data comes.

    It is not used with availableNow, where it would break the limits on a batch.
    """
    rate = driver.spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    return rate.select(F.col("value").alias("beat"))


def _check_append_only(source: Source, positions: Sequence[Position]) -> None:
    for input_, position in zip(source.inputs, positions, strict=True):
        input_.log.commits(position.version)


def _between(source: Source, begins: Sequence[Position], ends: Sequence[Position]) -> list[ReadCommit]:
    """Return the commits between two positions in the only source."""
    (begin,), (end,) = begins, ends
    taken: list[ReadCommit] = []
    for commit in source.log.commits(begin.version, end.version + (end.files > 0)):
        first = begin.files if commit.version == begin.version + 1 else 0
        last = end.files if commit.version > end.version else len(commit.files)
        if first < last:
            taken.append(ReadCommit(commit, commit.files[first:last], last, complete=last == len(commit.files)))
    if taken and not taken[-1].complete and not source.bound.may_split_commits:
        # The rest comes with a later batch; the commit is then read as a whole.
        taken.pop()
    return taken


def _interleaved(source: Source, begins: Sequence[Position], ends: Sequence[Position]) -> list[ReadCommit]:
    """Return the commits of two sources in their order, up to the first that the batch does not reach.

    Later commits wait for a later batch, so that rate limits do not change the order.
    """
    logs = [input_.log.commits(begin.version) for input_, begin in zip(source.inputs, begins, strict=True)]
    taken = []
    for number, commit in interleaved(logs):
        end = ends[number]
        is_whole = commit.version == end.version + 1 and end.files >= len(commit.files)
        if commit.version > end.version and not is_whole:
            break
        taken.append(ReadCommit(commit, commit.files, len(commit.files), True, number))
    return taken

"""The stream: structured streaming finds new data, and each of its batches becomes an epoch.

Spark's checkpoint is never trusted: it is made anew for every run from the position in the manifest,
and of a batch only its end in the source counts, never its number. A run begins with the hand-over
where a backfill came before, and whatever it reads, time goes on at its end: a clock epoch.
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
        driver: holds the lease.
        work: folder for Spark's checkpoint; it is removed at the end.
        on_epoch: hears of each epoch.
        options: of Spark's Delta source, such as maxFilesPerTrigger.
        upkeep: of the tables, between epochs; None leaves it to the commands.
        anew: whether it starts at the beginning of the source, on a new timeline; what there is stays untouched
            until that has its first epoch.
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
        """Run epochs over everything that is in the source now, then let the clock go on, and return.

        Args:
            should_stop: asked every second; a running epoch is ended first, and what follows is left to the next run.

        Raises:
            Refused: the source is not what the position was taken in.
        """
        positions = self._begin()
        if any(one.log.next_commit(at.version) for one, at in zip(self._source().inputs, positions, strict=True)):
            self._run_query(None, should_stop)
        if not self._stopping.is_set():
            self._tick()

    def end_of_input(self) -> None:
        """End event time after all that is read, so that what is open fires; what comes later is late.

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
            interval: between two looks at the source.
            should_stop: asked every second; a running epoch is ended first.

        Raises:
            Refused: the source is not what the position was taken in.
        """
        self._begin()
        self._run_query(interval, should_stop)

    def _run_query(self, interval: timedelta | None, should_stop: Callable[[], bool]) -> None:
        """Until it ends or is stopped; Spark ends it where the source gets a column, and it begins anew there."""
        while True:
            source, positions = self._source(), self._positions()
            # Spark would stop at what is not append-only too, but in words that name no way on.
            _check_append_only(source, positions)
            try:
                with self._query(source, positions, interval) as query:
                    self._await(query, should_stop)
            except _ColumnsChanged:
                continue
            return

    def _await(self, query: StreamingQuery, should_stop: Callable[[], bool]) -> None:
        """Until it ends by itself, or is to stop: then the epoch at work is ended first."""
        while not query.awaitTermination(_POLL_SECONDS):
            if should_stop():
                self._stopping.set()
                with self._at_work:
                    pass
                # Not under the lock: Spark waits here for the batch that may have begun, and that waits for the lock.
                query.stop()
                if self._failure:
                    # A query that is stopped keeps what failed in it to itself.
                    raise self._failure[0]
                return

    def _begin(self) -> tuple[Position, ...]:
        """Roll forward what a crash left, and take over from a backfill; where the stream stands."""
        self._begun = perf_counter()
        self.driver.recover()
        head = self._head = self._ready(self._source().bound)
        if head is not None and not self.anew and head.manifest.position_in(self._table).frontier is not None:
            driver = self.driver
            self._run(plan_hand_over(self._source(), driver.tables, head, driver.clock(), driver.shards))
        return self._positions()

    def _ready(self, bound: BoundPipeline) -> Snapshot | None:
        """The head, with tables that have every column of the code and of the source."""
        tables = self.driver.tables
        if self.anew:
            tables.widen(bound.table_schemas)
            return read_snapshot(tables)
        return ready(tables, bound, read_snapshot(tables))

    def _query(self, source: Source, positions: tuple[Position, ...], interval: timedelta | None) -> _Running:
        self._remove_checkpoints()
        return _Running(self, source, positions, interval)

    def _remove_checkpoints(self) -> None:
        """What runs that were killed left behind; the lease says that none of them is at work."""
        for left in (self.work / "checkpoints").glob(f"{self.driver.pipeline.name}-*"):
            if left.name.rpartition("-")[0] == self.driver.pipeline.name:
                shutil.rmtree(left, ignore_errors=True)

    def _take(self, checkpoint: Path, number: int) -> None:
        """One batch: an epoch over what it found, or a beat of the clock."""
        with self._at_work:
            if self._stopping.is_set():
                return
            try:
                self._epoch(ends_of_batch(checkpoint, number))
            except Exception as error:
                # Spark wraps what comes out of here; the caller shall get the error itself.
                self._failure.append(error)
                raise

    def _epoch(self, ends: Sequence[Position]) -> None:
        self._begun = perf_counter()
        # The clock before the log: what is not in the log by then is younger.
        driver, now = self.driver, self.driver.clock()
        # The source before the head: new columns of it widen the tables, and that is a version of the state.
        source, head = self._source(), self._parent()
        positions = self._positions()
        # A batch of a table that was replaced since says nothing of the one that is there.
        reached = [
            end if end.table_id == one.log.table_id else UNREAD for one, end in zip(source.inputs, ends, strict=True)
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
        """Let the clock go on at the end of what there is to read."""
        self._begun = perf_counter()
        now = self.driver.clock()
        self._beat(self._source(), self._parent(), now)

    def _beat(self, source: Source, head: Snapshot | None, now: Millis) -> None:
        """Let the clock go on, up to the oldest commit that is not read yet; nothing is due mostly."""
        if head is None or head.manifest.position_in(self._table).files:
            return
        manifest, driver = head.manifest, self.driver
        unread = [one.log.next_commit(manifest.position_in(one.table).version) for one in source.inputs]
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
        """The source as it is now; what follows from its columns is found anew only where they changed."""
        driver, opened = self.driver, self._opened
        self._opened = Source.open(driver.spark, driver.tables, driver.pipeline) if opened is None else opened.now()
        if opened is not None and self._opened.bound is not opened.bound:
            # Late and rejected rows are kept with all columns, so with the new ones from the next epoch on.
            self._head = self._ready(self._opened.bound)
        return self._opened

    def _current_head(self) -> Snapshot | None:
        """The newest snapshot, read again only where somebody committed since."""
        head = self._head
        if head is None or not is_newest(head, self.driver.tables):
            self._head = read_snapshot(self.driver.tables)
        return self._head

    def _parent(self) -> Snapshot | None:
        """The snapshot to go on from."""
        return None if self.anew else self._current_head()

    @property
    def _table(self) -> str:
        return self.driver.pipeline.source.table

    def _positions(self) -> tuple[Position, ...]:
        """Where each input stands."""
        head, inputs = self._parent(), self.driver.pipeline.inputs
        return tuple(UNREAD if head is None else head.manifest.position_in(one.source.table) for one in inputs)


class _ColumnsChanged(Exception):
    """The source has other columns than when the query began, which ended it."""


@dataclass
class _Running:
    """A structured-streaming query with a checkpoint of its own, which goes away with it."""

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
        # Version 0 can't be seeded; where nothing was read of any input, there is nothing to seed.
        if any(position.version >= 0 for position in self.positions):
            tables = [one.log.table_id for one in self.source.inputs]
            seed_checkpoint(self.checkpoint, list(zip(tables, self.positions, strict=True)), beats)
        frames = [self._reader(one, position) for one, position in zip(self.source.inputs, self.positions, strict=True)]
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

    def _reader(self, one: Source, position: Position) -> DataFrame:
        driver = self.stream.driver
        reader = driver.spark.readStream.format("delta").options(**self.stream.options)
        # Without a starting version Delta lists every file of the table first, and not in the order of their commits.
        reader = reader.option("startingVersion", min(position.version + 1, one.log.head))
        return reader.load(driver.tables.warehouse.path(one.table))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._query.isActive:
            self._query.stop()
        shutil.rmtree(self.checkpoint, ignore_errors=True)
        if isinstance(error, StreamingQueryException):
            failure = self.stream._failure
            if failure:
                raise failure[0] from error
            # What stopped Spark may be something that the log tells better.
            _check_append_only(self.source, self.positions)
            if any(one.log.now().columns != one.log.columns for one in self.source.inputs):
                raise _ColumnsChanged from error
            told = f"the stream of {self.stream.driver.pipeline.name} stopped: {in_words(error)}"
            then = "Run again: it goes on from the newest snapshot"
            raise TidegateError(". ".join(filter(None, (told, way_out(error), then)))) from error


def _beats(driver: Driver) -> DataFrame:
    """A row a second: with it, Spark makes batches while no data comes. With availableNow it would break limits."""
    rate = driver.spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    return rate.select(F.col("value").alias("beat"))


def _check_append_only(source: Source, positions: Sequence[Position]) -> None:
    for one, position in zip(source.inputs, positions, strict=True):
        one.log.commits(position.version)


def _between(source: Source, begins: Sequence[Position], ends: Sequence[Position]) -> list[ReadCommit]:
    """What lies between two positions in the only source, commit by commit."""
    (begin,), (end,) = begins, ends
    taken: list[ReadCommit] = []
    for commit in source.log.commits(begin.version, end.version + (end.files > 0)):
        first = begin.files if commit.version == begin.version + 1 else 0
        last = end.files if commit.version > end.version else len(commit.files)
        if first < last:
            taken.append(ReadCommit(commit, commit.files[first:last], last, complete=last == len(commit.files)))
    if taken and not taken[-1].complete and not source.bound.may_split_commits:
        # The rest comes with a later batch, and then the commit is read whole.
        taken.pop()
    return taken


def _interleaved(source: Source, begins: Sequence[Position], ends: Sequence[Position]) -> list[ReadCommit]:
    """The commits of two sources in their order, up to the first that the batch does not reach.

    What comes after it waits for a later batch, so that rate limits do not change the order.
    """
    logs = [one.log.commits(begin.version) for one, begin in zip(source.inputs, begins, strict=True)]
    taken = []
    for number, commit in interleaved(logs):
        end = ends[number]
        is_whole = commit.version == end.version + 1 and end.files >= len(commit.files)
        if commit.version > end.version and not is_whole:
            break
        taken.append(ReadCommit(commit, commit.files, len(commit.files), True, number))
    return taken

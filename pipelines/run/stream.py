"""The stream: it polls the source's log, and turns unread commits into epochs.

The position in the newest manifest alone decides where a run begins. After a backfill, a run begins with the handover.
While there is no data to read, clock epochs advance time.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from tidegate.pipelines.correct.correct import correct_commit, reopen_possible
from tidegate.pipelines.correct.request import Selection
from tidegate.pipelines.definition import state
from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.config.cron import has_tick
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.epoch.driver import Driver
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.plan import EpochPlan
from tidegate.pipelines.epoch.plan_commits import ReadCommit, plan_clock, plan_commits, plan_end
from tidegate.pipelines.epoch.plan_interval import plan_hand_over
from tidegate.pipelines.errors import LeaseHeld, TidegateError
from tidegate.pipelines.failures import reported_as
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.compatibility import ready
from tidegate.pipelines.ledger.snapshots.foreign_changes import check_unchanged
from tidegate.pipelines.ledger.snapshots.head import Snapshot, following, is_newest, read_snapshot
from tidegate.pipelines.ledger.snapshots.retention import Retention, is_worthwhile, vacuum
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, PipelineTables
from tidegate.pipelines.ledger.tables.table_log import LogMemory
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.rendering import spelled
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.run.next_commits import UNREAD, Ends, next_commits
from tidegate.pipelines.storage.credentials import masked
from tidegate.windowing.time import Millis, positive_millis

ENDS_BY_ITSELF = "stream --available-now"
"""Command recorded in the lease by a stream that reads the available commits and ends."""

OnEpoch = Callable[[Manifest], None]

Pause = Callable[[float], object]
"""Function that waits for a number of seconds, or less if there is a reason to poll earlier."""

_SECOND = 1.0
"""Longest time in seconds between two calls of `should_stop`, and shortest time between two clock epochs."""


@dataclass
class Stream:
    """One run of a pipeline as a stream. Epochs run one after the other, in the thread of the caller.

    Args:
        driver: the driver, which holds the lease.
        on_epoch: called with the manifest of each epoch.
        limits: limits on what one epoch reads.
        maintenance: what is done for the tables between epochs; None leaves it to the commands.
        from_scratch: True to start at the beginning of the source, on a new timeline; published rows are kept until the
            new timeline's first epoch.
        reopen_schedule: cron expression of the times at which a continuous stream reopens its late rows; None leaves
            them to the command.
        timezone: time zone of that expression.
        pause: waits between two polls of the source.
        timer: returns seconds from a monotonic clock, for measuring the waits.
    """

    driver: Driver
    on_epoch: OnEpoch
    limits: EpochLimits = field(default_factory=EpochLimits)
    maintenance: Maintenance | None = None
    from_scratch: bool = False
    reopen_schedule: str | None = None
    timezone: str = "UTC"
    pause: Pause = field(default_factory=lambda: threading.Event().wait)
    timer: Callable[[], float] = time.monotonic
    _is_stopped: bool = field(default=False, init=False)
    _head: Snapshot | None = field(default=None, init=False)
    _opened: OpenInput | None = field(default=None, init=False)
    _reopened_until: Millis | None = field(default=None, init=False)
    _last_beat: float = field(default=-math.inf, init=False)

    def run_available(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Run epochs over all data currently in the source, advance the clock, and return.

        Args:
            should_stop: called before each epoch; if it returns True, the rest is left to the next run.

        Raises:
            Refused: the source is not the table of the position, or an unread version of it can't be read.
        """
        self.begin()
        self._drain(should_stop)

    def end_of_input(self) -> None:
        """End event time after the data that has been read, so that open windows fire; later elements are late.

        Raises:
            Refused: a commit was read partially.
        """
        self.driver.times.begin()
        driver, head = self.driver, self._parent()
        if head is not None and not self._is_stopped:
            self._run(plan_end(driver.basis(self._source(), head)))

    def run_continuously(self, interval: timedelta, should_stop: Callable[[], bool]) -> None:
        """Run epochs as data arrives, and clock epochs in between, until asked to stop.

        Args:
            interval: time between two polls of the source. Data that a poll finds is read before the next poll, in
                several epochs if the limits require it.
            should_stop: called every second and before each epoch.

        Raises:
            IllegalArgument: the interval is shorter than a millisecond.
            Refused: the source is not the table of the position, or an unread version of it can't be read.
        """
        seconds = positive_millis(interval, "interval") / 1000
        self.begin()
        while not self._is_asked(should_stop):
            looked = self.timer()
            self.poll(should_stop)
            self._wait(looked + seconds, should_stop)

    def poll(self, should_stop: Callable[[], bool]) -> bool:
        """Run epochs over the data currently in the source. Return False if the stream was asked to stop.

        `begin` must be called first. A process that runs several streams calls this method for each of them in turn.
        """
        self._drain(should_stop, self._reopen_if_due)
        self.driver.engine.check()
        return not self._is_asked(should_stop)

    def _drain(self, should_stop: Callable[[], bool], before_each: Callable[[], None] = lambda: None) -> None:
        """Run epochs over the data currently in the source, then advance the clock. End early if asked to stop."""
        ends: Ends | None = None
        while not self._is_asked(should_stop):
            before_each()
            self.driver.metrics.polled()
            self.driver.times.begin()
            # The clock is read before the log, so a commit that is not yet in the log has a later time than the clock.
            now, source = self.driver.clock(), self._source()
            if ends is None:
                ends = [input_.position(input_.log.head) for input_ in source.inputs]
            if not self._read(source, ends, now, should_stop):
                self._beat(source, now)
                return

    def _reopen_if_due(self) -> None:
        """Reopen all late rows if the schedule has ticked since the previous call."""
        driver, now = self.driver, self.driver.clock()
        since, self._reopened_until = self._reopened_until, now
        if self.reopen_schedule is None or since is None or self._parent() is None:
            return
        if not has_tick(self.reopen_schedule, since, now, self.timezone):
            return
        try:
            done = reopen_possible(driver, Selection())
        except LeaseHeld:
            raise
        except TidegateError as error:
            # A stream that hung while another driver ran must end.
            driver.lease.check()
            _log.warning("late rows can't be reopened on schedule: %s", masked(str(error)))
            return
        for each in done.left:
            _log.warning("late rows that can't be reopened (%d): %s", each.rows, masked(each.reason))
        for manifest in done.manifests:
            self._head = None
            self._after(manifest)

    def _is_asked(self, should_stop: Callable[[], bool]) -> bool:
        self._is_stopped = self._is_stopped or should_stop()
        return self._is_stopped

    def _wait(self, until: float, should_stop: Callable[[], bool]) -> None:
        while (left := until - self.timer()) > 0 and not self._is_asked(should_stop):
            self.pause(min(left, _SECOND))
            self.driver.engine.check()

    def begin(self) -> None:
        """Recover after a crash, take over from a backfill, and check the unread versions."""
        head, source = self.driver.recover(), self._source()
        head = self._head = self._ready(source.bound, head)
        if head is not None and not self.from_scratch and head.manifest.position_in(self._table).frontier is not None:
            driver = self.driver
            self._run(plan_hand_over(driver.basis(source, head)))
            source = self._source()
        # Unreadable versions are refused before anything is read, not after earlier commits.
        for input_, position in zip(source.inputs, self._positions(source), strict=True):
            for _ in input_.log.unread(position.version):
                pass

    def _ready(self, bound: BoundPipeline, head: Snapshot | None) -> Snapshot | None:
        """Add missing columns of the code and the source to the tables, and return the head."""
        tables = self.driver.tables
        if self.from_scratch:
            return read_snapshot(tables) if tables.widen(bound.table_schemas) else head
        return ready(tables, bound, head)

    def _read(self, source: OpenInput, ends: Ends, now: Millis, should_stop: Callable[[], bool]) -> bool:
        """Run an epoch over the next commits unless asked to stop, and return True if there were any commits."""
        commits = next_commits(source, self._positions(source), self.limits, ends)
        if not commits:
            return False
        # Spark takes a while to start; a request to stop may come in the meantime.
        self.driver.engine.start()
        if self._is_asked(should_stop):
            return True
        driver, head = self.driver, self._parent()
        if commits[0].is_change and head is not None:
            manifest = correct_commit(driver, source, head, commits[0].commit)
            self._head = None
            driver.metrics.visible([commits[0].commit.time])
            self._after(manifest)
            return True
        plan = plan_commits(driver.basis(source, head, now), commits)
        replaced = self._current_head() if self.from_scratch else None
        self._run(plan if replaced is None else plan.replacing(replaced), commits)
        return True

    def _beat(self, source: OpenInput, now: Millis) -> None:
        """Advance the clock, at most to the oldest unread commit. Usually nothing is due, so no epoch runs."""
        driver, head, timer = self.driver, self._parent(), self.timer()
        if head is None or head.manifest.position_in(self._table).files or timer - self._last_beat < _SECOND:
            return
        self._last_beat, manifest = timer, head.manifest
        unread = [input_.next_commit(manifest.position_in(input_.table).version) for input_ in source.inputs]
        until = min([now, *(commit.time for commit in unread if commit is not None)])
        self._run(plan_clock(driver.basis(source, head, until)))

    def _run(self, plan: EpochPlan | None, commits: Sequence[ReadCommit] = ()) -> None:
        """Run a planned epoch that completes some of these commits."""
        if plan is not None:
            driver = self.driver
            manifest = driver.run(plan)
            # The commit does not retry, so the entry after the head of the plan is this epoch's.
            self._head = None if plan.head is None else following(plan.head, manifest)
            if self._head is not None:
                driver.measure(self._head)
            self.from_scratch = False
            driver.metrics.visible([read.commit.time for read in commits if read.complete and read.files])
            self._after(manifest)

    def _after(self, manifest: Manifest) -> None:
        """Report an epoch, and run the maintenance that is due."""
        self.on_epoch(manifest)
        driver, due = self.driver, self.maintenance
        if due is not None and due.after(driver.tables, manifest.epoch, driver.clock(), driver.lease.check):
            # Maintenance rewrites checkpoints that open handles read.
            driver.reopen()
            self._head = None

    def _source(self) -> OpenInput:
        """Return the source as it is now. The pipeline is bound again only if the source's columns changed."""
        driver, opened = self.driver, self._opened
        self._opened = OpenInput.open(driver.engine, driver.tables, driver.pipeline) if opened is None else opened.now()
        if opened is not None and self._opened.bound is not opened.bound:
            # Late and rejected rows are stored with all columns, so their tables need any new columns before the next
            # epoch.
            self._head = self._ready(self._opened.bound, read_snapshot(driver.tables))
        return self._opened

    def _current_head(self) -> Snapshot | None:
        """Return the newest snapshot. It is read again only if somebody has committed since."""
        head = self._head
        if head is None or not is_newest(head, self.driver.tables):
            if self.driver.tables.exist:
                check_unchanged(self.driver.tables, state.NAME)
            self._head = read_snapshot(self.driver.tables)
            if self._head is not None:
                self.driver.measure(self._head)
        return self._head

    def _parent(self) -> Snapshot | None:
        """Return the snapshot to continue from, or None to start from scratch."""
        return None if self.from_scratch else self._current_head()

    @property
    def _table(self) -> str:
        return self.driver.pipeline.source.table

    def _positions(self, source: OpenInput) -> tuple[Position, ...]:
        """Return the position in each input, after checking that it belongs to the current table."""
        head = self._parent()
        if head is None:
            return (UNREAD,) * len(source.inputs)
        positions = tuple(head.manifest.position_in(input_.table) for input_ in source.inputs)
        for input_, position in zip(source.inputs, positions, strict=True):
            input_.log.check(position)
        return positions


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Maintenance:
    """Maintenance of a stream's tables between epochs: how often it runs, and which snapshots it keeps.

    Args:
        retention: the snapshots to keep.
        epochs: the tables are maintained after each epoch whose number is a multiple of this.
        memory: cache of log entries.
    """

    retention: Retention
    epochs: int = 20
    memory: LogMemory = field(default_factory=LogMemory, compare=False, repr=False)

    def after(
        self, tables: PipelineTables, epoch: int, now: Millis, check_lease: Callable[[], None] | None = None
    ) -> bool:
        """Maintain the tables if that is due after an epoch, and return True if it was.

        The caller holds the lease and has published the epoch.

        Args:
            tables: the pipeline's tables.
            epoch: number of the newest epoch.
            now: the current time, int64 epoch milliseconds.
            check_lease: raises LeaseHeld if the lease went to another driver.

        Raises:
            LeaseHeld: the lease went to another driver, so this one has to stop.
        """
        if epoch % self.epochs:
            return False
        try:
            with reported_as(f"maintenance of the tables of {tables.pipeline} failed", "All published rows are intact"):
                for table in tables.with_windows(PUBLISHED):
                    compact(tables, table, self.epochs)
                if is_worthwhile(tables, self.retention):
                    vacuum(tables, self.retention, now, check_lease=check_lease, memory=self.memory)
        except LeaseHeld:
            raise
        except TidegateError as error:
            if check_lease is not None:
                # A stream that hung while another driver ran must end.
                check_lease()
            # The stream continues if another process uses the tables or the disk is full: no epoch needs this.
            _log.warning(
                "after epoch %d: %s. The stream tries again after %d more epochs; until then files and snapshots "
                "accumulate. %s does the same work immediately",
                epoch,
                masked(str(error)).rstrip("."),
                self.epochs,
                " and ".join(spelled(Remedy(act, tables.pipeline)) for act in (Act.OPTIMIZE, Act.VACUUM)),
            )
        return True

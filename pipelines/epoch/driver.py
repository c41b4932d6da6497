"""The driver of a pipeline: it holds the lease, recovers after a crash, and runs epochs.

An epoch is four steps: plan, operate, commit, publish. The driver calls `tell` with the name of each completed step,
for progress on the screen, or for tests that stop between any two. Metrics count an epoch when table epochs has it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING

from deltalake.exceptions import DeltaError

from tidegate.pipelines.definition import epochs, windows
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.epoch.observer import Observer
from tidegate.pipelines.errors import Refused, Stopped, StoreFailed
from tidegate.pipelines.failures import reported_as
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.head import Snapshot, read_snapshot
from tidegate.pipelines.ledger.snapshots.recovery import recover
from tidegate.pipelines.ledger.step_log import log_step
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED, Handles, PipelineTables
from tidegate.pipelines.storage.warehouse import active_files
from tidegate.windowing.time import Millis

if TYPE_CHECKING:
    from tidegate.pipelines.engine.base import Engine
    from tidegate.pipelines.epoch.open_input import OpenInput
    from tidegate.pipelines.epoch.plan import Basis, EpochPlan

Tell = Callable[[str], None]


_STEPS = {"planned": "plan", "operated": "operate", "committed": "commit"}
"""Steps by the message with which the driver reports their completion. Any other message belongs to `publish`."""


@dataclass
class StepTimes:
    """The clock of one driver's epochs.

    Args:
        clock: returns seconds from a monotonic clock.
    """

    clock: Callable[[], float] = perf_counter
    newest: dict[str, float] = field(default_factory=dict, init=False)
    """Seconds by step of the newest epoch that was published."""
    _seconds: dict[str, float] = field(default_factory=dict, init=False)
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        self._since = self.clock()

    def begin(self) -> None:
        """Begin the plan of an epoch. Time before this call belongs to no epoch."""
        self._seconds, self._since = {}, self.clock()

    def note(self, done: str) -> None:
        """Record that a step, or a part of it, is completed."""
        now, step = self.clock(), _STEPS.get(done, "publish")
        self._seconds[step] = self._seconds.get(step, 0.0) + now - self._since
        self._since = now

    def end(self) -> dict[str, float]:
        """End the epoch, and return its seconds by step. The next epoch begins."""
        self.newest = self._seconds
        self.begin()
        return self.newest


@dataclass
class Driver:
    """One process that runs one pipeline.

    Args:
        engine: the engine of the run.
        tables: the pipeline's tables.
        pipeline: the pipeline.
        lease: the lease, held by this process.
        clock: returns the current time, int64 epoch milliseconds.
        tell: called with the name of each completed step.
        metrics: notified of each epoch that was published.
        times: durations of the steps of epochs.
        windows: the project's settings for table `windows`; None neither changes nor creates the table.
    """

    engine: Engine
    tables: PipelineTables
    pipeline: Pipeline
    lease: Lease
    clock: Callable[[], Millis] = system_clock
    tell: Tell = lambda step: None
    metrics: Observer = field(default_factory=Observer)
    times: StepTimes = field(default_factory=StepTimes)
    windows: WindowsTable | None = None
    _handles: Handles = field(default_factory=Handles, init=False, repr=False)
    _made: WindowsTable | None = field(default=None, init=False, repr=False)
    _published_epoch: int = field(default=0, init=False, repr=False)

    def shards(self) -> int:
        """Return the number of shards of an epoch: the pipeline's parallelism, or one per core by default."""
        wanted = self.pipeline.parallelism or self.engine.cores
        return min(wanted, self.pipeline.max_parallelism)

    def basis(self, source: OpenInput, head: Snapshot | None, now: Millis | None = None) -> Basis:
        """Return what a plan starts from: a source, a snapshot, and the time (None for the current time)."""
        from tidegate.pipelines.epoch.plan import Basis

        self.complete(head)
        return Basis(source, self.tables, head, self.clock() if now is None else now, self.shards)

    def complete(self, head: Snapshot | None) -> None:
        """Publish a snapshot that another driver committed after this one recovered, before an epoch starts from it.

        That driver may have hung or died before publishing, and after the next epoch nobody would publish it.
        """
        if head is not None and head.manifest.epoch > self._published_epoch:
            self.recover()

    def recover(self) -> Snapshot | None:
        """Publish the files that the newest snapshot lists but the tables lack, and return that snapshot, if any.

        Recovery only rolls forward, so it can be repeated at any time.

        Raises:
            Refused: the tables are not as tidegate left them; see `snapshots.recovery`.
        """
        head = recover(self.tables, self._publish_again)
        if head is not None:
            self._published_epoch = head.manifest.epoch
            self.metrics.began(head.manifest)
            self.measure(head)
        return head

    def measure(self, head: Snapshot | None = None) -> None:
        """Pass the files of table windows and of the newest snapshot to metrics; the snapshot is read if not given."""
        if not self.metrics.is_on:
            return
        # This read only serves metrics, so a failing store must not end the run.
        with suppress(OSError, DeltaError, Refused, StoreFailed):
            if (snapshot := head or read_snapshot(self.tables)) is not None:
                self.metrics.state((*snapshot.files, *snapshot.manifest_files))
            exists = self.tables.warehouse.exists(self.tables.path(windows.NAME))
            self.metrics.windows(active_files(self.tables.newest(windows.NAME)) if exists else ())

    def step(self, done: str) -> None:
        """Record that a step of an epoch is completed, and report it."""
        self.times.note(done)
        self.tell(done)

    def heed_stop(self) -> None:
        """End a backfill between two epochs if `tidegate driver stop` requested it.

        Raises:
            Stopped: `tidegate driver stop` requested it.
        """
        if self.lease.stop_requested:
            raise Stopped(
                f"{self.pipeline.name} was asked to stop: its epochs are published, and the same command continues "
                "after them"
            )

    def run(self, plan: EpochPlan) -> Manifest:
        """Run one planned epoch to its end, and return its manifest."""
        from tidegate.pipelines.epoch.commit import commit
        from tidegate.pipelines.epoch.operate import operate

        self.step("planned")
        log_step("planned", plan.epoch, plan.kind)
        began = perf_counter()
        epoch = f"epoch {plan.epoch} of {self.pipeline.name}"
        with reported_as(
            f"{epoch} can't be computed", "Nothing of the epoch was committed; fix the cause and run again"
        ):
            outcomes = operate(self.engine, plan)
        log_step("operated", plan.epoch)
        self.step("operated")
        self.lease.check()
        with reported_as(
            f"{epoch} can't be committed", "Fix the cause and run again: the run continues from the newest snapshot"
        ):
            phases = {"operate": round(perf_counter() - began, 3)}
            manifest = commit(plan, outcomes, phases, self.engine.name)
        self.step("committed")
        self.publish(manifest)
        return manifest

    def reopen(self) -> None:
        """Open the published tables again before the next epoch."""
        self._handles = Handles()

    def publish(self, manifest: Manifest) -> None:
        """Publish the files listed in a manifest that this process committed."""
        self._publish(manifest, is_ours=True)

    def _publish_again(self, manifest: Manifest) -> None:
        """Publish what an earlier run committed; tables that already have the epoch are left unchanged."""
        self._publish(manifest, is_ours=False)
        self.times.begin()

    def _publish(self, manifest: Manifest, is_ours: bool) -> None:
        """Publish an epoch to each table, and count it in metrics unless the run that committed it already did."""
        from tidegate.pipelines.ledger.snapshots.publish import publish_table

        for table in PUBLISHED:
            if table == epochs.NAME:
                # Views consider an epoch published when table epochs has it.
                self._publish_windows(manifest)
            self.lease.check()
            with reported_as(
                f"epoch {manifest.epoch} of {self.pipeline.name} can't be published to {self.tables.path(table)}",
                "The snapshot is intact; fix the cause and run again: publishing continues where it stopped",
            ):
                lacked_it = publish_table(self.tables, manifest, table, self._handles)
            self.times.note(f"published {table}")
            # Every epoch is published to this table, and to this table last.
            if table == epochs.NAME and (is_ours or lacked_it):
                self.metrics.published(manifest, self.times.end() if is_ours else {})
            self.tell(f"published {table}")
        self._published_epoch = max(self._published_epoch, manifest.epoch)

    def _publish_windows(self, manifest: Manifest) -> None:
        from tidegate.pipelines.definition.binding import has_windows
        from tidegate.pipelines.ledger.snapshots.publish_windows import make_windows, publish_windows

        self.lease.check()
        with reported_as(
            f"epoch {manifest.epoch} of {self.pipeline.name} can't be published to {self.tables.path(windows.NAME)}",
            "The snapshot is intact; fix the cause and run again: publishing continues where it stopped",
        ):
            if (wanted := self.windows) is not None and wanted is not self._made:
                can = has_windows(self.pipeline.compute)
                can_have = wanted if can else wanted.model_copy(update={"enabled": False})
                make_windows(self.tables, tuple(manifest.schemas.key), can_have)
                self._made = wanted
            published = publish_windows(self.tables, manifest, handles=self._handles)
        if published:
            self.times.note(f"published {windows.NAME}")
            self.tell(f"published {windows.NAME}")

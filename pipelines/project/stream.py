"""Streams: the source's commits, in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, ClassVar

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.counters import REOPENED
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.engine.base import Engine
from tidegate.pipelines.engine.choose import require_engine
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.ledger.host import Heartbeat, system_clock
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.head import Snapshot, read_snapshot
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Retention
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.observe.metrics.open import measured
from tidegate.pipelines.observe.report.answer import Answer
from tidegate.pipelines.project.backfill import check_first_run, corrected, put_out, read
from tidegate.pipelines.project.progress import Teller
from tidegate.pipelines.project.runs import lag
from tidegate.pipelines.run.driver import Driver, Patience, drive
from tidegate.pipelines.run.epoch_log import EpochLog
from tidegate.pipelines.run.next_commits import EpochLimits
from tidegate.pipelines.run.stopping import StopRequest
from tidegate.pipelines.run.stream import ENDS_BY_ITSELF, Stream, Upkeep
from tidegate.pipelines.run.work_folder import HourlyCleaning
from tidegate.pipelines.sources.watched import note_sources
from tidegate.windowing.time import show_millis

_LOOK_AT_LEASE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Streamed(Answer):
    """The outcome of a stream.

    Args:
        pipeline: name of the pipeline.
        epochs: the lines of its epochs, as in the log of epochs; empty for a stream with an interval.
    """

    pipeline: str
    epochs: tuple[dict[str, Any], ...]

    says: ClassVar[str] = "{pipeline}: ended after a whole epoch"


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a stream runs.

    Args:
        every: time between two polls of the source; None to read what is available and end.
        end_of_input: True to end event time after that, so that all windows fire.
        target: the snapshot to begin from; `none` begins at the beginning of the source.
        from_timeline: restore `target` only if the pipeline is on this timeline; None always restores.
        parallelism: number of shards; None for the pipeline's own.
        limits: limits of an epoch.
        patience: seconds to wait for a stream that ends on its own.
    """

    every: timedelta | None = None
    end_of_input: bool = False
    target: str = "latest"
    from_timeline: int | None = None
    parallelism: int | None = None
    limits: EpochLimits = field(default_factory=EpochLimits)
    patience: float = 0.0


def stream(config: Config, pipeline: str, options: StreamOptions, stop: StopRequest, teller: Teller) -> Streamed:
    """Run a pipeline as a stream until it has read what is available, or until somebody asks it to stop."""
    with entered(config, pipeline, options, stop, teller) as run:
        if not stop.is_made():
            run.to_its_end()
    return Streamed(pipeline, tuple(run.epochs))


@contextmanager
def entered(
    config: Config,
    pipeline: str,
    options: StreamOptions,
    stop: StopRequest,
    teller: Teller,
    engine: Engine | None = None,
) -> Iterator[StreamRun]:
    """Enter a stream that holds the lease; several streams share one engine."""
    value = load_pipeline(config, pipeline)
    require_engine(config, "a stream")
    note_sources(config, value)
    check_first_run(config, value, teller)
    if options.parallelism is not None:
        value = replace(value, parallelism=options.parallelism)
    command = "stream" if options.every else ENDS_BY_ITSELF
    wait = Patience(options.patience, ENDS_BY_ITSELF, teller.say, stop.is_made, time.monotonic, time.sleep)
    with drive(config, value, command, engine, wait=wait, observe=measured) as driver:
        run = StreamRun(config, driver, options, stop, teller)
        if options.every is not None:
            # The first new commit should not have to wait for it.
            driver.engine.start()
        yield run


class StreamRun:
    """A running stream.

    Args:
        config: the project.
        driver: the driver, which holds the lease.
        options: how it runs.
        stop: the request to stop.
        teller: reports epochs and steps.
    """

    def __init__(
        self, config: Config, driver: Driver, options: StreamOptions, stop: StopRequest, teller: Teller
    ) -> None:
        self.epochs: list[dict[str, Any]] = []
        self._polled: tuple[Stream, Callable[[], bool]] | None = None
        self._driver, self._options, self._stop, self._teller = driver, options, stop, teller
        pipeline = driver.pipeline.name
        entry = config.entry(pipeline)
        self._upkeep = Upkeep(Retention.of(entry), entry.upkeep_epochs) if entry.upkeep_epochs else None
        self._reopen_schedule, self._timezone = entry.reopen_schedule, entry.timezone
        self._log = EpochLog(config.work_folder / "logs" / f"{pipeline}.epochs.jsonl")
        self._cleaning = HourlyCleaning(config)
        self._beat = Heartbeat.of(config.work_folder, pipeline)
        driver.tell = self._on_step
        self._beat.begin()

    def to_its_end(self) -> None:
        """Restore if requested, then run epochs."""
        options = self._options
        target = self._target()
        if target not in ("latest", "none"):
            _restore(self._driver, target)
        run, should_stop = self._stream(anew=target == "none")
        if options.every is not None:
            run.run_continuously(options.every, should_stop)
            return
        run.run_available(should_stop)
        if options.end_of_input:
            run.end_of_input()

    def poll(self) -> bool:
        """Run epochs over the data currently in the source; return False if somebody asked this stream to stop."""
        if self._polled is None:
            self._polled = self._stream()
            self._polled[0].begin()
        run, should_stop = self._polled
        return run.poll(should_stop)

    def _stream(self, anew: bool = False) -> tuple[Stream, Callable[[], bool]]:
        run = Stream(
            self._driver,
            self._on_epoch,
            self._options.limits,
            self._upkeep,
            anew=anew,
            reopen_schedule=self._reopen_schedule,
            timezone=self._timezone,
            pause=self._stop.wait,
        )
        return run, _asked_to_stop(self._stop, self._driver.lease, self._beat)

    def _target(self) -> str:
        """Return the snapshot to begin from.

        The newest one is read only if a timeline was named: a restore must work even if it can't be read.
        """
        timeline = self._options.from_timeline
        if timeline is not None and has_left(read_snapshot(self._driver.tables), timeline):
            name = self._driver.pipeline.name
            self._teller.say(f"{name} has left timeline {timeline}: it continues from its newest snapshot")
            return "latest"
        return self._options.target

    def _on_epoch(self, manifest: Manifest) -> None:
        driver = self._driver
        line = self._log.write(manifest, driver.times.newest)
        self._teller.say(
            f"epoch {manifest.epoch}: {_done(manifest, driver.pipeline)}, {line['open_windows']} open, "
            f"watermark {show_millis(manifest.watermark)}, lag {lag(manifest.watermark_lag)}, "
            f"took {line['seconds']:.1f} s, {line['rows_per_second'] or 0} rows/s",
            line,
        )
        if self._options.every is None:
            self.epochs.append(line)
        else:
            # A long-running stream can't leave this to the start of its next run.
            self._cleaning.clean_if_due(system_clock())

    def _on_step(self, step: str) -> None:
        self._beat.give()
        self._teller.step(step)


def _done(manifest: Manifest, pipeline: Pipeline) -> str:
    """Describe what an epoch did."""
    if manifest.kind == "change":
        return corrected(manifest)
    if manifest.kind == "reopen":
        return f"{manifest.counters[REOPENED]} late rows reopened, {put_out(pipeline, manifest.counters)}"
    return read(pipeline, manifest.counters)


def has_left(head: Snapshot | None, timeline: int | None) -> bool:
    """Return True if the pipeline is no longer on a timeline (0: before its first), so the restore was already done.

    For None it returns False, because the restore is always done.
    """
    return timeline is not None and timeline != (0 if head is None else head.manifest.timeline)


def _restore(driver: Driver, target: str) -> None:
    """Go back to a snapshot, after checking that this code and the current source can continue from there."""
    snapshot = find_snapshot(driver.tables, target)
    for source in OpenInput.open(driver.engine, driver.tables, driver.pipeline).inputs:
        source.position_of(snapshot.manifest)
    restore(driver.tables, snapshot, driver.clock())


def _asked_to_stop(stop: StopRequest, lease: Lease, beat: Heartbeat) -> Callable[[], bool]:
    """Return the function that reports a request to stop: by a signal, or by `tidegate stop` from any host.

    `tidegate stop` writes its request into the lease, which is read every two seconds. The stream's loop calls the
    function in each turn, so it also writes the heartbeat.
    """
    looked = [time.monotonic()]

    def should_stop() -> bool:
        beat.give()
        if stop.is_made():
            return True
        if time.monotonic() - looked[0] < _LOOK_AT_LEASE_SECONDS:
            return False
        looked[0] = time.monotonic()
        return lease.stop_requested

    return should_stop

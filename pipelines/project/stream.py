"""Streams, which read the source's commits in order. Several in one process share an engine, but not a lease."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, ClassVar, Self

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.counters import REOPENED
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.names import listed
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.engine.base import Engine
from tidegate.pipelines.engine.choose import engine_of, require_engine
from tidegate.pipelines.epoch.driver import Driver
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.errors import LEASE_HELD, OTHER, TidegateError, UsageError
from tidegate.pipelines.ledger.host import Heartbeat, system_clock
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.head import Snapshot, read_snapshot
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Retention
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.observe.metrics.open import measured
from tidegate.pipelines.observe.report.answer import Facts
from tidegate.pipelines.observe.report.columns import (
    COUNT,
    DURATION,
    ISO_TIME,
    NAMES,
    NUMBER,
    OBJECT,
    SECONDS,
    TEXT,
    Column,
    Columns,
    Table,
)
from tidegate.pipelines.project.backfill import check_first_run, corrected, emitted_text, read
from tidegate.pipelines.project.progress import Teller
from tidegate.pipelines.run.drive import Patience, drive
from tidegate.pipelines.run.epoch_log import EpochLog
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.run.stopping import StopRequest
from tidegate.pipelines.run.stream import ENDS_BY_ITSELF, Maintenance, Stream
from tidegate.pipelines.run.work_folder import HourlyCleaning
from tidegate.pipelines.sources.watched import note_sources
from tidegate.pipelines.storage.credentials import masked
from tidegate.windowing.time import show_duration, show_watermark

_LOOK_AT_LEASE_SECONDS = 2.0
_SECOND = 1.0
"""Longest time between two checks for a stop request."""
_AGAIN_SECONDS = 60.0
"""Time after which a failed stream is retried while others run, if a retry may succeed."""
_MAY_SUCCEED = (OTHER, LEASE_HELD)


@dataclass(frozen=True, slots=True)
class Streamed(Facts):
    """The outcome of a stream, or of several in one process.

    Args:
        pipelines: names of the pipelines.
        epochs: the lines of their epochs, as in the logs of epochs, each with the name of its pipeline; empty for a
            stream with an interval.
        failed: the error of each failed stream, by pipeline.
        without_rows: pipelines that have never run, because their sources have no rows yet.
    """

    pipelines: tuple[str, ...]
    epochs: tuple[dict[str, Any], ...]
    failed: Mapping[str, TidegateError] = field(default_factory=dict)
    without_rows: tuple[str, ...] = ()

    facts: ClassVar[Columns] = (
        Column("pipelines", NAMES),
        Column("failed", OBJECT, value=lambda answer: {name: _failure(each) for name, each in answer.failed.items()}),
    )
    holds: ClassVar[Mapping[str, Columns]] = {
        "epochs": (
            Column("pipeline", TEXT),
            Column("epoch", NUMBER),
            Column("timeline", NUMBER),
            Column("kind", TEXT),
            *(Column(name, COUNT) for name in ("events", "on_time", "late", "filtered", "fired", "retracted")),
            *(Column(name, COUNT) for name in ("rows_deleted", "rows_out", "open_windows")),
            Column("watermark", ISO_TIME),
            Column("watermark_lag_ms", DURATION),
            Column("clock", ISO_TIME),
            Column("source_versions", OBJECT),
            Column("seconds", SECONDS),
            Column("rows_per_second", COUNT),
            Column("phases", OBJECT),
            Column("run_id", TEXT),
            Column("at", ISO_TIME),
        )
    }

    def tables(self) -> Iterator[Table]:
        # The lines were shown when the epochs were published.
        yield Table("epochs", self.holds["epochs"], self.epochs, is_shown=False)

    def lines(self) -> Iterator[str]:
        for name in self.pipelines:
            if name not in self.failed:
                is_empty = name in self.without_rows
                end = "its source has no rows yet: run it again later" if is_empty else "ended after a whole epoch"
                yield f"{name}: {end}"
        for name, error in self.failed.items():
            yield f"{name}: failed: {error}"

    def require(self) -> Self:
        """Return this outcome, provided that all streams succeeded.

        Raises:
            TidegateError: some streams failed. The exit code is theirs if they agree, otherwise 1.
        """
        if not self.failed:
            return self
        codes = {error.exit_code: type(error) for error in self.failed.values()}
        kind = next(iter(codes.values())) if len(codes) == 1 else TidegateError
        raise kind("; ".join(f"{name}: {error}" for name, error in self.failed.items()))


def _failure(error: TidegateError) -> dict[str, str | int]:
    return {"message": str(error), "exit_code": error.exit_code}


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """How a stream runs.

    Args:
        every: time between two polls of the source; None to read what is available and end.
        end_of_input: True to end event time after the available data, so that all windows fire.
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


def stream(
    config: Config,
    pipelines: Sequence[str],
    options: StreamOptions,
    stop: StopRequest,
    teller_of: Callable[[str], Teller],
    timer: Callable[[], float] = time.monotonic,
) -> Streamed:
    """Run a pipeline as a stream, or several in this process, with one engine and a lease for each.

    The epochs of several run one after the other, and a failure does not stop the others. With an interval, a stream is
    retried after a minute if a retry may succeed.

    Raises:
        UsageError: a name is unknown or given twice, or an option works only with a single pipeline.
        TidegateError: the only stream failed.
    """
    if len(pipelines) == 1:
        with entered(config, pipelines[0], options, stop, teller_of(pipelines[0])) as run:
            if not stop.is_made():
                run.to_its_end()
            return run.outcome
    if options.target != "latest" or options.from_timeline is not None or options.parallelism is not None:
        raise UsageError("--restore and --parallelism work only with a single pipeline: restart that one alone")
    if doubled := sorted(name for name, count in Counter(pipelines).items() if count > 1):
        raise UsageError(f"{listed(doubled)} is named twice: name each pipeline once")
    for name in pipelines:
        config.entry(name)
    require_engine(config, "a stream")
    # A process that doesn't need the engine doesn't start it.
    engine = engine_of(config, f"streams {', '.join(pipelines)}")
    try:
        return _Together(config, options, stop, teller_of, engine, timer).run(pipelines)
    finally:
        engine.close()


@contextmanager
def entered(
    config: Config,
    pipeline: str,
    options: StreamOptions,
    stop: StopRequest,
    teller: Teller,
    engine: Engine | None = None,
) -> Iterator[StreamRun]:
    """Enter a stream that holds the lease. Several streams share one engine."""
    value = load_pipeline(config, pipeline)
    require_engine(config, "a stream")
    note_sources(config, value)
    check_first_run(config, value, teller)
    if options.parallelism is not None:
        value = replace(value, parallelism=options.parallelism)
    command = "stream" if options.every else ENDS_BY_ITSELF
    wait = Patience(options.patience, ENDS_BY_ITSELF, teller.say, stop.is_made, time.monotonic, time.sleep)
    with drive(config, value, command, engine, wait=wait, observe=measured) as driver:
        # One of several streams names its epochs, because all share a screen.
        run = StreamRun(config, driver, options, stop, teller, "" if engine is None else f"{pipeline}: ")
        if options.every is not None:
            # Otherwise the first new commit would have to wait for it.
            driver.engine.start()
        yield run


class StreamRun:
    """A running stream; its driver holds the lease."""

    def __init__(
        self, config: Config, driver: Driver, options: StreamOptions, stop: StopRequest, teller: Teller, prefix: str
    ) -> None:
        self.epochs: list[dict[str, Any]] = []
        self._polled: tuple[Stream, Callable[[], bool]] | None = None
        self._driver, self._options, self._stop, self._teller = driver, options, stop, teller
        self._prefix = prefix
        pipeline = driver.pipeline.name
        entry = config.entry(pipeline)
        self._maintenance = Maintenance(Retention.of(entry))
        self._reopen_schedule, self._timezone = entry.reopen_schedule, entry.timezone
        self._log = EpochLog(config.work_folder / "logs" / f"{pipeline}.epochs.jsonl")
        self._cleaning = HourlyCleaning(config)
        self._beat = Heartbeat(config.work_folder, pipeline)
        driver.tell = self._on_step
        self._beat.begin()

    def to_its_end(self) -> None:
        """Restore if requested, then run epochs."""
        options = self._options
        target = self._target()
        if target not in ("latest", "none"):
            driver, snapshot = self._driver, find_snapshot(self._driver.tables, target)
            # Each source checks that this code can continue from there.
            for source in OpenInput.open(driver.engine, driver.tables, driver.pipeline).inputs:
                source.position_of(snapshot.manifest)
            restore(driver.tables, snapshot, driver.clock())
        run, should_stop = self._stream(from_scratch=target == "none")
        if options.every is not None:
            run.run_continuously(options.every, should_stop)
            return
        run.run_available(should_stop)
        if options.end_of_input:
            run.end_of_input()

    def poll(self) -> bool:
        """Run epochs over the data currently in the source. Return False if somebody asked this stream to stop."""
        if self._polled is None:
            self._polled = self._stream()
            self._polled[0].begin()
        run, should_stop = self._polled
        return run.poll(should_stop)

    def _stream(self, from_scratch: bool = False) -> tuple[Stream, Callable[[], bool]]:
        run = Stream(
            self._driver,
            self._on_epoch,
            self._options.limits,
            self._maintenance,
            from_scratch=from_scratch,
            reopen_schedule=self._reopen_schedule,
            timezone=self._timezone,
            pause=self._stop.wait,
        )
        return run, _asked_to_stop(self._stop, self._driver.lease, self._beat)

    @property
    def outcome(self) -> Streamed:
        """The outcome of the stream so far."""
        name, has_run = self._driver.pipeline.name, bool(self.epochs) or self._driver.tables.exist
        return Streamed((name,), tuple(self.epochs), without_rows=() if has_run else (name,))

    def _target(self) -> str:
        """Return the snapshot to begin from.

        The newest snapshot is read only if a timeline was named, because a restore must work even if that snapshot
        can't be read.
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
            f"{self._prefix}epoch {manifest.epoch}: {_done(manifest, driver.pipeline)}, {line['open_windows']} open, "
            f"watermark {show_watermark(manifest.watermark)}, lag {show_duration(manifest.watermark_lag)}, "
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
    if manifest.kind == "change":
        return corrected(manifest)
    if manifest.kind == "reopen":
        return f"{manifest.counters[REOPENED]} late rows reopened, {emitted_text(pipeline, manifest.counters)}"
    return read(pipeline, manifest.counters)


def has_left(head: Snapshot | None, timeline: int | None) -> bool:
    """Return True if the pipeline is no longer on a timeline (0: before its first), so the restore was already done.

    For None, return False, because then the restore is always done.
    """
    return timeline is not None and timeline != (0 if head is None else head.manifest.timeline)


def _asked_to_stop(stop: StopRequest, lease: Lease, beat: Heartbeat) -> Callable[[], bool]:
    """Return the function that reports a request to stop: by a signal, or by `tidegate driver stop` from any host.

    `tidegate driver stop` writes its request into the lease, which is read every two seconds. The stream's loop
    calls the function in each turn, so it also writes the heartbeat.
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


class _Together:
    """Several running streams: see `stream`."""

    def __init__(
        self,
        config: Config,
        options: StreamOptions,
        stop: StopRequest,
        teller_of: Callable[[str], Teller],
        engine: Engine,
        timer: Callable[[], float],
    ) -> None:
        self._config, self._options, self._stop = config, options, stop
        self._teller_of, self._engine, self._timer = teller_of, engine, timer
        self._failed: dict[str, TidegateError] = {}
        self._done: dict[str, Streamed] = {}
        self._entered: dict[str, tuple[ExitStack, StreamRun]] = {}
        self._due: dict[str, float] = {}

    def run(self, pipelines: Sequence[str]) -> Streamed:
        if self._options.every is None:
            for name in pipelines:
                if not self._stop.is_made():
                    self._attempt(name, lambda run: run.to_its_end())
                    self._end(name)
        else:
            self._continuously(pipelines, self._options.every.total_seconds())
        return Streamed(
            tuple(name for name in pipelines if name in self._done or name in self._failed),
            tuple(epoch for name in pipelines if name in self._done for epoch in self._done[name].epochs),
            dict(self._failed),
            tuple(name for done in self._done.values() for name in done.without_rows),
        )

    def _continuously(self, pipelines: Sequence[str], seconds: float) -> None:
        self._due = dict.fromkeys(pipelines, self._timer())
        try:
            while self._due and not self._stop.is_made():
                for name in [name for name, due in self._due.items() if due <= self._timer()]:
                    self._due[name] = self._timer() + seconds
                    if not self._attempt(name, StreamRun.poll) and name not in self._failed:
                        # Somebody asked this stream to stop.
                        self._end(name)
                        del self._due[name]
                    if self._stop.is_made():
                        return
                if self._due:
                    self._stop.wait(min(_SECOND, max(0.0, min(self._due.values()) - self._timer())))
        finally:
            for name in [*self._entered]:
                self._end(name)

    def _attempt(self, name: str, act: Callable[[StreamRun], object]) -> bool:
        """Let a stream act, entering it first if necessary. Return True if it should continue."""
        try:
            if name not in self._entered:
                stack = ExitStack()
                arguments = (self._config, name, self._options, self._stop, self._teller_of(name), self._engine)
                self._entered[name] = (stack, stack.enter_context(entered(*arguments)))
            goes_on = act(self._entered[name][1])
        except Exception as error:  # A failure of one stream must not stop the others.
            self._fail(name, error)
            return False
        self._failed.pop(name, None)
        return goes_on is not False

    def _fail(self, name: str, error: Exception) -> None:
        if (entered := self._entered.pop(name, None)) is not None:
            try:
                # If the driver knows why an engine ended, that replaces the resulting error.
                entered[0].__exit__(type(error), error, error.__traceback__)
            except Exception as better:
                error = better
        failure = error if isinstance(error, TidegateError) else TidegateError(f"{type(error).__name__}: {error}")
        self._failed[name] = failure
        may_succeed = failure.exit_code in _MAY_SUCCEED
        again = f"; retried in {_AGAIN_SECONDS:.0f} s" if may_succeed and name in self._due else ""
        self._teller_of(name).say(f"{name} failed: {masked(str(failure))}{again}")
        if name in self._due:
            self._due[name] = self._timer() + _AGAIN_SECONDS
            if not may_succeed:
                del self._due[name]

    def _end(self, name: str) -> None:
        """Release the lease of a stream, and record its outcome."""
        if (entered := self._entered.pop(name, None)) is not None:
            entered[0].close()
            self._done[name] = entered[1].outcome

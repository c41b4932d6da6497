"""`tidegate stream` runs a pipeline over its source's commits, in the order in which they came."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import click

from tidegate.pipelines.cli.backfill import check_first_run, corrected, put_out
from tidegate.pipelines.cli.runs import lag
from tidegate.pipelines.cli.screen import Screen, engine_option, with_screen
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.run.intervals import parse_duration
from tidegate.windowing.time import show_millis

if TYPE_CHECKING:
    from tidegate.pipelines.run.driver import Driver
    from tidegate.pipelines.run.host import Heartbeat
    from tidegate.pipelines.run.lease import Lease
    from tidegate.pipelines.snapshots.head import Snapshot

_LOOK_AT_LEASE_SECONDS = 2.0
_SIZE = re.compile(r"([0-9]+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_POWERS = ("", "k", "m", "g", "t")
ENDS_BY_ITSELF = "stream --available-now"
"""The command in the lease of a stream that reads the commits that are there and ends."""


@click.command()
@click.argument("pipeline")
@click.option("--available-now", is_flag=True, help="Read the commits that exist now, advance the clock, then end.")
@click.option(
    "--end-of-input", is_flag=True, help="With --available-now: end event time at the end, so all windows fire."
)
@click.option("--interval", help="Run until stopped, and read the source at this interval: 5s, 1min.")
@click.option(
    "--restore", "target", default="latest", show_default=True, help="latest, an epoch, savepoint:NAME, or none."
)
@click.option(
    "--restore-from-timeline",
    type=click.IntRange(min=0),
    help="Restore only while PIPELINE is on this timeline, so that the command, run again, continues its own work.",
)
@click.option("--parallelism", type=click.IntRange(min=1), help="Number of shards; default: the pipeline's, or cores.")
@click.option("--max-files-per-epoch", type=click.IntRange(min=1), help="Most source files in one epoch.")
@click.option("--max-bytes-per-epoch", help="Most bytes of source files in one epoch, about; such as 1g.")
@click.option("--max-commits-per-epoch", type=click.IntRange(min=1), help="Most source commits in one epoch.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=0,
    show_default=True,
    help="Seconds to wait for a running stream with --available-now, which ends by itself.",
)
@engine_option
@with_screen
def stream(
    screen: Screen,
    pipeline: str,
    available_now: bool,
    end_of_input: bool,
    interval: str | None,
    target: str,
    restore_from_timeline: int | None,
    parallelism: int | None,
    max_files_per_epoch: int | None,
    max_bytes_per_epoch: str | None,
    max_commits_per_epoch: int | None,
    patience: float,
) -> None:
    """Run PIPELINE as a stream, from its newest snapshot or from the one that --restore names.

    After a backfill it continues where that ended. With --restore none it starts from scratch at the beginning of
    the source; its first epoch replaces everything that was published. Each epoch has a line of JSON in
    WORK/logs/PIPELINE.epochs.jsonl. SIGTERM, Ctrl-C and `tidegate stop` end it after its epoch.
    """
    from tidegate.pipelines.definition.load import load_pipeline
    from tidegate.pipelines.engine.choose import require_engine
    from tidegate.pipelines.sources.watched import note_sources

    if available_now == (interval is not None):
        raise UsageError("say how to run: give --available-now, or --interval such as 5s")
    if end_of_input and not available_now:
        raise UsageError("--end-of-input needs --available-now: a stream with --interval has no end")
    every = None if interval is None else parse_duration(interval, "--interval")
    max_bytes = None if max_bytes_per_epoch is None else parse_size(max_bytes_per_epoch, "--max-bytes-per-epoch")
    config = screen.config()
    value = load_pipeline(config, pipeline)
    require_engine(config, "a stream")
    note_sources(config, value)
    check_first_run(config, value)
    if parallelism is not None:
        value = replace(value, parallelism=parallelism)
    from tidegate.pipelines.manifest import Manifest
    from tidegate.pipelines.run.driver import Patience, drive, system_clock
    from tidegate.pipelines.run.epoch_log import EpochLog
    from tidegate.pipelines.run.host import Heartbeat
    from tidegate.pipelines.run.next_commits import EpochLimits
    from tidegate.pipelines.run.stream import Stream, Upkeep
    from tidegate.pipelines.run.work_folder import HourlyCleaning
    from tidegate.pipelines.snapshots.head import read_snapshot
    from tidegate.pipelines.snapshots.retained import Retention
    from tidegate.pipelines.tables.counters import REOPENED

    entry = config.entry(pipeline)
    upkeep = Upkeep(Retention.of(entry), entry.upkeep_epochs) if entry.upkeep_epochs else None
    epochs: list[dict[str, Any]] = []
    log = EpochLog(config.work_folder / "logs" / f"{pipeline}.epochs.jsonl")
    cleaning = HourlyCleaning(config)
    beat = Heartbeat.of(config.work_folder, pipeline)

    def on_epoch(manifest: Manifest) -> None:
        line = log.write(manifest, run.driver.times.newest)
        read = f"{line['events']} in, {line['late']} late, {put_out(value, manifest.counters)}"
        if manifest.kind == "reopen":
            read = f"{manifest.counters[REOPENED]} late rows reopened, {put_out(value, manifest.counters)}"
        screen.tell(
            f"epoch {manifest.epoch}: {corrected(manifest) if manifest.kind == 'change' else read}, "
            f"{line['open_windows']} open, watermark {show_millis(manifest.watermark)}, "
            f"lag {lag(manifest.watermark_lag)}, took {line['seconds']:.1f} s"
        )
        if available_now:
            epochs.append(line)
        else:
            # A run that lasts can't leave it to the start of the next one.
            cleaning.clean_if_due(system_clock())

    def on_step(step: str) -> None:
        beat.give()
        status.update(f"{pipeline}: {step}")

    # Spark takes a while to start; a request to end that comes meanwhile must not be lost.
    asked = StopRequest()
    _listen(asked)
    limits = EpochLimits(max_files_per_epoch, max_bytes, max_commits_per_epoch)
    command = ENDS_BY_ITSELF if available_now else "stream"
    wait = Patience(patience, ENDS_BY_ITSELF, screen.tell, asked.is_made, time.monotonic, time.sleep)
    with (
        screen.console.status(f"{pipeline}: looking for work") as status,
        drive(config, value, command, wait=wait) as driver,
    ):
        driver.tell = on_step
        beat.begin()
        if every is not None:
            # The first commit that comes should not wait for it.
            driver.engine.start()
        if not asked.is_made():
            # The newest snapshot is read only for this option: a restore must work also if it can't be read.
            if restore_from_timeline is not None and has_left(read_snapshot(driver.tables), restore_from_timeline):
                screen.tell(
                    f"{pipeline} has left timeline {restore_from_timeline}: it continues from its newest snapshot"
                )
                target = "latest"
            if target not in ("latest", "none"):
                _restore(driver, target)

            schedule = entry.reopen_schedule
            run = Stream(driver, on_epoch, limits, upkeep, target == "none", reopen_schedule=schedule, pause=asked.wait)
            should_stop = _asked_to_stop(asked, driver.lease, beat)
            if every is None:
                run.run_available(should_stop)
                if end_of_input:
                    run.end_of_input()
            else:
                run.run_continuously(every, should_stop)
    screen.show({"pipeline": pipeline, "epochs": epochs}, f"{pipeline}: ended after a whole epoch")


def parse_size(text: str, field: str) -> int:
    """Parse a number of bytes such as `1048576`, `64m` or `1g`; a unit is a power of 1024.

    Raises:
        UsageError: the text is something else, or zero.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise UsageError(f"{field} {text!r}: give a number of bytes above zero, or one with a unit of k, m, g, t: 512m")
    return int(match[1]) << 10 * _POWERS.index(match[2].lower())


class StopRequest:
    """A request to end, which a signal may bring at any moment, also while this thread waits for it.

    `threading.Event` can't be used: its `set` waits for a lock that an interrupted `wait` of the same thread may hold.
    """

    def __init__(self) -> None:
        self._is_made = False
        self._wake: SimpleQueue[None] = SimpleQueue()

    def make(self) -> None:
        """Make the request, and end a `wait`."""
        self._is_made = True
        self._wake.put(None)

    def is_made(self) -> bool:
        """Return True after the request."""
        return self._is_made

    def wait(self, seconds: float) -> None:
        """Wait for the request, at most so many seconds."""
        if not self._is_made:
            with suppress(Empty):
                self._wake.get(timeout=seconds)


def has_left(head: Snapshot | None, timeline: int | None) -> bool:
    """Return True if the pipeline is no longer on a timeline (0: before its first), so the restore was done already.

    A timeline of None is never left: the restore is done in any case.
    """
    return timeline is not None and timeline != (0 if head is None else head.manifest.timeline)


def _restore(driver: Driver, target: str) -> None:
    """Go back to a snapshot, after a check that this code and the present source can continue from there."""
    from tidegate.pipelines.epoch.open_input import OpenInput
    from tidegate.pipelines.snapshots.find import find_snapshot
    from tidegate.pipelines.snapshots.restore import restore

    snapshot = find_snapshot(driver.tables, target)
    for source in OpenInput.open(driver.engine, driver.tables, driver.pipeline).inputs:
        source.position_of(snapshot.manifest)
    restore(driver.tables, snapshot, driver.clock())


def _listen(asked: StopRequest) -> None:
    """Let SIGTERM and Ctrl-C make a request instead of ending the process."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *ignored: asked.make())


def _asked_to_stop(asked: StopRequest, lease: Lease, beat: Heartbeat) -> Callable[[], bool]:
    """Return the function that tells the stream to stop: after a signal, or after `tidegate stop` from any host.

    `tidegate stop` writes its request into the lease, which is read every two seconds. The stream's loop calls the
    function at each turn, so it writes the heartbeat as well.
    """
    looked = [time.monotonic()]

    def should_stop() -> bool:
        beat.give()
        if asked.is_made():
            return True
        if time.monotonic() - looked[0] < _LOOK_AT_LEASE_SECONDS:
            return False
        looked[0] = time.monotonic()
        return lease.stop_requested

    return should_stop

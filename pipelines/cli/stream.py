"""`tidegate stream`: run a pipeline over its source's commits, as they came."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from tidegate.pipelines.cli.backfill import put_out
from tidegate.pipelines.cli.runs import lag
from tidegate.pipelines.cli.screen import Screen, with_screen
from tidegate.pipelines.cli.sizes import parse_size
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.run.intervals import parse_duration
from tidegate.windowing.time import show_millis

if TYPE_CHECKING:
    from tidegate.pipelines.run.driver import Driver
    from tidegate.pipelines.run.lease import Lease, LeaseRow
    from tidegate.pipelines.snapshots.head import Snapshot

_LOOK_AT_LEASE_SECONDS = 2.0
_WAIT_SECONDS = 1.0
_ENDS_BY_ITSELF = "stream --available-now"
"""What the lease says of a stream that reads what is there and ends."""


@click.command()
@click.argument("pipeline")
@click.option("--available-now", is_flag=True, help="Read what is there now, let the clock go on, then end.")
@click.option("--end-of-input", is_flag=True, help="With --available-now: end event time then, so all windows fire.")
@click.option("--interval", help="Run until stopped, looking at the source this often: 5s, 1min.")
@click.option(
    "--restore", "target", default="latest", show_default=True, help="latest, an epoch, savepoint:NAME, or none."
)
@click.option(
    "--restore-from-timeline",
    type=click.IntRange(min=0),
    help="Restore only while PIPELINE is on this timeline: the same command again goes on from what it began.",
)
@click.option("--parallelism", type=click.IntRange(min=1), help="Number of shards; default: the pipeline's, or cores.")
@click.option("--max-files-per-epoch", type=click.IntRange(min=1), help="Read at most so many source files at once.")
@click.option("--max-bytes-per-epoch", help="Read at most about so much at once, such as 1g.")
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=0,
    show_default=True,
    help="Seconds to wait for a driver at work that ends by itself: a stream with --available-now.",
)
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
    patience: float,
) -> None:
    """Run PIPELINE as a stream, going on from its newest snapshot or from the one that --restore names.

    After a backfill it takes over where that ended. With --restore none it starts anew at the beginning of the
    source; its first epoch takes the place of everything that was published. Each epoch has a line of JSON in
    WORK/logs/PIPELINE.epochs.jsonl. SIGTERM, Ctrl-C and `tidegate stop` end it after its epoch.
    """
    from tidegate.pipelines.definition.load import load_pipeline

    if available_now == (interval is not None):
        raise UsageError("say how to run: give --available-now, or --interval such as 5s")
    if end_of_input and not available_now:
        raise UsageError("--end-of-input: only with --available-now; a stream that goes on has no end")
    every = None if interval is None else parse_duration(interval, "--interval")
    max_bytes = None if max_bytes_per_epoch is None else parse_size(max_bytes_per_epoch, "--max-bytes-per-epoch")
    config = screen.config()
    value = load_pipeline(config, pipeline)
    if parallelism is not None:
        value = replace(value, parallelism=parallelism)
    from tidegate.pipelines.manifest import Manifest
    from tidegate.pipelines.run.driver import drive
    from tidegate.pipelines.run.epoch_log import EpochLog
    from tidegate.pipelines.run.stream import Stream
    from tidegate.pipelines.run.upkeep import Upkeep
    from tidegate.pipelines.snapshots.head import read_snapshot
    from tidegate.pipelines.snapshots.retained import Retention

    entry = config.entry(pipeline)
    upkeep = Upkeep(Retention.of(entry), entry.upkeep_epochs) if entry.upkeep_epochs else None
    epochs: list[dict[str, Any]] = []
    log = EpochLog(config.work_folder / "logs" / f"{pipeline}.epochs.jsonl")

    def on_epoch(manifest: Manifest) -> None:
        told = log.write(manifest, run.plan_seconds)
        screen.tell(
            f"epoch {manifest.epoch}: {told['events']} in, {told['late']} late, {put_out(value, manifest.counters)}, "
            f"{told['open_windows']} open, watermark {show_millis(manifest.watermark)}, "
            f"lag {lag(manifest.watermark_lag)}, took {told['seconds']:.1f} s"
        )
        if available_now:
            epochs.append(told)

    def on_step(step: str) -> None:
        log.hear(step)
        status.update(f"{pipeline}: {step}")

    # Before Spark starts, which takes a while: a request that comes then ends the command as any other does.
    asked = threading.Event()
    _listen(asked)
    options = {"maxFilesPerTrigger": max_files_per_epoch, "maxBytesPerTrigger": max_bytes}
    given = {name: str(option) for name, option in options.items() if option is not None}
    command = _ENDS_BY_ITSELF if available_now else "stream"
    wait = _waiting(patience, asked, screen.tell)
    with (
        screen.console.status(f"starting Spark for {pipeline}") as status,
        drive(config, value, command, wait=wait) as driver,
    ):
        # PySpark has its own handler of Ctrl-C by now.
        _listen(asked)
        driver.tell = on_step
        if not asked.is_set():
            # Without that option the newest snapshot need not be one that can be read.
            if restore_from_timeline is not None and has_left(read_snapshot(driver.tables), restore_from_timeline):
                screen.tell(
                    f"{pipeline} has left timeline {restore_from_timeline}: it goes on from its newest snapshot"
                )
                target = "latest"
            if target not in ("latest", "none"):
                _restore(driver, target)
            run = Stream(driver, config.work_folder, on_epoch, given, upkeep, anew=target == "none")
            should_stop = _asked_to_stop(asked, driver.lease)
            if every is None:
                run.run_available(should_stop)
                if end_of_input:
                    run.end_of_input()
            else:
                run.run_continuously(every, should_stop)
    screen.show({"pipeline": pipeline, "epochs": epochs}, f"{pipeline}: ended after its epoch; nothing is half done")


def _waiting(patience: float, asked: threading.Event, tell: Callable[[str], None]) -> Callable[[LeaseRow], bool]:
    """Wait for whoever holds the lease, if that ends by itself, for so many seconds and until the end is asked for."""
    deadline = time.monotonic() + patience
    told: set[str] = set()

    def wait(holder: LeaseRow) -> bool:
        if holder.command != _ENDS_BY_ITSELF or time.monotonic() >= deadline or asked.is_set():
            return False
        if holder.run not in told:
            told.add(holder.run)
            tell(f"waiting for {holder}")
        time.sleep(_WAIT_SECONDS)
        return True

    return wait


def has_left(head: Snapshot | None, timeline: int | None) -> bool:
    """Whether a restore that was to be made from a timeline (None: from any; 0: before the first) is made already."""
    return timeline is not None and timeline != (0 if head is None else head.manifest.timeline)


def _restore(driver: Driver, target: str) -> None:
    """Go back to a snapshot, once it is sure that this code and the source as it is can go on from there."""
    from tidegate.pipelines.snapshots.find import find_snapshot
    from tidegate.pipelines.snapshots.restore import restore
    from tidegate.pipelines.sources.source import Source

    snapshot = find_snapshot(driver.tables, target)
    for one in Source.open(driver.spark, driver.tables, driver.pipeline).inputs:
        one.position_of(snapshot.manifest)
    restore(driver.tables, snapshot, driver.clock())


def _listen(asked: threading.Event) -> None:
    """Let SIGTERM and Ctrl-C ask for the end."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *ignored: asked.set())


def _asked_to_stop(asked: threading.Event, lease: Lease) -> Callable[[], bool]:
    """Whether a signal came, or `tidegate stop` from any host: told by the lease, looked at every two seconds."""
    looked = [time.monotonic()]

    def should_stop() -> bool:
        if asked.is_set():
            return True
        if time.monotonic() - looked[0] < _LOOK_AT_LEASE_SECONDS:
            return False
        looked[0] = time.monotonic()
        return lease.stop_requested

    return should_stop

"""Commands that run epochs, and commands about the driver that runs them."""

from __future__ import annotations

import signal
from typing import Any

import click

from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.observe.report.answer import Answer
from tidegate.pipelines.project.cli.screen import Screen, command, engine_option, log_option, patience_option
from tidegate.pipelines.run.stopping import StopRequest

_count = click.IntRange(min=1)


@command()
@click.option(
    "--start", help="First event time, a date or date-time; without a zone, it is in the pipeline's timezone."
)
@click.option("--end", help="Event time at which the backfill ends, exclusive.")
@click.option(
    "--slice",
    help="Length of each epoch's interval: 6h, 1d, 1w, 1mo. Days follow the pipeline's timezone. Default: one epoch.",
)
@click.option("--and-following/--no-and-following", help="After a rerun interval, rerun the later intervals too.")
@click.option("--fill-gaps", is_flag=True, help="First run the intervals that are missing before --start.")
@click.option("--again", is_flag=True, help="Run an interval again even if its rows and the code seem unchanged.")
@click.option(
    "--end-of-input",
    is_flag=True,
    help="End event time after the last interval: open windows fire, later elements are late.",
)
@click.option(
    "--order",
    type=click.Choice(["event", "arrival"]),
    default="event",
    show_default=True,
    help="arrival: replay the source's commits as a stream would have seen them, including late rows.",
)
@click.option(
    "--commits-per-epoch",
    type=_count,
    help="Source commits in one epoch, with --order arrival. Default: all.",
)
@patience_option("Seconds to wait for another running backfill; this one then continues where that one ended.")
@click.option("--dry-run", is_flag=True, help="Show what would happen to each interval; change nothing.")
@engine_option
@log_option
def backfill(
    screen: Screen,
    pipeline: str,
    order: str,
    commits_per_epoch: int | None,
    patience: float,
    dry_run: bool,
    **intervals: Any,
) -> Answer:
    """Run PIPELINE over event time from START to END.

    Each interval continues from the snapshot of the one before, so a session that crosses midnight is one session. An
    interval that was run before is skipped unless its rows or the code changed, or --again is given.
    """
    if order == "arrival":
        if any(intervals.values()) or dry_run:
            raise UsageError("--order arrival replays every source commit: leave out the options that name intervals")
        with screen.running(pipeline) as project:
            return project.replay(pipeline, commits_per_epoch=commits_per_epoch)
    if commits_per_epoch is not None:
        raise UsageError("--commits-per-epoch: only with --order arrival; in event order give --slice")
    if dry_run:
        of_plan = {name: intervals[name] for name in ("start", "end", "slice", "fill_gaps", "again")}
        return screen.project().backfill_plan(pipeline, **of_plan)
    with screen.running(pipeline) as project:
        return project.backfill(pipeline, **intervals, patience=patience)


@command(of_pipeline=False)
@click.argument("pipelines", metavar="PIPELINE...", nargs=-1, required=True)
@click.option("--available-now", is_flag=True, help="Read the commits that exist now, advance the clock, then end.")
@click.option(
    "--end-of-input", is_flag=True, help="With --available-now: end event time after that, so all windows fire."
)
@click.option("--interval", help="Run until stopped, polling the source at this interval: 5s, 1min.")
@click.option(
    "--restore",
    default="latest",
    show_default=True,
    help="Snapshot to begin from: latest, an epoch, savepoint:NAME, or none.",
)
@click.option(
    "--restore-from-timeline",
    type=click.IntRange(min=0),
    help="Restore only while PIPELINE is on this timeline, so that a retry continues instead of restoring again.",
)
@click.option("--parallelism", type=_count, help="Number of shards; default: the pipeline's, or the number of cores.")
@click.option("--max-files-per-epoch", type=_count, help="Limit on the source files in one epoch.")
@click.option("--max-bytes-per-epoch", help="Approximate limit on the bytes of source files in one epoch, such as 1g.")
@click.option("--max-commits-per-epoch", type=_count, help="Limit on the source commits in one epoch.")
@click.option(
    "--max-rows-per-epoch", type=_count, help="Limit on the rows of an epoch's source files; default: 20,000,000."
)
@patience_option("Seconds to wait for a running stream with --available-now, which ends on its own.")
@engine_option
@log_option
def stream(
    screen: Screen,
    pipelines: tuple[str, ...],
    available_now: bool,
    restore: str,
    restore_from_timeline: int | None,
    parallelism: int | None,
    **options: Any,
) -> Answer:
    """Run PIPELINE as a stream, from its newest snapshot or from the one that --restore names.

    After a backfill, the stream continues where the backfill ended. With --restore none it starts from scratch at the
    beginning of the source; its first epoch replaces everything that was published. Each epoch writes a line of JSON to
    WORK/logs/PIPELINE.epochs.jsonl. SIGTERM, Ctrl-C and `tidegate stop` end the stream after the current epoch.

    Several pipelines run in one process, one epoch after the other, each with its own lease. If one fails, the others
    continue, and the exit code at the end is that of the failure (1 if the failures differ).
    """
    if available_now == (options["interval"] is not None):
        raise UsageError("give --available-now, or --interval such as 5s")
    options["stop"] = _request_of_signals()
    with screen.running(", ".join(pipelines)) as project:
        if len(pipelines) > 1:
            if restore != "latest" or restore_from_timeline is not None or parallelism is not None:
                raise UsageError("--restore and --parallelism work only with a single pipeline: restart that one alone")
            return project.stream(pipelines, **options)
        options |= {"restore_from_timeline": restore_from_timeline, "parallelism": parallelism}
        return project.stream(pipelines[0], restore=restore, **options)


def _request_of_signals() -> StopRequest:
    """Return a stop request that SIGTERM and Ctrl-C set instead of ending the process.

    Spark takes a while to start, and a signal in the meantime must not be lost.
    """
    request = StopRequest()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *ignored: request.make())
    return request


@command()
@patience_option("Seconds to wait for its current epoch.", 600)
def stop(screen: Screen, pipeline: str, patience: float) -> Answer:
    """Ask the driver of PIPELINE to end after its current epoch, and wait until it has ended."""
    return screen.project().stop(pipeline, patience=patience)


@command()
@click.option(
    "--within",
    type=click.FloatRange(min=0, min_open=True),
    default=3600,
    show_default=True,
    help="Longest time since the last heartbeat, in seconds. While it computes, an epoch writes no heartbeats.",
)
def alive(screen: Screen, pipeline: str, within: float) -> Answer:
    """Exit with 0 if a stream of PIPELINE is running on this host, otherwise with 1.

    A stream that waits for data is alive. The heartbeat is a file in the work folder. The stream may run in another
    container with the same folder if both see the same processes.
    """
    return screen.project().alive(pipeline, within=within)


@command()
def unlock(screen: Screen, pipeline: str) -> Answer:
    """Remove the lease of PIPELINE from a driver that died, on this host or another one.

    A lease expires a minute after its driver died. If the clock of the driver's host was ahead, it expires later; this
    command removes it now. A driver that is running on this host keeps its lease. If a driver on another host turns out
    to be alive, it takes the lease back, or ends with 4 if another driver has it by then.
    """
    return screen.project().unlock(pipeline)

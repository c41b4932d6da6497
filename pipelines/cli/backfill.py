"""`tidegate backfill` runs intervals of event time, one epoch each."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from tidegate.pipelines.cli.screen import Screen, engine_option, table, with_screen
from tidegate.pipelines.config import Config
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.manifest import Interval, Manifest
from tidegate.pipelines.run.driver import Patience
from tidegate.pipelines.run.intervals import cut, cut_gap, describe, parse_moment, parse_slice, show
from tidegate.pipelines.tables.counters import RETRACTED, ROWS_GONE, ROWS_OUT, TAKEN_BACK, filtered, fired
from tidegate.windowing.compute import Windows
from tidegate.windowing.time import show_millis, to_millis

if TYPE_CHECKING:
    from dateutil.relativedelta import relativedelta

    from tidegate.pipelines.definition.pipeline import Pipeline
    from tidegate.pipelines.run.corrections import ChangedInterval, Preview

_SHOWN = 20
"""Most intervals of a preview that are shown as text."""

_COLUMNS = ("interval", "state", "epoch", "in", "on time", "late", "filtered", "fired", "rows out", "open", "seconds")


@click.command()
@click.argument("pipeline")
@click.option("--start", help="First event time, a date or date-time; without a zone it is in UTC.")
@click.option("--end", help="End of event time, not included.")
@click.option("--slice", "slice_", help="Length of each epoch's interval: 6h, 1d, 1w, 1mo. Default: one epoch for all.")
@click.option("--and-following/--no-and-following", help="After a re-run interval, run the later intervals again too.")
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
    help="arrival: replay the source's commits as a stream would have seen them, late rows included.",
)
@click.option(
    "--commits-per-epoch",
    type=click.IntRange(min=1),
    help="Source commits in one epoch, with --order arrival. Default: all of them.",
)
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=0,
    show_default=True,
    help="Seconds to wait for another backfill that is running; the interval then continues from where that one ended.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be done with each interval; change nothing.")
@engine_option
@with_screen
def backfill(
    screen: Screen,
    pipeline: str,
    start: str | None,
    end: str | None,
    slice_: str | None,
    and_following: bool,
    fill_gaps: bool,
    again: bool,
    end_of_input: bool,
    order: str,
    commits_per_epoch: int | None,
    patience: float,
    dry_run: bool,
) -> None:
    """Run PIPELINE over event time from START to END.

    Each interval continues from the snapshot of the one before, so a session that crosses midnight is one
    session. An interval that was run before is left alone unless its rows or the code changed, or --again is given.
    """
    from tidegate.pipelines.definition.load import load_pipeline

    config = screen.config()
    value = load_pipeline(config, pipeline)
    if order == "arrival":
        if start or end or slice_ or and_following or fill_gaps or again or end_of_input or dry_run:
            raise UsageError("--order arrival replays every source commit: leave out the options that name intervals")
        _check_spark(config)
        check_first_run(config, value)
        _replay(screen, config, value, commits_per_epoch)
        return
    if commits_per_epoch is not None:
        raise UsageError("--commits-per-epoch: only with --order arrival; in event order give --slice")
    intervals: list[Interval] = []
    if start is not None and end is not None:
        length = None if slice_ is None else parse_slice(slice_)
        first = parse_moment(start, "--start")
        intervals = list(cut(first, parse_moment(end, "--end"), length))
        _check_start(config, pipeline, first, fill_gaps)
        if fill_gaps:
            intervals = [*_missing(config, pipeline, intervals[0], length), *intervals]
    elif start is not None or end is not None or not end_of_input or dry_run:
        raise UsageError(
            "say which event times to run: give --start and --end, such as --start 2013-01-01; in "
            "Airflow, the Params interval_start and interval_end"
        )
    if dry_run:
        _show_plan(screen, value, intervals, again)
        return
    _check_spark(config)
    check_first_run(config, value)
    from time import perf_counter

    from tidegate.pipelines.run.backfill import backfill as run
    from tidegate.pipelines.run.backfill import end_of_input as end_input
    from tidegate.pipelines.run.driver import drive

    runs: list[dict[str, Any]] = []
    wait = Patience(patience, "backfill", screen.tell)
    with (
        screen.console.status(f"{pipeline}: looking for work") as status,
        drive(config, value, "backfill", wait=wait) as driver,
    ):
        driver.tell = lambda step: status.update(f"{pipeline}: {step}")
        began = perf_counter()
        for done in run(driver, intervals, and_following, again):
            if done.corrected is not None:
                _tell_correction(screen, done.corrected)
            counters = done.manifest.counters
            runs.append(
                {
                    "interval": done.interval.model_dump(),
                    "state": done.state,
                    "epoch": done.manifest.epoch,
                    "corrected": None if done.corrected is None else done.corrected.epoch,
                    "counters": counters,
                    "seconds": round(perf_counter() - began, 2),
                }
            )
            screen.tell(
                f"{describe(done.interval)}  {_state(runs[-1])}  epoch {done.manifest.epoch}: "
                f"{counters['events_in']} in, {counters['late']} late, {put_out(value, counters)}, "
                f"{counters['open_windows']} open, {runs[-1]['seconds']} s"
            )
            began = perf_counter()
        if end_of_input:
            _tell_end(screen, pipeline, end_input(driver))
    rows = [_row(run) for run in runs]
    # An interval that is unchanged has an old epoch, and the correction before it a new one.
    newest = max((run[name] for run in runs for name in ("epoch", "corrected") if run[name] is not None), default=None)
    screen.show(
        {"pipeline": pipeline, "epoch": newest, "runs": runs}, "", table(pipeline, _COLUMNS, rows, right=_COLUMNS[2:])
    )


def _check_spark(config: Config) -> None:
    from tidegate.pipelines.engine.choose import require_engine

    require_engine(config, "a backfill")


def _tell_correction(screen: Screen, manifest: Manifest) -> None:
    screen.tell(f"rows of the source changed  corrected  epoch {manifest.epoch}: {corrected(manifest)}")


def corrected(manifest: Manifest) -> str:
    """Describe a correction: the rows that went and came, and the panes that it published."""
    counters = manifest.counters
    return (
        f"{counters[ROWS_GONE]} gone ({counters[TAKEN_BACK]} from windows), {counters['events_in']} came "
        f"({filtered(counters)} filtered), {counters[RETRACTED]} retracted, {fired(counters)} fired"
    )


def _tell_end(screen: Screen, pipeline: str, manifest: Manifest | None) -> None:
    if manifest is None:
        screen.tell(f"{pipeline}: its input has already ended")
        return
    screen.tell(
        f"end of input  done  epoch {manifest.epoch}: {fired(manifest.counters)} fired, "
        f"{manifest.counters['open_windows']} open"
    )


def _missing(config: Config, pipeline: str, first: Interval, length: relativedelta | None) -> list[Interval]:
    """Return the intervals between what was run and an interval; none if a stream has taken over."""
    from tidegate.pipelines.snapshots.head import read_snapshot
    from tidegate.pipelines.storage import warehouse_of
    from tidegate.pipelines.tables.pipeline_tables import PipelineTables

    head = read_snapshot(PipelineTables(warehouse_of(config), pipeline))
    if head is None:
        return cut_gap(to_millis(config.entry(pipeline).start), first, length)
    # The inputs of a backfill stand at the same event time.
    frontier = next(iter(head.manifest.positions.values())).frontier
    return [] if frontier is None else cut_gap(frontier, first, length)


def _check_start(config: Config, pipeline: str, first: datetime, fill_gaps: bool) -> None:
    """Refuse a first run that begins before or after the pipeline's `start`: rows between them would be lost."""
    from tidegate.pipelines.snapshots.head import read_snapshot
    from tidegate.pipelines.storage import warehouse_of
    from tidegate.pipelines.tables.pipeline_tables import PipelineTables

    begins = config.entry(pipeline).start
    ways = f"`start` of pipelines.{pipeline} in {config.file_name}"
    if first < begins:
        raise UsageError(
            f"--start {show(first)} is before {show(begins)}, the start of {pipeline}: begin there, or set an earlier "
            f"{ways}"
        )
    if first > begins and not fill_gaps and read_snapshot(PipelineTables(warehouse_of(config), pipeline)) is None:
        raise Refused(
            f"--start {show(first)}: {pipeline} starts at {show(begins)} and was never run, so the rows between these "
            f"times would be lost. Begin at {show(begins)}, run what lies between with --fill-gaps, or set a later "
            f"{ways}"
        )


def check_first_run(config: Config, pipeline: Pipeline) -> None:
    """Refuse the first run of a pipeline whose source does not exist, before Spark starts, which takes a while.

    Later runs first publish epochs that are not yet published, for which no source is needed.
    """
    from tidegate.pipelines.sources.open_source import check_sources_exist
    from tidegate.pipelines.storage import warehouse_of
    from tidegate.pipelines.tables.pipeline_tables import PipelineTables

    config.make_folders()
    warehouse = warehouse_of(config)
    if not PipelineTables(warehouse, pipeline.name).exist:
        check_sources_exist(pipeline, warehouse)


def _replay(screen: Screen, config: Config, pipeline: Pipeline, commits_per_epoch: int | None) -> None:
    from tidegate.pipelines.run.backfill import replay
    from tidegate.pipelines.run.driver import drive

    runs: list[dict[str, Any]] = []
    with (
        screen.console.status(f"{pipeline.name}: looking for work") as status,
        drive(config, pipeline, "backfill") as driver,
    ):
        driver.tell = lambda step: status.update(f"{pipeline.name}: {step}")
        for manifest in replay(driver, commits_per_epoch):
            counters = manifest.counters
            runs.append({"epoch": manifest.epoch, "watermark": manifest.watermark, "counters": counters})
            screen.tell(
                f"epoch {manifest.epoch}: {counters['events_in']} in, {counters['late']} late, "
                f"{put_out(pipeline, counters)}, {counters['open_windows']} open, "
                f"watermark {show_millis(manifest.watermark)}"
            )
    screen.show({"pipeline": pipeline.name, "epochs": runs}, f"{pipeline.name}: every source commit is replayed")


def put_out(pipeline: Pipeline, counters: dict[str, int]) -> str:
    """Describe the output of an epoch: the windows that fired, or the rows of a process function or join."""
    if isinstance(pipeline.compute, Windows):
        return f"{fired(counters)} fired"
    return f"{counters.get(ROWS_OUT, '-')} rows out"


def _row(run: dict[str, Any]) -> tuple[object, ...]:
    counters = run["counters"]
    return (
        describe(Interval(**run["interval"])),
        _state(run),
        run["epoch"],
        counters["events_in"],
        counters["on_time"],
        counters["late"],
        filtered(counters),
        fired(counters),
        counters.get(ROWS_OUT, "-"),
        counters["open_windows"],
        f"{run['seconds']:.1f}",
    )


def _state(run: dict[str, Any]) -> str:
    """Return what was done with an interval. One that did not run again may have windows that were just corrected."""
    if run["state"] == "done" or run["corrected"] is None:
        return str(run["state"])
    return f"not run again; epoch {run['corrected']} corrected windows"


def _show_plan(screen: Screen, value: Pipeline, intervals: list[Interval], again: bool) -> None:
    """Show the effect of a run on each interval. Only logs and the newest snapshot are read, and no JVM is started.

    Raises:
        Refused: a source does not exist, or lacks a column that the pipeline names.
    """
    from tidegate.pipelines.inspect.explanation import look_at_source
    from tidegate.pipelines.run.corrections import preview_change
    from tidegate.pipelines.snapshots.head import read_snapshot
    from tidegate.pipelines.sources.open_source import check_sources_exist
    from tidegate.pipelines.storage import warehouse_of
    from tidegate.pipelines.tables.pipeline_tables import PipelineTables

    config, pipeline = screen.config(), value.name
    check_sources_exist(value, warehouse_of(config))
    look_at_source(config, value)
    head = read_snapshot(PipelineTables(warehouse_of(config), pipeline))
    position = None if head is None else next(iter(head.manifest.positions.values()))
    changes = preview_change(config, value)
    if changes is not None:
        for line in _told(changes):
            screen.tell(line)
    planned: list[tuple[Interval, str]] = []
    stands = None if position is None else position.frontier
    for interval in intervals:
        if position is not None and position.frontier is None:
            state = "refused: a stream has taken over"
        elif stands is None or interval.start == stands:
            state, stands = "would run", interval.end
        elif interval.start > stands:
            state = "refused: a gap lies before it, which --fill-gaps runs"
        else:
            compared = "would be compared, and run again if anything changed"
            state = f"run before: {'would run again' if again else compared}"
        planned.append((interval, state))
    screen.show(
        {
            "pipeline": pipeline,
            "planned": [{"interval": i.model_dump(), "state": state} for i, state in planned],
            "changed": [] if changes is None else [_as_json(each) for each in changes.intervals],
            "by_change_feed": changes is not None and changes.by_feed,
        },
        table(pipeline, ("interval", "state"), [(describe(interval), state) for interval, state in planned]),
    )


def _as_json(changed: ChangedInterval) -> dict[str, object]:
    return {"interval": changed.interval.model_dump(), "gone": changed.gone, "came": changed.came}


def _told(changes: Preview) -> Iterator[str]:
    """Yield the lines that tell which intervals changed, the first of them if there are many."""
    versions = ", ".join(map(str, changes.versions))
    way = "by the change feed" if changes.by_feed else "by a comparison of files"
    yield f"rows of the source changed in version {versions}: their windows would be corrected first, in one epoch"
    yield f"what changed is told {way}"
    for each in changes.intervals[:_SHOWN]:
        yield f"{describe(each.interval)}  would be corrected: {each.gone} gone, {each.came} came"
    if (more := len(changes.intervals) - _SHOWN) > 0:
        yield f"and {more} more intervals; --json lists all"

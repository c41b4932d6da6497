"""Backfills, with one epoch for each interval of event time; their plan; and a replay of the source's commits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from time import perf_counter
from typing import ClassVar, Literal

from dateutil.relativedelta import relativedelta

from tidegate.pipelines.ask.explain import choices_of_source
from tidegate.pipelines.definition.config import ANY_START, Config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.counters import (
    DELETED_IN_WINDOWS,
    RETRACTED,
    ROWS_DELETED,
    ROWS_OUT,
    filtered,
    fired,
)
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.engine.choose import require_engine
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.ledger.manifest import Interval, Manifest
from tidegate.pipelines.ledger.snapshots.head import Snapshot, read_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.metrics.open import measured
from tidegate.pipelines.observe.report.answer import Facts
from tidegate.pipelines.observe.report.columns import (
    COUNT,
    NUMBER,
    OBJECT,
    SECONDS,
    TEXT,
    WATERMARK,
    YES_NO,
    Column,
    Columns,
    Table,
    count_columns,
)
from tidegate.pipelines.project.progress import Teller
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.rendering import spelled
from tidegate.pipelines.run.backfill import IntervalRun, reason_to_run, rerun_stale
from tidegate.pipelines.run.backfill import backfill as run
from tidegate.pipelines.run.backfill import end_of_input as end_input
from tidegate.pipelines.run.backfill import replay as run_replay
from tidegate.pipelines.run.drive import Patience, drive
from tidegate.pipelines.run.epoch_log import line_of, rate
from tidegate.pipelines.run.intervals import cut, cut_gap, describe, show
from tidegate.pipelines.run.preview import Preview, preview_change
from tidegate.pipelines.run.rerun import IntervalHistory
from tidegate.pipelines.sources.open_source import check_sources_exist
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.compute import Windows
from tidegate.windowing.time import Millis, show_millis, show_watermark, to_millis

_SHOWN = 20
"""Largest number of intervals that a preview shows as text."""

_AGAIN = "would run again"
_UNCHANGED = "unchanged: would not run again"


@dataclass(frozen=True, slots=True)
class Span:
    """The event times of a backfill.

    Args:
        start: its first event time; None, together with `end`, if no span is given.
        end: end of its event times, exclusive.
        length: length of the slices; None for one slice.
        fill_gaps: True to first run the intervals that are missing before `start`.

    Raises:
        UsageError: only one of the two is given.
    """

    start: datetime | None = None
    end: datetime | None = None
    length: relativedelta | None = None
    fill_gaps: bool = False

    def __post_init__(self) -> None:
        if (self.start is None) != (self.end is None):
            raise _no_span()

    def intervals(self, config: Config, pipeline: str) -> list[Interval]:
        """Return the intervals, including those that are missing before them."""
        if self.start is None or self.end is None:
            return []
        # Days and months are those of the pipeline's calendar, whatever zone the start was given in.
        intervals = list(cut(self.start.astimezone(config.entry(pipeline).clock), self.end, self.length))
        _check_start(config, pipeline, self.start, self.fill_gaps)
        missing = _missing(config, pipeline, intervals[0], self.length) if self.fill_gaps else []
        return [*missing, *intervals]


@dataclass(frozen=True, slots=True)
class BackfillRun:
    """The outcome of one interval of a backfill.

    Args:
        interval: the interval, int64 epoch milliseconds.
        state: `done`, or `unchanged` if it was run before and nothing has changed.
        epoch: epoch of the snapshot at the end of the interval.
        corrected: epoch that corrected windows before this run because rows of the source had changed; None if there is
            none.
        counters: counters of the epoch.
        seconds: how long it took.
    """

    interval: Interval
    state: Literal["done", "unchanged"]
    epoch: int
    corrected: int | None
    counters: dict[str, int]
    seconds: float

    @property
    def shown_state(self) -> str:
        """The state as text. An interval that did not run again may still have had windows corrected."""
        if self.state == "done" or self.corrected is None:
            return self.state
        return f"not run again; epoch {self.corrected} corrected windows"


def _by_calendar(columns: Columns, zone: tzinfo) -> Columns:
    """Return the columns with one that prints intervals by the calendar of a pipeline."""
    return tuple(
        replace(column, text=lambda row: describe(row.interval, zone)) if column.name == "interval" else column
        for column in columns
    )


@dataclass(frozen=True, slots=True)
class Backfilled(Facts):
    """The outcome of a backfill.

    Args:
        epoch: its newest epoch; None if no interval was given.
        runs: the intervals.
        zone: time zone of the pipeline's calendar.
    """

    pipeline: str
    epoch: int | None
    runs: tuple[BackfillRun, ...]
    zone: tzinfo = UTC

    facts: ClassVar[Columns] = (Column("pipeline", TEXT), Column("epoch", NUMBER))
    holds: ClassVar[Mapping[str, Columns]] = {
        "runs": (
            Column("interval", OBJECT),
            Column("state", TEXT, text=lambda run: run.shown_state),
            Column("epoch", NUMBER),
            Column("corrected", NUMBER, ""),
            *count_columns(lambda run: run.counters),
            Column("seconds", SECONDS),
            Column("counters", OBJECT, ""),
        )
    }

    def tables(self) -> Iterator[Table]:
        yield Table("runs", _by_calendar(self.holds["runs"], self.zone), self.runs, self.pipeline)


@dataclass(frozen=True, slots=True)
class BackfillOptions:
    """How a backfill runs.

    Args:
        and_following: True to also rerun the later intervals after an interval that was rerun.
        again: True to run an interval again even if its rows and the code seem unchanged.
        end_of_input: True to end event time after the last interval.
        patience: seconds to wait for another running backfill.
    """

    and_following: bool = False
    again: bool = False
    end_of_input: bool = False
    patience: float = 0.0


def backfill(config: Config, pipeline: str, span: Span, options: BackfillOptions, teller: Teller) -> Backfilled:
    value = load_pipeline(config, pipeline)
    intervals = span.intervals(config, pipeline)
    if not intervals and not options.end_of_input:
        raise _no_span()
    require_engine(config, "a backfill")
    check_first_run(config, value, teller)
    runs: list[BackfillRun] = []
    zone = config.entry(pipeline).clock
    wait = Patience(options.patience, "backfill", teller.say)
    with drive(config, value, "backfill", wait=wait, observe=measured) as driver:
        driver.tell = teller.step
        began = perf_counter()
        for done in run(driver, intervals, options.and_following, options.again):
            runs.append(_reported(done, round(perf_counter() - began, 2), value, zone, teller))
            began = perf_counter()
        if (rerun := rerun_stale(driver)) is not None:
            teller.say(
                f"the intervals that follow are stale, and their results hidden, until they run again: {spelled(rerun)}"
            )
        if options.end_of_input:
            teller.say(_ended(pipeline, end_input(driver)))
    # An unchanged interval has an old epoch; the correction before it has a new one.
    epochs = [epoch for each in runs for epoch in (each.epoch, each.corrected) if epoch is not None]
    return Backfilled(pipeline, max(epochs, default=None), tuple(runs), zone)


def _reported(done: IntervalRun, seconds: float, pipeline: Pipeline, zone: tzinfo, teller: Teller) -> BackfillRun:
    """Report an interval, and return its outcome."""
    if done.corrected is not None:
        teller.say(
            f"rows of the source changed  corrected  epoch {done.corrected.epoch}: {corrected(done.corrected)}",
            line_of(done.corrected, {}),
        )
    epoch, counters = done.manifest.epoch, done.manifest.counters
    correction = None if done.corrected is None else done.corrected.epoch
    answer = BackfillRun(done.interval, done.state, epoch, correction, counters, seconds)
    interval = describe(done.interval, zone)
    teller.say(
        f"{interval}  {answer.shown_state}  epoch {epoch}: {read(pipeline, counters)}, "
        f"{counters['open_windows']} open, {seconds} s, {rate(counters['events_in'], seconds) or 0} rows/s",
        line_of(done.manifest, {"interval": seconds}) | {"interval": interval, "state": done.state},
    )
    return answer


def _ended(pipeline: str, manifest: Manifest | None) -> str:
    if manifest is None:
        return f"{pipeline}: its input has already ended"
    return (
        f"end of input  done  epoch {manifest.epoch}: {fired(manifest.counters)} fired, "
        f"{manifest.counters['open_windows']} open"
    )


def corrected(manifest: Manifest) -> str:
    """Describe a correction: the rows that were deleted and added, and the panes that it published."""
    counters = manifest.counters
    return (
        f"{counters[ROWS_DELETED]} deleted ({counters[DELETED_IN_WINDOWS]} from windows), "
        f"{counters['events_in']} added ({filtered(counters)} filtered), "
        f"{counters[RETRACTED]} retracted, {fired(counters)} fired"
    )


def read(pipeline: Pipeline, counters: dict[str, int]) -> str:
    """Describe what an epoch read and what it emitted; unusable rows are named only if there are some."""
    rejected = f"{counters['rejected']} rejected, " if counters["rejected"] else ""
    return f"{counters['events_in']} in, {counters['late']} late, {rejected}{emitted_text(pipeline, counters)}"


def emitted_text(pipeline: Pipeline, counters: dict[str, int]) -> str:
    """Describe what an epoch emitted: windows that fired, or rows of a process function or join."""
    if isinstance(pipeline.compute, Windows):
        return f"{fired(counters)} fired"
    return f"{counters.get(ROWS_OUT, '-')} rows emitted"


def check_first_run(config: Config, pipeline: Pipeline, teller: Teller) -> None:
    """Refuse the first run of a pipeline whose source does not exist, before Spark is started.

    Later runs first publish any unpublished epochs, which needs no source. A first run names tables that may belong to
    the pipeline under a name that it had in the code before.
    """
    config.make_folders()
    warehouse, name = warehouse_of(config), pipeline.name
    if PipelineTables(warehouse, name).exist:
        return
    check_sources_exist(pipeline, warehouse)
    # Pipelines in code often read the same source, each from its own notebook.
    for old in [] if config.values else _unknown_with_source(config, warehouse, pipeline.source.table):
        teller.say(
            f"{name} starts from scratch. The warehouse has tables of {old!r}, which reads the same source and which "
            f"{config.file_name} does not have. If {name} should continue from it, stop, "
            f"remove the folder of {name}, and run {spelled(Remedy(Act.RESTORE_FROM, name, old))}"
        )


def _unknown_with_source(config: Config, warehouse: Warehouse, source: str) -> Iterator[str]:
    """Yield the pipelines of a warehouse that read a source and that the project does not have."""
    for name in warehouse.folders(warehouse.uri):
        if name in config.declared:
            continue
        with suppress(Refused):
            head = read_snapshot(PipelineTables(warehouse, name))
            if head is not None and source in head.manifest.positions:
                yield name


def _no_span() -> UsageError:
    return UsageError(
        "say which event times to run: give --start and --end, such as --start 2013-01-01; in "
        "Airflow, the Params interval_start and interval_end"
    )


def _missing(config: Config, pipeline: str, first: Interval, length: relativedelta | None) -> list[Interval]:
    """Return the intervals between the last one that was run and this one, or none if a stream has taken over."""
    head, entry = read_snapshot(PipelineTables.of(config, pipeline)), config.entry(pipeline)
    if head is None:
        return [] if entry.start == ANY_START else cut_gap(to_millis(entry.start), first, length, entry.clock)
    # All inputs of a backfill are at the same event time.
    frontier = next(iter(head.manifest.positions.values())).frontier
    return [] if frontier is None else cut_gap(frontier, first, length, entry.clock)


def _check_start(config: Config, pipeline: str, first: datetime, fill_gaps: bool) -> None:
    """Refuse a first run that begins before or after the pipeline's `start`: rows between them would be lost."""
    begins = config.entry(pipeline).start
    if begins == ANY_START:
        return
    ways = f"`start` of pipelines.{pipeline} in {config.file_name}"
    if first < begins:
        raise UsageError(
            f"--start {show(first)} is before {show(begins)}, the start of {pipeline}: begin at the "
            f"start, or set an earlier {ways}"
        )
    if first > begins and not fill_gaps and read_snapshot(PipelineTables.of(config, pipeline)) is None:
        raise Refused(
            f"--start {show(first)}: {pipeline} starts at {show(begins)} and has never run, so the rows "
            f"between these times would be lost. Begin at {show_millis(to_millis(begins))}, run the intervals in "
            f"between with --fill-gaps, or set a later {ways}"
        )


@dataclass(frozen=True, slots=True)
class ReplayedEpoch:
    """An epoch of a replay.

    Args:
        epoch: its number.
        watermark: its watermark, int64 epoch milliseconds.
        counters: its counters.
    """

    epoch: int
    watermark: Millis
    counters: dict[str, int]


@dataclass(frozen=True, slots=True)
class Replayed(Facts):
    """The outcome of a replay.

    Args:
        epochs: its epochs.
    """

    pipeline: str
    epochs: tuple[ReplayedEpoch, ...]

    facts: ClassVar[Columns] = (Column("pipeline", TEXT),)
    holds: ClassVar[Mapping[str, Columns]] = {
        "epochs": (
            Column("epoch", NUMBER),
            Column("watermark", WATERMARK),
            *count_columns(lambda epoch: epoch.counters),
            Column("counters", OBJECT, ""),
        )
    }
    says: ClassVar[str] = "{pipeline}: every source commit is replayed"


def replay(config: Config, pipeline: str, commits_per_epoch: int | None, teller: Teller) -> Replayed:
    value = load_pipeline(config, pipeline)
    require_engine(config, "a backfill")
    check_first_run(config, value, teller)
    epochs: list[ReplayedEpoch] = []
    with drive(config, value, "backfill", observe=measured) as driver:
        driver.tell = teller.step
        for manifest in run_replay(driver, commits_per_epoch):
            epochs.append(ReplayedEpoch(manifest.epoch, manifest.watermark, manifest.counters))
            teller.say(
                f"epoch {manifest.epoch}: {read(value, manifest.counters)}, {manifest.counters['open_windows']} open, "
                f"watermark {show_watermark(manifest.watermark)}",
                line_of(manifest, driver.times.newest),
            )
    return Replayed(pipeline, tuple(epochs))


@dataclass(frozen=True, slots=True)
class PlannedInterval:
    """An interval of a backfill, and what a run would do with it."""

    interval: Interval
    state: str


@dataclass(frozen=True, slots=True)
class BackfillPlan(Facts):
    """The plan of a backfill.

    Args:
        planned: the intervals, each with a description of what a run would do.
        changes: intervals whose rows changed in the source, which would be corrected first; None if nothing changed.
        zone: time zone of the pipeline's calendar.
    """

    pipeline: str
    planned: tuple[PlannedInterval, ...]
    changes: Preview | None
    zone: tzinfo = UTC

    facts: ClassVar[Columns] = (
        Column("pipeline", TEXT),
        Column("versions", OBJECT, value=lambda plan: () if plan.changes is None else plan.changes.versions),
        Column("by_change_feed", YES_NO, value=lambda plan: plan.changes is not None and plan.changes.by_feed),
    )
    holds: ClassVar[Mapping[str, Columns]] = {
        "planned": (Column("interval", OBJECT), Column("state", TEXT)),
        "changed": (Column("interval", OBJECT), Column("deleted", COUNT), Column("added", COUNT)),
    }

    def tables(self) -> Iterator[Table]:
        yield Table("planned", _by_calendar(self.holds["planned"], self.zone), self.planned, self.pipeline)
        changed = () if self.changes is None else self.changes.intervals
        title = f"would be corrected first ({min(len(changed), _SHOWN)} of {len(changed)} intervals)"
        columns = _by_calendar(self.holds["changed"], self.zone)
        yield Table("changed", columns, changed, title, _SHOWN, is_shown=self.changes is not None)

    def lines(self) -> Iterator[str]:
        if (changes := self.changes) is not None:
            versions = ", ".join(map(str, changes.versions))
            yield (
                f"rows of the source changed in version {versions}: their windows would be corrected first, in one "
                "epoch"
            )
            yield f"the changes are read from {'the change feed' if changes.by_feed else 'a comparison of files'}"


@dataclass(frozen=True)
class _RanBefore:
    """What a backfill would do with intervals that were run before.

    Args:
        source: the source; None if only Spark can read it, so that its rows are not compared.
        history: the runs that led to the newest snapshot.
    """

    source: OpenInput | None
    history: IntervalHistory

    @classmethod
    def of(cls, config: Config, pipeline: Pipeline, head: Snapshot) -> _RanBefore:
        tables = PipelineTables.of(config, pipeline.name)
        source: OpenInput | None = None
        with suppress(Refused):
            source = OpenInput.open(LocalEngine.of(config), tables, pipeline)
        return cls(source, IntervalHistory.of(tables, head))

    def state(self, interval: Interval) -> str:
        try:
            run, _ = self.history.find(interval)
            if (snapshot := self.history.snapshot_of(run)) is None:
                raise self.history.unknown(run)
            if self.source is None:
                return "run before: would be compared with Spark, and run again if anything changed"
            reason = reason_to_run(self.source, snapshot, interval, run.corrected)
        except Refused as error:
            return f"refused: {error}"
        return _UNCHANGED if reason is None else f"{_AGAIN}: {reason}"


def plan_backfill(config: Config, pipeline: str, span: Span, again: bool) -> BackfillPlan:
    value = load_pipeline(config, pipeline)
    intervals = span.intervals(config, pipeline)
    if not intervals:
        raise _no_span()
    check_sources_exist(value, warehouse_of(config))
    choices_of_source(config, value)
    head = read_snapshot(PipelineTables.of(config, pipeline))
    position = None if head is None else next(iter(head.manifest.positions.values()))
    stands = None if position is None else position.frontier
    planned: list[PlannedInterval] = []
    ran_before = None if head is None or again else _RanBefore.of(config, value, head)
    for interval in intervals:
        if position is not None and position.frontier is None:
            state = "refused: a stream has taken over"
        elif stands is None or interval.start == stands:
            state, stands = "would run", interval.end
        elif interval.start > stands:
            state = "refused: there is a gap before it, which --fill-gaps runs"
        else:
            state = _AGAIN if ran_before is None else ran_before.state(interval)
            # A run makes all later intervals stale.
            if planned and planned[-1].state.startswith(_AGAIN) and state == _UNCHANGED:
                state = f"{_AGAIN}: an interval before it would"
        planned.append(PlannedInterval(interval, state))
    return BackfillPlan(pipeline, tuple(planned), preview_change(config, value), config.entry(pipeline).clock)

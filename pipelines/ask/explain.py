"""The explanation of a pipeline: its operator, what reads its source, and the steps of an epoch, with their reasons.

It is derived from the pipeline and its source's log, without Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum, auto
from typing import ClassVar, Self

from tidegate.pipelines.definition.binding import check_windows, no_windows
from tidegate.pipelines.definition.config import Config, EngineName
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.pipeline import Input, Pipeline, operator_of
from tidegate.pipelines.engine.local import needs_spark
from tidegate.pipelines.epoch.open_input import bind_to_source, choices_of
from tidegate.pipelines.epoch.plan import BYTES_PER_SHARD, ROWS_PER_SHARD
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.answer import Facts
from tidegate.pipelines.observe.report.columns import NAMES, NUMBER, OBJECT, TEXT, Column, Columns, Table
from tidegate.pipelines.remedy import Remedy
from tidegate.pipelines.rendering import sentence
from tidegate.pipelines.run.backfill import ways_to_backfill
from tidegate.pipelines.sources.base import MissingSource
from tidegate.pipelines.sources.choose_reader import ReaderChoice, asks_for_spark
from tidegate.pipelines.sources.open_source import missing_sources, open_source, sources_of_panes
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.aggregates import AggregateColumns
from tidegate.windowing.columnar import OperatorChoice, stays_single
from tidegate.windowing.columnar.plan import early_interval
from tidegate.windowing.columnar.slices import Slicing
from tidegate.windowing.compute import Compute, CoProcess, IntervalJoin, Join, KeyedProcess, WindowJoin, Windows
from tidegate.windowing.time import show_length


class NoteKind(StrEnum):
    """What a note of an explanation is about."""

    BACKFILL_HAS_RUN = auto()
    STREAM_HAS_TAKEN_OVER = auto()
    CATCHUP = auto()
    DERIVED_TIME = auto()
    NO_STATISTICS = auto()


_NOTES: Mapping[NoteKind, str] = {
    NoteKind.BACKFILL_HAS_RUN: "a backfill has run, up to epoch {epoch}. The first run of a stream continues after "
    "that epoch and takes over for good: pause {pipeline}__backfill before you unpause {pipeline}__stream",
    NoteKind.STREAM_HAS_TAKEN_OVER: "a stream has taken over, at epoch {epoch}: intervals of a backfill are refused, "
    "so pause {pipeline}__backfill. To backfill again, {ways}",
    NoteKind.CATCHUP: "catchup = true lets Airflow backfill every interval since start. A stream takes over for good: "
    "from the first run of {pipeline}__stream on, each later backfill run is refused (exit code 3). Use one of the "
    "two, or set catchup = false",
    NoteKind.DERIVED_TIME: "each slice of a backfill, and each reopening, reads every file of {source}: event time "
    "{timestamp} is derived in columns=, and files have statistics only of stored columns. Store the time in a column "
    "of the table (Delta can generate it) and name that column in the source's timestamp=, or use fewer, longer "
    "slices (--slice)",
    NoteKind.NO_STATISTICS: "each slice of a backfill, and each reopening, reads {without} of the {files} files of "
    "{source}, whatever their times: the log has no statistics of column {timestamp} for them. Let the writer collect "
    "them: move the column among the first 32, or name it in the table property delta.dataSkippingStatsColumns",
}


@dataclass(frozen=True, slots=True)
class Note:
    """A remark on the settings of a pipeline. `str` puts it into words.

    Args:
        kind: what it is about.
        pipeline: name of the pipeline.
        epoch: newest epoch; None if the note is not about the runs.
        source: the source table; None if the note is not about a source.
        timestamp: its column of event times; None where `source` is.
        files: number of its files; None if all are read.
        without: number of its files without statistics of that column; None if all are read.
        remedies: what the user can do.
    """

    kind: NoteKind
    pipeline: str
    epoch: int | None = None
    source: str | None = None
    timestamp: str | None = None
    files: int | None = None
    without: int | None = None
    remedies: tuple[Remedy, ...] = ()

    def __str__(self) -> str:
        ways = sentence(self.remedies)
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return _NOTES[self.kind].format(**given, ways=f"{ways[:1].lower()}{ways[1:]}")


@dataclass(frozen=True, slots=True)
class Explained(Facts):
    """How a pipeline runs.

    Args:
        explanation: the operator, the order of events, and the steps of an epoch.
        missing: a message for each source table that does not exist.
        of_panes: sources that are tables of panes, in which retractions count as rows too.
        notes: remarks on the settings.
    """

    explanation: Explanation
    missing: dict[str, str]
    of_panes: tuple[str, ...]
    notes: tuple[Note, ...]

    facts: ClassVar[Columns] = (
        Column("pipeline", TEXT, value=lambda it: it.explanation.pipeline),
        Column("engine", TEXT, value=lambda it: it.explanation.engine),
        Column("operator", OBJECT, value=lambda it: _operator(it.explanation.operator)),
        Column("order", TEXT, value=lambda it: it.explanation.order),
        Column("missing_tables", NAMES, value=lambda it: [*it.missing]),
        Column("tables_of_panes", NAMES, value=lambda it: it.of_panes),
        Column("notes", OBJECT),
    )
    holds: ClassVar[Mapping[str, Columns]] = {
        "steps": (Column("number", NUMBER, "step"), Column("where", TEXT), Column("does", TEXT, "what"))
    }

    def tables(self) -> Iterator[Table]:
        steps = [
            {"number": number, "where": step.where, "does": step.does}
            for number, step in enumerate(self.explanation.steps, 1)
        ]
        yield Table("steps", self.holds["steps"], steps, "an epoch")

    def require(self) -> Self:
        """Return this explanation, provided that its columns were checked.

        Raises:
            Refused: a source does not exist, so the columns could not be checked.
        """
        if self.missing:
            raise Refused(
                f"{self.explanation.pipeline}: no source table at {', '.join(self.missing)}, so no run can begin"
            )
        return self

    def lines(self) -> Iterator[str]:
        explanation = self.explanation
        for message in self.missing.values():
            yield f"no column could be checked: {message}"
        for name in self.of_panes:
            yield (
                f"source {name} has a row for each pane of a window, and rows that retract panes: all of them count. "
                "Read table windows of that pipeline with changes='correct' instead"
            )
        operator = explanation.operator
        yield f"{explanation.pipeline} uses the {operator.name} operator: {operator.reason}"
        yield f"engine: {explanation.engine}"
        yield f"order: {explanation.order}"

    def remarks(self) -> Iterator[str]:
        yield from map(str, self.notes)


def _operator(choice: OperatorChoice) -> dict[str, str]:
    return {"name": choice.name, "reason": choice.reason}


def explain(config: Config, pipeline: str) -> Explained:
    value = load_pipeline(config, pipeline)
    check_windows(value, config.entry(pipeline).windows)
    explanation = explanation_of(value, choices_of_source(config, value), config.engine)
    warehouse = warehouse_of(config)
    notes = [*_of_runs(config, pipeline), *_unskippable(value, warehouse)]
    if config.entry(pipeline).catchup and not config.values:
        notes.append(Note(NoteKind.CATCHUP, pipeline))
    return Explained(
        explanation, dict(missing_sources(value, warehouse)), tuple(sources_of_panes(value, warehouse)), tuple(notes)
    )


def _unskippable(pipeline: Pipeline, warehouse: Warehouse) -> Iterator[Note]:
    """Yield a note for each source whose files can't be skipped by the bounds of their event times."""
    for part in pipeline.inputs:
        described = part.source
        source, timestamp = described.table, described.timestamp
        if described.timestamp in part.columns:
            yield Note(NoteKind.DERIVED_TIME, pipeline.name, None, source, timestamp)
            continue
        try:
            files = open_source(described, warehouse).active(described.timestamp)
        except MissingSource:
            continue
        without = sum(1 for file in files if file.rows != 0 and (file.oldest is None or file.newest is None))
        if without:
            yield Note(NoteKind.NO_STATISTICS, pipeline.name, None, source, timestamp, len(files), without)


def _of_runs(config: Config, pipeline: str) -> Iterator[Note]:
    """Yield a note about whether a backfill or a stream drives a pipeline; none before the first epoch."""
    tables = PipelineTables.of(config, pipeline)
    if (head := read_snapshot(tables)) is not None:
        epoch = head.manifest.epoch
        if head.manifest.driven_by == "backfill":
            yield Note(NoteKind.BACKFILL_HAS_RUN, pipeline, epoch)
        else:
            ways = tuple(ways_to_backfill(tables, head))
            yield Note(NoteKind.STREAM_HAS_TAKEN_OVER, pipeline, epoch, remedies=ways)


@dataclass(frozen=True, slots=True)
class Step:
    """One physical step of an epoch: the process that runs it, and its work."""

    where: str
    does: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a pipeline is run.

    Args:
        pipeline: its name.
        engine: engine that runs its tasks.
        operator: operator that its events go through, and the reason for it.
        order: a sentence that says whether results depend on the order of arrival.
        steps: the steps of an epoch, in order.
    """

    pipeline: str
    engine: EngineName
    operator: OperatorChoice
    order: str
    steps: tuple[Step, ...]


def explanation_of(
    pipeline: Pipeline, choices: Sequence[ReaderChoice] | None = None, engine: EngineName = "spark"
) -> Explanation:
    """Explain how a pipeline is run.

    `choices` says what reads each input. Without them there is no table yet, and both ways to read it are named.
    """
    choice = operator_of(pipeline)
    steps = tuple(_steps(pipeline, choice, choices, engine))
    return Explanation(pipeline.name, engine, choice, _order(pipeline.compute), steps)


def choices_of_source(config: Config, pipeline: Pipeline) -> list[ReaderChoice] | None:
    """Return what reads each input of a pipeline, by its table's log and without Spark; None if there is no table yet.

    Raises:
        Refused: a column that the pipeline names is missing, or its type is unsuitable (not checked if Spark evaluates
            one of `columns`, because only Spark knows its type); or an input needs Spark, and the engine is `local`.
    """
    try:
        choices = choices_of(config, pipeline)
    except MissingSource:
        return None
    if config.engine == "local":
        for part, choice in zip(pipeline.inputs, choices, strict=True):
            if choice.needs_spark:
                raise needs_spark(pipeline, part.source.table, choice)
    if all(choice.derived is not None for choice in choices):
        bind_to_source(config, pipeline)
    return choices


def _steps(
    pipeline: Pipeline, choice: OperatorChoice, choices: Sequence[ReaderChoice] | None, engine: EngineName
) -> list[Step]:
    return [
        Step(
            "driver", f"plan: the slice, the source's commits, the watermark before and after each{_merged(pipeline)}"
        ),
        *(Step("driver", _correcting(input_)) for input_ in pipeline.inputs if input_.corrects),
        *_reading(pipeline, choices, engine),
        *(
            Step("driver", _pass(input_))
            for input_ in pipeline.inputs
            if input_.watermark and input_.watermark.reads_events
        ),
        Step(
            "Python task",
            f"set aside rows with an unusable time{' or a null key' if pipeline.null_keys == 'reject' else ''} (table "
            "rejects)",
        ),
        Step("Python task", "read the state rows of the shard's key groups"),
        *(Step("Python task", text) for text in _operating(pipeline.compute, choice)),
        *(
            [
                Step(
                    "Python task",
                    "if your code raises an error for a row, set it aside (table rejects) and compute again",
                )
            ]
            if pipeline.on_error == "reject"
            else []
        ),
        Step("Python task", "write Parquet files of results, late and state; of state only if the shard changed"),
        Step("driver", "commit the state files, which is the snapshot; then publish results, late, rejects and epochs"),
        Step(
            "driver",
            no_windows(pipeline.compute)
            or "before epochs, bring table windows up to date with results, unless tidegate.toml has windows.enabled = "
            "false",
        ),
    ]


def _reading(pipeline: Pipeline, choices: Sequence[ReaderChoice] | None, engine: EngineName) -> list[Step]:
    """Return the steps that take the events to their shards."""
    least = "one shard a core" if pipeline.parallelism is None else f"{pipeline.parallelism} shards"
    shards = f"{least}, or more if a shard would exceed {ROWS_PER_SHARD:,} rows or {BYTES_PER_SHARD >> 20} MiB"
    group = f"key group, pmod(xxhash64(key), {pipeline.max_parallelism})"
    asked = [ReaderChoice(files_by_spark=asks_for_spark(input_)) for input_ in pipeline.inputs]
    steps = []
    for side, input_, choice in zip(("", "right."), pipeline.inputs, choices or asked, strict=False):
        if choice.files_by_spark is not None:
            steps.append(Step("Spark", f"{_scan(pipeline, input_, 'scan')} ({choice.files_by_spark})"))
            steps += _evaluating(choice, side)
            continue
        on_spark = f"it uses a feature or type of Delta that only Spark reads{_or_sql(input_, engine)}"
        unless = "; the table does not exist yet: " + (
            f"a run is refused if {on_spark}" if engine == "local" else f"Spark will read it if {on_spark}"
        )
        read = _scan(pipeline, input_, "read the files of")
        steps.append(Step("Python task", f"{read}{unless if choices is None else ''}"))
        if choice.sql_by_spark is not None:
            steps.append(Step("Spark", f"evaluate SQL over the columns that it needs ({choice.sql_by_spark})"))
        steps += _evaluating(choice, side)
    if pipeline.on_error == "stop" and stays_single(pipeline.compute) is None:
        steps.append(Step("Python task", "combine the rows of a key, window and commit, except rows that may be late"))
    moved = "leaves the packs in the work folder" if engine == "local" else "Spark moves the packs"
    if any(choice.needs_spark for choice in choices or asked):
        steps.append(Step("Python task", f"pack the rows by {group}; Spark moves the packs: {shards}"))
    else:
        steps.append(
            Step(
                "Python task",
                f"if there are few rows, every shard reads them (on one machine, only once) and keeps those of its "
                f"{group}; otherwise the reading task packs them by it, and {moved}: {shards}",
            )
        )
    if any(choice.files_by_spark is not None for choice in choices or asked):
        steps.append(Step("Spark", "keep all columns of rows that may be late"))
    if any(choice.files_by_spark is None for choice in choices or asked):
        steps.append(Step("Python task", "fetch all columns of late rows from their file"))
    return steps


def _evaluating(choice: ReaderChoice, side: str) -> Iterator[Step]:
    """Yield a step for each expression of an input: what evaluates it, and why."""
    for expression in choice.expressions:
        text = f"{side}{expression.field} = {_in_a_line(expression.text)}"
        if expression.reason is not None:
            yield Step("Spark", f"{text}: {expression.reason}")
        elif choice.needs_spark:
            yield Step("Spark", f"{text}: the input's rows pass through it anyway")
        else:
            yield Step("Python task", f"{text}: as Arrow compute, proven equal to Spark")


def _merged(pipeline: Pipeline) -> str:
    if pipeline.right is None:
        return ""
    return "; commits of both sources by commit time (left first if equal); the watermark is the smaller of the two"


def _correcting(input_: Input) -> str:
    return (
        f"if versions of {input_.source.table} changed rows (changes='correct'): find the rows that were removed and "
        "added, from the table's change feed if that is smaller, else by comparing files; recompute their windows, "
        "in a separate epoch"
    )


def _or_sql(input_: Input, engine: EngineName) -> str:
    if not input_.columns and input_.where is None:
        return ""
    unproven = "SQL that is not proven to give Spark's values as Arrow compute"
    return f", or {unproven}" if engine == "local" else f", and evaluate {unproven}"


def _scan(pipeline: Pipeline, input_: Input, verb: str) -> str:
    key = ", ".join(input_.key) or "none (all in one)"
    derived = f", derived {', '.join(input_.columns)}" if input_.columns else ""
    where = f", where {_in_a_line(input_.where)}" if input_.where else ""
    columns = f"{_used(pipeline, input_)}{derived}{where}"
    return f"{verb} {input_.source.table}: key {key}, time {input_.source.timestamp}, {columns}"


def _in_a_line(sql: str) -> str:
    return " ".join(sql.split())


def _pass(input_: Input) -> str:
    return f"in a stream: the events of {input_.source.table}, by commit and time, through your watermark generator"


def _operating(compute: Compute, choice: OperatorChoice) -> list[str]:
    if isinstance(compute, IntervalJoin):
        span = " to ".join(map(show_length, compute.bounds))
        return [
            "sort by commit and time; an element behind the watermark is late",
            f"join each other element with the elements of the other input with right - left from {span}",
            "as the watermark advances, remove elements that nothing can join any longer",
        ]
    if isinstance(compute, WindowJoin):
        return [
            "sort by commit and time; an element whose windows have all ended is late",
            f"keep the elements of each window of {type(compute.assigner).__name__}",
            f"when the watermark reaches the end of a window, emit its {compute.kind} join and remove the window",
        ]
    if isinstance(compute, KeyedProcess | CoProcess):
        states = ", ".join(state.name for state in compute.function.states()) or "none"
        elements = (
            "hold elements until the watermark reaches them; then pass each, by event time,"
            if compute.time_sorted
            else "sort by commit and time; pass each element"
        )
        return [
            f"{elements} through {type(compute.function).__name__}, then fire due timers",
            f"keep state ({states}), timers{' and waiting elements' if compute.time_sorted else ''} of each key",
        ]
    return _operating_windows(compute, choice)


def _operating_windows(windows: Windows, choice: OperatorChoice) -> list[str]:
    if not choice.columnar:
        return ["sort by commit and time; take each element through assigner, trigger and contents, then due timers"]
    functions = ", ".join(_names(windows))
    if windows.assigner.merges:
        return [
            "sort by key and time; cut into clusters of elements and open sessions that touch",
            f"reduce each cluster: {functions}",
            "row by row if a late element touches a session, or may touch one",
        ]
    if early_interval(windows) is not None:
        return [
            "sort by key and window; one group per commit, on time or late",
            f"reduce each group: {functions}; merge the groups of a window in order, up to each firing",
            "in a backfill in event order: take each element through assigner, trigger and contents, then due timers",
        ]
    if isinstance(choice.slicing, Slicing):
        return [
            f"sort by key and slice; reduce each group: {functions}",
            "merge the slices of each window that fires; windows share the merges",
        ]
    return [
        "sort by key and window; one group per pane: on time, or late by its commit",
        f"reduce each group: {functions}; merge the groups of a window in order",
    ]


def _names(windows: Windows) -> tuple[str, ...]:
    bound = windows.bound_aggregate
    return bound.names if isinstance(bound, AggregateColumns) else (type(bound).__name__,)


def _used(pipeline: Pipeline, input_: Input) -> str:
    compute = pipeline.compute
    if not isinstance(compute, Windows) or compute.reads_whole_elements or not isinstance(compute.aggregate, Mapping):
        return "all columns" if input_.uses is None else f"columns {', '.join(input_.uses)}"
    columns = {column for aggregate in compute.aggregate.values() for column in aggregate.columns}
    gap = compute.assigner.column_of_gaps
    return f"columns {', '.join(sorted(columns | ({gap} if gap else set()))) or 'none'}"


def _order(compute: Compute) -> str:
    """Describe whether a backfill gives the same results as the stream (docs/guide/pipelines.md)."""
    if isinstance(compute, Join):
        return "the result depends on the set of elements: a backfill gives the stream's pairs, except for late rows"
    if isinstance(compute, KeyedProcess | CoProcess) and compute.time_sorted:
        return (
            "elements wait for the watermark and are taken by event time: a backfill gives the stream's results, "
            "except for late rows"
        )
    reason = compute.order_shown_by if isinstance(compute, Windows) else "a process function with time_sorted=False"
    if reason is None:
        return (
            "the result depends on the set of a window's elements: a backfill gives the stream's final windows, except "
            "for late rows"
        )
    return f"the result depends on the order of arrival ({reason}): runs that read commits in order agree"

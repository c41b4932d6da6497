"""The size of a pipeline: time, memory and bytes of its epochs, predicted from its source's log and a sample of rows.

Nothing is run, and no JVM is started. The costs of an event, a window, a file and so on were measured by a benchmark
(`costs`); a short trial compares this machine with the one that measured them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import psutil

from tidegate.pipelines.ask.arrivals import Arrivals
from tidegate.pipelines.ask.costs import Workload, load_costs, seconds_of_trial
from tidegate.pipelines.ask.epoch_size import EpochSize, Predictor, shape_of
from tidegate.pipelines.ask.sample import HotKey, Sampled, sample_of
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.epoch.plan import cut_shards
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.answer import Facts
from tidegate.pipelines.observe.report.columns import (
    BYTES,
    COUNT,
    DURATION,
    NAMES,
    NUMERIC,
    OBJECT,
    PERCENT,
    SECONDS,
    TEXT,
    Column,
    Columns,
    Table,
)
from tidegate.pipelines.run.limits import DEFAULT_FILES, DEFAULT_ROWS
from tidegate.pipelines.sources.commits import SourceFile
from tidegate.windowing.compute import Windows
from tidegate.windowing.time import Millis, show_duration

_DAY, _HOUR = 86_400_000, 3_600_000
_MOST_SHARDS = 64
_WORTHWHILE = 0.9
"""Share of the present time of an epoch below which another number of shards is worth setting."""
_NEARLY = 0.9
"""Share of a window's life that a sample must cover for its windows to be counted without a remark."""
_SLICES = {"1mo": 30 * _DAY, "1w": 7 * _DAY, "1d": _DAY, "6h": 6 * _HOUR, "1h": _HOUR}


@dataclass(frozen=True, slots=True)
class SettingAdvice:
    """A setting to change, with its present value and the reason."""

    setting: str
    now: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Sized(Facts):
    """What a pipeline needs.

    Args:
        engine: engine of the project.
        files: number of files of the sources.
        rows: number of their rows, as far as it is recorded.
        source_bytes: bytes of these files, as far as they are recorded.
        days: event time that the files cover, in days; None if it is not recorded.
        sampled_rows: number of rows that were read.
        sampled_span: event time that they cover, milliseconds.
        commits_per_hour: how often the source gets a commit; None if the sample has fewer than two.
        keys: number of keys in the sample; None if they are not known.
        open_windows: estimated number of open windows; with sliding windows, of their slices. None if only a run can
            tell.
        state_bytes: bytes of the state's files; None with `open_windows`.
        busy: share of the time that the largest epochs of a stream would compute to keep up with the commits; None
            without `commits_per_hour`.
        measured: day on which the costs were measured, ISO 8601.
        machine: machine that measured them.
        slower: how many times as long as that machine this one takes for a short trial.
        epochs: what epochs of some sizes need.
        hot_keys: keys with at least 1 % of the sampled rows.
        settings: what to set.
        notes: remarks.
    """

    pipeline: str
    engine: str
    files: int
    rows: int
    source_bytes: int
    days: float | None
    sampled_rows: int
    sampled_span: Millis
    commits_per_hour: float | None
    keys: int | None
    open_windows: int | None
    state_bytes: int | None
    busy: float | None
    measured: str
    machine: str
    slower: float
    epochs: tuple[EpochSize, ...]
    hot_keys: tuple[HotKey, ...]
    settings: tuple[SettingAdvice, ...]
    notes: tuple[str, ...]

    facts: ClassVar[Columns] = (
        Column("pipeline", TEXT),
        Column("engine", TEXT),
        Column("files", COUNT),
        Column("rows", COUNT),
        Column("source_bytes", BYTES),
        Column("days", NUMERIC),
        Column("sampled_rows", COUNT),
        Column("sampled_span", DURATION),
        Column("commits_per_hour", NUMERIC),
        Column("keys", COUNT),
        Column("open_windows", COUNT),
        Column("state_bytes", BYTES),
        Column("busy", PERCENT),
        Column("measured", TEXT),
        Column("machine", TEXT),
        Column("slower", NUMERIC),
        Column("notes", NAMES),
    )
    holds: ClassVar[Mapping[str, Columns]] = {
        "epochs": (
            Column("kind", TEXT, ""),
            Column("epoch", TEXT, text=lambda epoch: f"{epoch.kind}: {epoch.epoch}"),
            Column("events", COUNT, text=lambda epoch: f"{epoch.events:,}"),
            Column("commits", COUNT, ""),
            Column("files", COUNT, text=lambda epoch: f"{epoch.files:,}"),
            Column("windows", COUNT, text=lambda epoch: f"{epoch.windows:,}"),
            Column("shards", COUNT),
            Column("processor_seconds", SECONDS, "processor s", text=lambda epoch: f"{epoch.processor_seconds:.2f}"),
            Column("seconds", SECONDS, text=lambda epoch: f"{epoch.seconds:.2f}"),
            Column("driver_bytes", BYTES, "memory", text=lambda epoch: _bytes(epoch.driver_bytes)),
            Column("process_bytes", BYTES, "a process", text=lambda epoch: _bytes(epoch.process_bytes)),
            Column("published_bytes", BYTES, "writes", text=lambda epoch: _bytes(epoch.published_bytes)),
        ),
        "hot_keys": (
            Column("key", OBJECT, text=lambda hot: ", ".join(hot.key)),
            Column("share", PERCENT, "share of the rows"),
        ),
        "settings": (
            Column("setting", TEXT),
            Column("now", TEXT),
            Column("value", TEXT, "set"),
            Column("reason", TEXT, "because"),
        ),
    }

    def tables(self) -> Iterator[Table]:
        for table in Facts.tables(self):
            yield replace(table, is_shown=bool(table.rows))

    def lines(self) -> Iterator[str]:
        days = "" if self.days is None else f", {self.days:.3g} days of event time"
        yield f"{self.pipeline}: {self.rows:,} rows in {self.files:,} files, {_bytes(self.source_bytes)}{days}"
        keys = "" if self.keys is None else f", {self.keys:,} keys"
        yield f"sample: the newest {self.sampled_rows:,} rows, {show_duration(self.sampled_span)} of event time{keys}"
        if self.open_windows is not None:
            yield f"state: {self.open_windows:,} open windows, {_bytes(self.state_bytes)}"
        if self.busy is not None:
            yield f"a stream of {self.commits_per_hour:.3g} commits an hour computes {self.busy:.1%} of the time"

    def remarks(self) -> Iterator[str]:
        yield from self.notes
        yield (
            f"costs: measured on {self.measured} on {self.machine}; this machine takes {self.slower:.2f} times as long "
            "for a short trial"
        )


def size(config: Config, pipeline: str, rows: int, memory: int | None) -> Sized:
    """Predict what the epochs of a pipeline need.

    Args:
        config: the project.
        pipeline: name of the pipeline.
        rows: number of rows to sample.
        memory: bytes that an epoch may use; None for the memory of this machine.

    Raises:
        Refused: rows can't be read without Spark, or only a run shows the watermarks.
    """
    value = load_pipeline(config, pipeline)
    arrivals = Arrivals.newest(config, value, rows)
    sampled, costs = sample_of(arrivals), load_costs()
    files = [file for part in arrivals.source.inputs for file in part.log.active(part.input.input.source.timestamp)]
    slower = seconds_of_trial() / costs.trial_seconds
    machine = Predictor(costs, slower, LocalEngine.of(config), value, sampled, shape_of(value), len(files))
    facts = _Facts.of(files)
    of_stream = list(_stream_epochs(machine))
    follows, most = of_stream[0], of_stream[-1]
    epochs = [each for each in (*of_stream, *_backfill_epochs(machine, facts)) if each.events]
    hourly = sampled.commits_per_hour
    budget = memory or psutil.virtual_memory().total
    busy = None if hourly is None else hourly / max(1, most.commits) * most.seconds / 3600
    return Sized(
        pipeline=pipeline,
        engine=config.engine,
        files=len(files),
        rows=facts.rows,
        source_bytes=facts.bytes,
        days=facts.days,
        sampled_rows=sampled.rows,
        sampled_span=sampled.span,
        commits_per_hour=hourly,
        keys=sampled.keys,
        open_windows=sampled.open,
        state_bytes=None if sampled.open is None else _state_bytes(config, machine, sampled.open),
        busy=busy,
        measured=costs.measured,
        machine=costs.machine,
        slower=slower,
        epochs=tuple(epochs),
        hot_keys=sampled.hot,
        settings=tuple(_settings(machine, facts, follows, budget)),
        notes=tuple(_notes(config, value, sampled, slower, busy)),
    )


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the log says of all files."""

    files: int
    rows: int
    bytes: int
    days: float | None

    @classmethod
    def of(cls, files: Sequence[SourceFile]) -> _Facts:
        bounds = [(file.oldest, file.newest) for file in files]
        known = [(oldest, newest) for oldest, newest in bounds if oldest is not None and newest is not None]
        span = max(newest for _, newest in known) - min(oldest for oldest, _ in known) if known else 0
        return cls(
            len(files),
            sum(file.rows or 0 for file in files),
            sum(file.size or 0 for file in files),
            span / _DAY if span else None,
        )


def _stream_epochs(machine: Predictor) -> Iterator[EpochSize]:
    """Yield an epoch of one commit, and the largest one that the default limits allow."""
    sampled = machine.sampled
    events, files = sampled.rows_per_commit, sampled.files_per_commit
    yield machine.epoch("each commit, as now", "stream", events, 1, files)
    if events:
        commits = max(1, min(DEFAULT_ROWS // events, DEFAULT_FILES // max(1, files)))
        yield machine.epoch("catching up, within the limits", "stream", commits * events, commits, commits * files)


def _backfill_epochs(machine: Predictor, facts: _Facts) -> Iterator[EpochSize]:
    if facts.days is not None and facts.days > 1:
        share = 1 / facts.days
        events, files = round(facts.rows * share), max(1, round(facts.files * share))
        yield machine.epoch("a day of event time", "backfill", events, 0, files)
    yield machine.epoch("the whole source", "backfill", facts.rows, 0, facts.files)


def _settings(machine: Predictor, facts: _Facts, follows: EpochSize, budget: int) -> Iterator[SettingAdvice]:
    """Yield what to set, with the reasons."""
    pipeline, sampled = machine.pipeline, machine.sampled
    if sampled.rows_per_commit:
        numbers = [1 << power for power in range(_MOST_SHARDS.bit_length()) if 1 << power <= pipeline.max_parallelism]
        tried = [
            machine.epoch("", "stream", follows.events, 1, follows.files, shards=number).seconds for number in numbers
        ]
        best = numbers[tried.index(min(tried))]
        if min(tried) < _WORTHWHILE * follows.seconds:
            yield SettingAdvice(
                "parallelism",
                str(pipeline.parallelism or f"{machine.engine.cores} (cores)"),
                str(best),
                f"an epoch of each commit would take {min(tried):.2f} s instead of {follows.seconds:.2f} s",
            )
    most = machine.largest("stream", budget)
    if most < DEFAULT_ROWS:
        yield SettingAdvice(
            "--max-rows-per-epoch",
            f"{DEFAULT_ROWS:,}",
            f"{most:,}",
            f"the largest epoch of a stream within {budget / 2**30:.3g} GiB",
        )
    if facts.days and facts.rows:
        most, per_milli = machine.largest("backfill", budget), facts.rows / (facts.days * _DAY)
        fitting = [name for name, length in _SLICES.items() if per_milli * length <= min(most, DEFAULT_ROWS)]
        if facts.rows > min(most, DEFAULT_ROWS):
            yield SettingAdvice(
                "--slice",
                "one epoch",
                fitting[0] if fitting else list(_SLICES)[-1],
                f"the longest slice with at most {min(most, DEFAULT_ROWS):,} rows",
            )
    needed = len(cut_shards(1, 1 << 30, 10 * (sampled.open or 0)))
    if needed > pipeline.max_parallelism:
        yield SettingAdvice(
            "max_parallelism",
            str(pipeline.max_parallelism),
            str(needed),
            "ten times the open windows need so many shards, and it can't be changed after the first epoch",
        )


def _notes(config: Config, pipeline: Pipeline, sampled: Sampled, slower: float, busy: float | None) -> Iterator[str]:
    if busy is not None and busy > 1:
        yield "a stream falls behind on this machine: use more cores, or the engine spark on a cluster"
    if sampled.unknown:
        yield f"open windows: {sampled.unknown}"
    if sampled.life is not None and sampled.span < _NEARLY * sampled.life:
        yield (
            f"the sample covers {show_duration(sampled.span)}, and a window stays open for "
            f"{show_duration(sampled.life)}: the number of windows is extrapolated. A larger --rows makes it more exact"
        )
    if sampled.share < 1:
        yield f"{100 * sampled.share:.3g} % of the rows of the newest commits were read"
    if config.engine == "spark":
        yield (
            "costs were measured on the local engine. Spark's tasks run the same code; add its JVM's heap, and its "
            "processor time for moving the rows"
        )
    if not isinstance(pipeline.compute, Windows):
        yield "the costs are those of windows: what the pipeline's own function does is not in them"
    if slower > 2 or slower < 0.5:
        yield f"this machine takes {slower:.1f} times as long as the one that measured the costs: expect larger errors"


def _state_bytes(config: Config, machine: Predictor, open_: int) -> int:
    """Return the bytes of the state, with bytes for each row as in the newest snapshot if there is one."""
    head = read_snapshot(PipelineTables.of(config, machine.pipeline.name))
    files = () if head is None else head.files
    rows: int = sum(file["num_records"] for file in files)
    stored: int = sum(file["size_bytes"] for file in files)
    if rows:
        return round(open_ * stored / rows)
    shards = machine.pipeline.parallelism or machine.engine.cores
    work = Workload(kind="stream", shape=machine.shape, events=0, windows=0, open=open_, shards=shards)
    return round(machine.costs.predict(work, "state"))


def _bytes(value: int | None) -> str:
    if value is None:
        return "-"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if value >= size:
            return f"{value / size:.1f} {unit}"
    return f"{value / 1024:.0f} KiB"

"""One epoch of a given size, measured in a process of its own: processor time, peak memory, bytes of its files."""

from __future__ import annotations

import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.events import START, names
from benchmarks.machine import processor_time
from benchmarks.memory import forget_peak, peak_of
from tests.hand_made import HandMade, column
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.ask.costs import RunKind, Shape, Workload, processes_of, seconds_of_trial
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.ledger.manifest import Interval, Manifest
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.project.project import Project
from tidegate.pipelines.run.backfill import backfill
from tidegate.pipelines.run.drive import drive
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import (
    Count,
    CountEvictor,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)

SPAN = 600_000
"""Event time of an epoch and of a window, milliseconds."""
BEGIN = START // SPAN * SPAN
LONG = timedelta(days=300)
"""Windows that stay open in all epochs."""
EPOCHS, _NOT_MEASURED = 5, 2
"""Epochs of a stream that are measured, and those before them: one opens windows, and one fires the first of them."""
_ROUNDS, _SMALL = 3, 100_000
"""Runs of a backfill with at most so many events. The shortest counts."""
_COLUMNS = [column("key", "string"), column("at", "timestamp"), column("value", "long")]


@dataclass(frozen=True)
class Trial:
    """The size of an epoch.

    Args:
        kind: `backfill` for one interval, `stream` for one of several epochs over the following commits.
        shape: what computes the windows.
        events: number of events of the epoch.
        keys: number of their keys, which have equally many events.
        files: number of files of each commit.
        commits: number of commits of the epoch.
        shards: number of shards.
        listed: number of further files of the table, outside of a backfill's interval.
        open: number of windows that stay open; 0 for windows that fire in the following epoch.
        partitions: number of values of `watermark_by`; 0 for a source without it.
    """

    kind: RunKind
    shape: Shape
    events: int
    keys: int
    files: int = 1
    commits: int = 1
    shards: int = 2
    listed: int = 0
    open: int = 0
    partitions: int = 0

    @property
    def work(self) -> Workload:
        """The size of the epoch, known before it runs."""
        processes = processes_of(LocalEngine(), self.shape, self.events, self.shards)
        windows = 0 if self.open else self.keys * (5 if self.shape == "sliding" else 1)
        return Workload(
            kind=self.kind,
            shape=self.shape,
            events=self.events,
            windows=windows,
            open=0 if self.kind == "backfill" else self.open or self.keys,
            files=self.files * (1 if self.kind == "backfill" else self.commits),
            commits=self.commits,
            listed=self.listed,
            shards=self.shards,
            processes=processes,
            started=processes if self.kind == "backfill" else 0,
        )


@dataclass(frozen=True)
class Seen:
    """What an epoch of a trial took. A stream's figures are the median of its measured epochs.

    Args:
        seconds: processor time of the epoch, of all processes.
        trial_seconds: processor time of `seconds_of_trial` next to it.
        driver: largest memory of the driver, bytes.
        process: largest memory of a process of the engine, bytes; 0 if the driver computed the epoch.
        processes: number of processes of the engine.
        windows: number of windows that fired.
        rows: number of rows of the state after the epoch.
        published: bytes of the files that the epoch added to the published tables.
        state: bytes of the state's files after the epoch.
    """

    seconds: float
    trial_seconds: float
    driver: int
    process: int
    processes: int
    windows: int
    rows: int
    published: int
    state: int


def run(trial: Trial, within: Path | None = None) -> Seen:
    """Measure a trial in a process of its own, which has imported everything before.

    Raises:
        RuntimeError: the process failed.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    answers, answer = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(trial, within, answer))
    process.start()
    # The other end is closed here, so that a process that ends without an answer closes the pipe.
    answer.close()
    try:
        return Seen(**answers.recv())
    except EOFError as error:
        raise RuntimeError(f"{trial} failed; its process has printed why") from error
    finally:
        process.join()


def _run(trial: Trial, within: Path | None, answer: Connection) -> None:
    with tempfile.TemporaryDirectory(dir=within) as folder:
        answer.send(asdict(measure(trial, Path(folder))))


@dataclass
class SourceTable:
    """The source of a trial, with commits of equal size that each follow the one before in event time."""

    folder: Path
    trial: Trial
    table: HandMade = field(init=False)

    def __post_init__(self) -> None:
        extra = [column("part", "string")] if self.trial.partitions else []
        self.table = HandMade(self.folder, [*_COLUMNS, *extra])

    def append(self, numbers: np.ndarray, since: int) -> None:
        """Commit an event for each of some key numbers, within a tenth of a window from `since` on."""
        times = since + np.arange(len(numbers)) * (SPAN // 10 // self.trial.commits) // max(1, len(numbers))
        parts = (np.array_split(each, self.trial.files) for each in (numbers, times))
        adds = [self._file(*both) for both in zip(*parts, strict=True)]
        self.table.commit(*adds, time=time.time_ns() // 1_000_000)

    def list(self, files: int) -> None:
        """Commit files whose events are long before the others; they are copies of one file."""
        add = self._file(np.arange(1), np.array([BEGIN - 10 * 86_400_000]))["add"]
        (self.folder / "old").mkdir()
        names = [f"old/part-{number}.parquet" for number in range(files)]
        for name in names:
            (self.folder / name).hardlink_to(self.folder / add["path"])
        self.table.commit(*({"add": {**add, "path": name}} for name in names))

    def _file(self, numbers: np.ndarray, times: np.ndarray) -> dict[str, Any]:
        columns = {
            "key": names(numbers),
            "at": pa.array(times * 1000).cast(pa.timestamp("us", tz="UTC")),
            "value": pa.array(numbers % 100),
        }
        if self.trial.partitions:
            columns["part"] = pc.cast(pa.array(numbers % self.trial.partitions), pa.string())
        action = self.table.file(pa.table(columns))
        bounds = (str(np.datetime64(int(each), "ms")) + "Z" for each in (times.min(), times.max()))
        statistics = dict(zip(("minValues", "maxValues"), ({"at": each} for each in bounds), strict=True))
        action["add"]["stats"] = json.dumps({"numRecords": len(times), **statistics, "nullCount": {"at": 0}})
        return action


def _windows(trial: Trial) -> Windows:
    size = LONG if trial.open else timedelta(milliseconds=SPAN)
    totals = {"events": Count(), "total": Sum("value")}
    if trial.shape == "session":
        return Windows(EventTimeSessionWindows.with_gap(size / 10), aggregate=totals)
    if trial.shape == "sliding":
        return Windows(SlidingEventTimeWindows.of(size, size / 5), aggregate=totals)
    evictor = CountEvictor(1_000_000) if trial.shape == "row" else None
    return Windows(TumblingEventTimeWindows.of(size), aggregate=totals, evictor=evictor)


def pipeline_of(trial: Trial, name: str) -> Pipeline:
    """Return the pipeline of a trial, with a source of its own."""
    return Pipeline(
        name=name,
        source=DeltaSource(f"events_{name}", timestamp="at"),
        key=("key",),
        watermark=WatermarkStrategy.for_bounded_out_of_orderness(timedelta(seconds=1)),
        watermark_by="part" if trial.partitions else None,
        compute=_windows(trial),
        parallelism=trial.shards,
        max_parallelism=max(trial.shards, 128),
    )


def measure(trial: Trial, folder: Path) -> Seen:
    """Measure a trial in this process, in an empty folder. A small backfill runs several times."""
    small = Trial(trial.kind, trial.shape, 100, 10, partitions=min(trial.partitions, 2))
    rounds = _ROUNDS if trial.kind == "backfill" and trial.events <= _SMALL else 1
    trials = {"warm": small, **{f"measured_{number}": trial for number in range(rounds)}}
    pipelines = {name: pipeline_of(each, name) for name, each in trials.items()}
    project = Project(warehouse=folder, work=folder / "work", pipelines=pipelines.values(), engine="local")
    engine = LocalEngine.of(project.config)
    try:
        _, *seen = (_measured(each, pipelines[name], project.config, engine, folder) for name, each in trials.items())
    finally:
        engine.close()
    # Other work of the machine only makes an epoch longer.
    return min(seen, key=lambda each: each.seconds / each.trial_seconds)


def _measured(trial: Trial, pipeline: Pipeline, config: Config, engine: LocalEngine, folder: Path) -> Seen:
    table = SourceTable(folder / pipeline.source.table, trial)
    for number, commit in enumerate(_commits(trial)):
        if not number and trial.listed:
            table.list(trial.listed)
        table.append(*commit)
    forget_peak()
    kind = trial.kind
    spent, published, manifests = list[float](), [_published(folder, pipeline.name)], list[Manifest]()
    before = seconds_of_trial()
    began = processor_time()

    def note(manifest: Manifest) -> None:
        nonlocal began
        spent.append(processor_time() - began)
        manifests.append(manifest)
        published.append(_published(folder, pipeline.name))
        if kind == "stream" and len(manifests) == _NOT_MEASURED:
            forget_peak()
        began = processor_time()

    with drive(config, pipeline, "sizes", engine) as driver:
        began = processor_time()
        if kind == "backfill":
            for each in backfill(driver, [Interval(start=BEGIN, end=BEGIN + SPAN)]):
                note(each.manifest)
        else:
            Stream(driver, note, EpochLimits(commits=trial.commits)).run_available()
    head = read_snapshot(PipelineTables.of(config, pipeline.name))
    assert head is not None
    skipped = 0 if kind == "backfill" else _NOT_MEASURED
    # A stream ends with an epoch of the clock, which has no events.
    spent, workers = spent[skipped : skipped + EPOCHS], _workers()
    return Seen(
        seconds=median(spent),
        trial_seconds=(before + seconds_of_trial()) / 2,
        driver=peak_of(),
        process=max((peak_of(each.pid) for each in workers), default=0),
        processes=len(workers),
        windows=manifests[-1].counters.get("fired_on_time", 0),
        rows=sum(file["num_records"] for file in head.files),
        published=sum(file.stat().st_size for file in published[skipped + len(spent)] - published[skipped])
        // len(spent),
        state=sum(file["size_bytes"] for file in head.files),
    )


def _commits(trial: Trial) -> Iterator[tuple[np.ndarray, int]]:
    """Yield the key numbers and the first event time of each commit. Each key has equally many events in an epoch."""
    numbers = np.arange(trial.events) % trial.keys
    if trial.kind == "backfill":
        yield numbers, BEGIN
        return
    epochs = EPOCHS + 2
    if trial.open:
        yield from ((each, BEGIN) for each in np.array_split(np.arange(trial.open), trial.commits))
        epochs -= 1
    for epoch in range(epochs):
        since = BEGIN + (epoch + 1) * SPAN
        for number, each in enumerate(np.array_split(numbers, trial.commits)):
            yield each, since + number * SPAN // 10 // trial.commits


def _published(warehouse: Path, name: str) -> set[Path]:
    """Return the data files of the published tables."""
    return {
        file
        for file in (warehouse / name).rglob("*.parquet")
        if not {"state", "_delta_log"}.intersection(file.relative_to(warehouse / name).parts)
    }


def _workers() -> Sequence[psutil.Process]:
    """Return the processes of the engine, without the helper that removes what they leave behind."""
    return [each for each in psutil.Process().children() if "popen_loky" in " ".join(each.cmdline())]

"""A stream of many epochs in this process: what each of them costs in calls, bytes and files. Seconds say little on a
machine that also does other work. Calls and bytes are reliable: whatever grows with the number of past epochs shows in
them first.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields
from datetime import timedelta
from pathlib import Path
from statistics import mean

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema

from tests.lake import DAY0, EVENTS, LOCAL, Lake, Row, _table, hourly_pipeline
from tidegate.pipelines import Pipeline
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, PipelineTables
from tidegate.pipelines.run.stream import Maintenance, Stream
from tidegate.pipelines.storage.warehouse import Warehouse

PIPELINE = hourly_pipeline(name="hours", allowed_lateness=timedelta(hours=2), parallelism=2, max_parallelism=8)

USERS = 5

_CALLS = ("exists", "open", "sizes", "names", "read_files", "write_parquet", "delete_file")
_COMMITS_PER_CHECKPOINT = 50


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one epoch, including its share of maintenance.

    Args:
        opened: number of opened Delta tables.
        calls: number of calls of the warehouse.
        system_calls: number of system calls that read or write.
        bytes: bytes read or written, including logs and checkpoints.
        files: files in the folders of the tables and of their logs, which are listed.
        checkpoints: bytes of the newest checkpoint of each table, which is read whenever the table is opened.
        seconds: wall time.
    """

    opened: float
    calls: float
    system_calls: float
    bytes: float
    files: float
    checkpoints: float
    seconds: float


def mean_of(costs: Sequence[Cost]) -> Cost:
    """Return the mean of each quantity."""
    return Cost(*(mean(values) for values in zip(*map(astuple, costs), strict=True)))


def growth(costs: Sequence[Cost]) -> dict[str, float]:
    """Return the last third compared with the middle third, for each quantity."""
    third = len(costs) // 3
    middle, last = mean_of(costs[third : 2 * third]), mean_of(costs[2 * third : 3 * third])
    return {one.name: getattr(last, one.name) / getattr(middle, one.name) for one in fields(Cost)}


def run_epochs(
    folder: Path,
    epochs: int,
    maintenance: Maintenance,
    pipeline: Pipeline = PIPELINE,
    on_epoch: Callable[[Cost], None] = lambda cost: None,
) -> list[Cost]:
    """Stream a source that gets a commit for each epoch, and return the cost of each epoch.

    Args:
        folder: folder for the warehouse.
        epochs: number of epochs.
        maintenance: maintenance of the tables.
        pipeline: a pipeline over the columns user, at and value.
        on_epoch: called with each cost.
    """
    lake, costs = Lake(folder), list[Cost]()
    source = Source(lake)
    meter = _Meter(PipelineTables(Warehouse(lake.config.warehouse_uri), pipeline.name))
    timer = [0.0]

    def pause(seconds: float) -> None:
        """The epoch and its maintenance are done; the next commit comes."""
        if timer[0]:
            costs.append(meter.end())
            on_epoch(costs[-1])
        timer[0] += seconds
        source.commit()
        meter.begin()

    source.commit()
    with (
        pytest.MonkeyPatch.context() as planted,
        meter.counting(planted),
        lake.driver(LOCAL, pipeline) as driver,  # type: ignore[arg-type]
    ):
        stream = Stream(driver, lambda manifest: None, maintenance=maintenance, pause=pause, timer=lambda: timer[0])
        stream.run_continuously(timedelta(seconds=1), lambda: len(costs) == epochs)
    return costs


class Source:
    """A source table that a test commits to by writing its log, which costs the same for each commit.

    Args:
        lake: lake of the table.
        rows: returns additional rows of a version.
    """

    def __init__(self, lake: Lake, rows: Callable[[int], list[Row]] = lambda version: []) -> None:
        self._lake, self._rows = lake, rows
        self._folder = Path(lake.path("events"))
        DeltaTable.create(str(self._folder), Schema.from_arrow(EVENTS))
        self._version = 0

    def commit(self) -> int:
        """Add a file of a few rows, one per hour and user, and return the table's version."""
        self._version += 1
        end = DAY0 + timedelta(minutes=20 * self._version)
        rows: list[Row] = [(f"user{number}", end, self._version) for number in range(USERS)]
        rows += self._rows(self._version)
        name = f"part-{uuid.uuid4().hex}.parquet"
        pq.write_table(_table(rows), self._folder / name)
        self._lake.clock.now += 20 * 60_000
        add = {
            "path": name,
            "partitionValues": {},
            "size": (self._folder / name).stat().st_size,
            "modificationTime": self._lake.clock(),
            "dataChange": True,
            "stats": json.dumps({"numRecords": len(rows)}),
        }
        info = {"timestamp": self._lake.clock(), "operation": "WRITE"}
        log = self._folder / "_delta_log"
        entry = "\n".join(map(json.dumps, ({"commitInfo": info}, {"add": add})))
        (log / f"{self._version:020d}.json").write_text(f"{entry}\n")
        if self._version % _COMMITS_PER_CHECKPOINT == 0:
            DeltaTable(str(self._folder)).create_checkpoint()
        return self._version


class _Meter:
    """Counts between two moments."""

    def __init__(self, tables: PipelineTables) -> None:
        self._tables = tables
        self._counts = {"opened": 0, "calls": 0}
        self._before = (0.0,) * 5

    @contextmanager
    def counting(self, planted: pytest.MonkeyPatch) -> Iterator[None]:
        """Count the calls of the warehouse in this context."""
        for name in _CALLS:
            planted.setattr(Warehouse, name, self._counted(name))
        yield

    def _counted(self, name: str) -> Callable[..., object]:
        known = getattr(Warehouse, name)

        def call(*arguments: object, **named: object) -> object:
            self._counts["calls"] += 1
            self._counts["opened"] += name == "open"
            return known(*arguments, **named)

        return call

    def begin(self) -> None:
        """The epoch begins."""
        self._before = self._now()

    def end(self) -> Cost:
        """End the epoch, and return its cost."""
        opened, calls, system_calls, amount, seconds = (
            now - before for now, before in zip(self._now(), self._before, strict=True)
        )
        return Cost(opened, calls, system_calls, amount, self._files(), self._checkpoints(), seconds)

    def _now(self) -> tuple[float, ...]:
        told = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
        calls, amount = (sum(int(told[name]) for name in names) for names in (("syscr", "syscw"), ("rchar", "wchar")))
        return self._counts["opened"], self._counts["calls"], calls, amount, time.perf_counter()

    def _checkpoints(self) -> int:
        logs = [Path(self._tables.path(table), "_delta_log") for table in ALL]
        newest = [max(log.glob("*.checkpoint.parquet"), default=None) for log in logs]
        return sum(file.stat().st_size for file in newest if file is not None)

    def _files(self) -> int:
        folders = [Path(self._tables.path(table)) for table in ALL]
        return sum(1 for folder in folders for one in (folder, folder / "_delta_log") for _ in one.iterdir())

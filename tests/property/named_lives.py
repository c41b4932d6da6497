"""Lives of pipelines whose columns have arbitrary names, and what each step leaves, by position instead of name. No JVM
runs.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from json import loads
from pathlib import Path
from types import ModuleType
from typing import Any

import duckdb
import pyarrow as pa
from deltalake import write_deltalake

from tests.expectations.broken import broken_by_rules
from tests.lake import LOCAL, Clock, Lake, at
from tidegate.expectations.pinned import pin
from tidegate.pipelines import DeltaSource, Pipeline
from tidegate.pipelines.correct.correct import reopen
from tidegate.pipelines.correct.request import Selection
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.head import state_rows
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED
from tidegate.pipelines.observe.report.run import read_run
from tidegate.pipelines.project.cli import run as tidegate
from tidegate.windowing import (
    Count,
    EventTimeSessionWindows,
    First,
    GapColumn,
    KeyedProcess,
    KeyedProcessFunction,
    SlidingEventTimeWindows,
    Sum,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    Windows,
)
from tidegate.windowing.assigners import WindowAssigner
from tidegate.windowing.compute import Compute
from tidegate.windowing.state import ValueStateDescriptor

UTC = pa.timestamp("us", tz="UTC")

KINDS: dict[str, list[Any]] = {
    "int": [1, 2, 3, 4, 5, 6, -1],
    "string": list("1234567"),
    "list": [[number] for number in range(7)],
    "decimal": [Decimal(number) for number in range(7)],
    "date": [date(2024, 3, number) for number in range(1, 8)],
    "timestamp": [at("01:00", number) for number in range(7)],
    "boolean": [number % 2 == 0 for number in range(7)],
}
"""Values of the columns that pipelines only keep, by type. Small numbers may be mistaken for those of epochs."""

TYPES = {
    "int": pa.int32(),
    "string": pa.string(),
    "list": pa.list_(pa.int64()),
    "decimal": pa.decimal128(9, 2),
    "date": pa.date32(),
    "timestamp": UTC,
    "boolean": pa.bool_(),
}

ASSIGNERS: dict[str, Callable[[Names], WindowAssigner]] = {
    "hours": lambda names: TumblingEventTimeWindows.of(3_600_000),
    "sliding": lambda names: SlidingEventTimeWindows.of(7_200_000, 3_600_000),
    "sessions": lambda names: EventTimeSessionWindows.with_dynamic_gap(GapColumn(names.gap)),
}
SHAPES = (*ASSIGNERS, "function")

Made = list[tuple[str, Any]]
Event = tuple[str | None, str | None, int]
"""Key, time and value."""


@dataclass(frozen=True)
class Names:
    """Names of the columns of the source, and of the results."""

    key: str = "key column"
    time: str = "time column"
    value: str = "value column"
    gap: str = "gap column"
    other: str = "other column"
    count: str = "count result"
    total: str = "total result"
    one: str = "one result"


class Totals(KeyedProcessFunction):
    """Emits the total so far with each element, and again ten minutes after it.

    Args:
        names: the names of columns and results.
        kind: the type of the other column.
    """

    def __init__(self, names: Names, kind: pa.DataType) -> None:
        self.names = names
        self.result_type = pa.struct([(names.total, pa.int64()), (names.one, kind), (names.count, pa.int64())])
        # State names must be valid in Python.
        self.total = ValueStateDescriptor(names.total if names.total.isidentifier() else "total_", pa.int64())
        self.one = ValueStateDescriptor(names.one if names.one.isidentifier() else "one_", kind)

    def states(self) -> list[Any]:
        return [self.total, self.one]

    def process_element(self, value: dict[str, Any], ctx: Any) -> list[dict[str, Any]]:
        total = ctx.get_state(self.total)
        total.update((total.value() or 0) + value[self.names.value])
        ctx.get_state(self.one).update(value[self.names.other])
        ctx.timer_service().register_event_time_timer(ctx.timestamp + 600_000)
        return self._result(ctx, 1)

    def on_timer(self, timestamp: int, ctx: Any) -> list[dict[str, Any]]:
        return self._result(ctx, 2)

    def _result(self, ctx: Any, count: int) -> list[dict[str, Any]]:
        total, one = ctx.get_state(self.total).value(), ctx.get_state(self.one).value()
        return [{self.names.total: total, self.names.one: one, self.names.count: count}]


def pipeline_of(names: Names, kind: str, shape: str) -> Pipeline:
    """Return windows that a change corrects, or a function."""
    compute: Compute
    if shape == "function":
        compute = KeyedProcess(Totals(names, TYPES[kind]), time_sorted=True)
    else:
        one = Count(names.other) if kind == "list" else First(names.other)
        aggregate = {names.count: Count(), names.total: Sum(names.value), names.one: one}
        lateness = timedelta(minutes=5 if shape == "sessions" else 0)
        compute = Windows(ASSIGNERS[shape](names), aggregate=aggregate, allowed_lateness=lateness)
    return Pipeline(
        name="named",
        source=DeltaSource("events", timestamp=names.time, changes="refuse" if shape == "function" else "correct"),
        key=(names.key,),
        watermark=WatermarkStrategy.for_monotonous_timestamps(),
        compute=compute,
        parallelism=2,
    )


@dataclass
class Life:
    """A pipeline over a source, and what was recorded of its tables.

    Args:
        folder: the folder of the project.
        names: the names of columns and results.
        kind: the type of the column that the pipeline only keeps.
        shape: the windows, or `function`.
    """

    folder: Path
    names: Names
    kind: str
    shape: str
    noted: Made = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lake = Lake(self.folder, Clock(1_800_000_000_000))
        self.pipeline = pipeline_of(self.names, self.kind, self.shape)
        self.tables = self.lake.tables(self.pipeline)
        module = ModuleType("module_of_a_named_life")
        module.pipeline = self.pipeline  # type: ignore[attr-defined]
        sys.modules[module.__name__] = module
        entry = f'[pipelines.named]\nobject = "{module.__name__}:pipeline"\nstart = "2024-03-01"\n'
        self.config = self.folder / "tidegate.toml"
        self.config.write_text(f'warehouse = "warehouse"\n{entry}')

    def rows(self, *events: Event) -> pa.Table:
        keys, times, values = zip(*events, strict=True)
        others = [KINDS[self.kind][value % 7] for value in values]
        return pa.table(
            {
                self.names.other: pa.array(others, TYPES[self.kind]),
                self.names.key: pa.array(keys, pa.string()),
                self.names.time: pa.array([time and at(time) for time in times], UTC),
                self.names.gap: pa.array([600_000] * len(events), pa.int64()),
                self.names.value: pa.array(values, pa.int64()),
            }
        )

    def read(self, *events: Event) -> None:
        """Append rows to the source, and run the stream over them."""
        self.lake.write(self.rows(*events))
        self.lake.stream(LOCAL, self.pipeline)

    def correct(self, *events: Event) -> None:
        """Replace the rows of the source, and run the stream over what that changed."""
        write_deltalake(self.lake.path("events"), self.rows(*events), mode="overwrite")
        self.lake.stream(LOCAL, self.pipeline)

    def reopen(self, *key: str) -> None:
        with self.lake.driver(LOCAL, self.pipeline) as driver:
            reopen(driver, Selection(key or None))

    def restore(self, epoch: int, keep_stale: bool = False) -> None:
        restore(self.tables, find_snapshot(self.tables, str(epoch)), self.lake.clock(), keep_stale)

    def forget(self, key: str) -> None:
        self.noted.append(("forgotten", forget(self.tables, self.pipeline, (key,), self.lake.clock())))

    def compact(self) -> None:
        for table in PUBLISHED:
            compact(self.tables, table)

    def note(self, step: str, with_rules: bool = True) -> None:
        """Record the rows of the tables, and the rules that they break."""
        for table in ("results", "late", "rejects"):
            self.noted.append((f"{step}: {table}", by_place(self.lake.rows(self.pipeline, table))))
        state = state_rows(self.tables.warehouse, self.lake.snapshot(self.pipeline))
        self.noted.append((f"{step}: state", by_place(state)))
        if with_rules:
            self.noted.append((f"{step}: broken", broken_by_rules(pin(self.tables, self.pipeline))))

    def look(self, step: str) -> None:
        """Record what the report has."""
        run = read_run(self.tables)
        self.noted.append((f"{step}: report", (run.open_by_key_group, sorted(run.lengths), run.key, run.timeline)))

    def ask(self, step: str) -> None:
        """Record what commands print, and what DuckDB returns for the queries that they print."""
        for view in ("final", "latest", "all"):
            rows = self.json("results", "named", "--view", view, "--limit", "0", "--sort", self.names.total)
            self.noted.append((f"{step}: results {view}", sorted(repr(list(row.values())) for row in rows)))
        query = self.json("tables", "query", "named", "--dialect", "duckdb")["sql"]
        self.noted.append((f"{step}: query", by_place(self._queried(query))))
        why = self.json("why", "named", "--limit", "0", "--key", "ann")
        windows = [(list(window.pop("key").values()), window) for window in why["windows"]]
        self.noted.append((f"{step}: why", (windows, why["last_fired"], why["late_rows"])))
        for column in self.lake.rows(self.pipeline, "late").column_names[:5]:
            groups = self.json("late", "summary", "named", "--by", column)["groups"] if column != self._list else []
            self.noted.append((f"{step}: late", sorted(repr(list(group.values())) for group in groups)))
        for arguments in (("snapshots", "show"), ("explain",), ("tables", "lineage")):
            self.json(*arguments, "named")
            self.said(*arguments, "named")

    @property
    def _list(self) -> str | None:
        """Name of the column whose values can't be counted."""
        return self.lake.rows(self.pipeline, "late").column_names[0] if self.kind == "list" else None

    def json(self, *arguments: str) -> Any:
        return loads(self.said(*arguments, "--json"))

    def said(self, *arguments: str) -> str:
        said = io.StringIO()
        with redirect_stdout(said):
            code = tidegate([*arguments, "--config", str(self.config)])
        assert code == 0, said.getvalue()
        return said.getvalue()

    def _queried(self, query: str) -> pa.Table:
        """Return the rows of a query; DuckDB's extension delta is not among the packages."""
        session = duckdb.connect()
        session.execute("SET TimeZone = 'UTC'")
        session.execute("CREATE MACRO delta_scan(path) AS TABLE FROM query_table(path)")
        for table in ("results", "epochs"):
            session.register(self.tables.path(table), self.lake.rows(self.pipeline, table))
        return session.execute(query).to_arrow_table()


def by_place(rows: pa.Table) -> list[str]:
    """Return the rows without the names of their columns, in an order that depends only on values."""
    return sorted(map(repr, zip(*(map(_bare, column.to_pylist()) for column in rows.columns), strict=True)))


def _bare(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.timestamp()
    return tuple(map(_bare, value.values())) if isinstance(value, dict) else value


def short_life(folder: Path, names: Names, kind: str, shape: str) -> Made:
    """Return the result of a stream that has rejected and late rows, and is restored."""
    life = Life(folder, names, kind, shape)
    life.read(("ann", "08:00", 1), ("bob", "08:10", 2), (None, "08:01", 5), ("ann", "10:00", 3))
    life.read(("ann", "08:05", 2), ("bob", "08:15", 3), ("cid", "11:30", 4))
    life.restore(1)
    life.read(("cid", "13:30", 6))
    life.note("read", with_rules=False)
    life.noted.append(("report", read_run(life.tables).lengths))
    return life.noted


def whole_life(folder: Path, names: Names, kind: str, shape: str) -> Made:
    """Return the result of a stream to which everything happens."""
    life, corrects = Life(folder, names, kind, shape), shape != "function"
    kept: list[Event] = [("ann", "08:00", 1), ("ann", "10:00", 3), (None, "08:02", 6)]
    life.read(*kept, ("bob", "08:10", 2), (None, "08:01", 5), ("bob", None, 6))
    more: list[Event] = [("ann", "08:05", 2), ("bob", "08:15", 3), ("ann", "08:07", 4), ("cid", "11:30", 4)]
    life.read(*more, ("bob", "08:15", 5))
    life.note("late")
    if corrects:
        life.reopen("ann")
    life.read(("ann", "13:30", 6), (None, "13:31", 2), ("bob", "10:00", 3))
    life.look("read")
    life.ask("read")
    if corrects:
        life.correct(*kept, *more, ("dan", "08:03", 1), ("ann", "13:30", 6), ("bob", "10:00", 3))
        life.note("corrected")
        life.reopen()
        life.note("reopened")
    newest = life.lake.snapshot(life.pipeline).manifest.epoch
    life.restore(2)
    life.note("restored")
    life.restore(newest, keep_stale=True)
    life.read(("bob", "15:30", 3), ("ann", "08:09", 3))
    life.compact()
    life.note("restored again")
    life.forget("bob")
    life.forget("bob")
    life.look("forgotten")
    life.ask("forgotten")
    life.note("forgotten")
    return life.noted

"""Run a whole Pipeline value over rows, in epochs that a test chooses, in this process and without Spark.

Binding, watermarks, the operator that the planner chooses, panes, tables and state rows are those of a real epoch. Only
reading the source and committing files are left out. Only rows and clocks are kept between epochs, so every epoch is a
restart.

>>> from datetime import timedelta
>>> import pyarrow as pa
>>> from tidegate import Count, DeltaSource, EventTimeSessionWindows, Pipeline, WatermarkStrategy, Windows
>>> visits = Pipeline(
...     name="visits",
...     source=DeltaSource("clicks", timestamp="at", unit="ms"),
...     key=("user",),
...     watermark=WatermarkStrategy.for_bounded_out_of_orderness(5),
...     compute=Windows(EventTimeSessionWindows.with_gap(10), aggregate={"clicks": Count()}),
... )
>>> harness = PipelineHarness(visits, pa.schema([("user", pa.string()), ("at", pa.int64())]))
>>> harness.commit([{"user": "ann", "at": 100}, {"user": "ann", "at": 108}], at=1000)
>>> harness.run()
>>> harness.commit([{"user": "bob", "at": 130}], at=2000)
>>> harness.run(parallelism=3)
>>> [(row["user"], row["clicks"]) for row in harness.final()]
[('ann', 2)]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import late, results, state
from tidegate.pipelines.definition.binding import bind_all
from tidegate.pipelines.definition.event_columns import DROPPED, OK
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.epoch.event_times import CommitStep, EventOrder, partitions_of, restored_times, watermarks_of
from tidegate.pipelines.epoch.job import ShardJob
from tidegate.pipelines.epoch.plan import cut_shards
from tidegate.pipelines.epoch.plan_commits import ReadCommit, in_steps, steps_of
from tidegate.pipelines.epoch.shard import run_operator
from tidegate.pipelines.ledger.manifest import PartitionWatermark, Shard
from tidegate.pipelines.project.harness_rows import (
    Derive,
    DeriveAll,
    Row,
    derive_by_sql,
    derive_each,
    event_millis,
    events_table,
    is_timely,
    joint,
    partition_of,
    seen_events,
    status,
)
from tidegate.pipelines.sources.commits import SourceCommit, in_order
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.columnar.slices import open_windows
from tidegate.windowing.compute import Windows
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.time import MIN_TIMESTAMP, Millis, to_millis
from tidegate.windowing.watermarks import EventTimes, SeenEvent


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """The source columns of a pipeline's second input.

    Args:
        source: columns of the table.
        derived: columns after `columns=`, if `derive` adds any.
        derive: a Python function that does what `columns` and `where` do, for SQL that only Spark evaluates.
    """

    source: pa.Schema
    derived: pa.Schema | None = None
    derive: Derive | None = None


@dataclass(frozen=True, slots=True)
class _Commit:
    """A source commit, or a part of one, that no epoch has read yet."""

    rows: Sequence[Row]
    time: Millis
    complete: bool


class PipelineHarness:
    """A pipeline whose source consists of the rows that a test commits.

    Args:
        pipeline: the pipeline.
        source: columns of the source table.
        derived: columns after `columns=`, if `derive` adds any.
        derive: a Python function that does what `columns` and `where` do; None evaluates them as tasks do.
        right: the columns of the second input, if there are two.

    Raises:
        IllegalArgument: an argument has another type; `right` is missing or superfluous; an expression of `columns` or
            `where` is left to Spark, and `derive` is missing; or binding refuses the pipeline.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        source: pa.Schema,
        derived: pa.Schema | None = None,
        derive: Derive | None = None,
        right: SourceColumns | None = None,
    ) -> None:
        sources = [SourceColumns(source, derived, derive), *([] if right is None else [right])]
        _check(pipeline, sources)
        self._derive: list[DeriveAll] = []
        schemas = []
        for input_, columns in zip(pipeline.inputs, sources, strict=True):
            schema = columns.derived or columns.source
            derive_all = derive_each(columns.derive)
            if columns.derive is None and (input_.columns or input_.where is not None):
                schema, derive_all = derive_by_sql(pipeline, input_, columns.source)
            self._derive.append(derive_all)
            schemas.append((columns.source, schema))
        self.bound = bind_all(pipeline, schemas)
        self._commits: list[list[_Commit]] = [[] for _ in sources]
        self._state: pa.Table = self.bound.table_schemas[state.NAME].empty_table().drop_columns(["manifest"])
        self._partitions: Mapping[str, PartitionWatermark] = {}
        self._inputs: Mapping[str, Millis] = {}
        self._is_half_read = False
        self._results: list[pa.Table] = [self.bound.table_schemas[results.NAME].empty_table()]
        self._late: list[pa.Table] = [self.bound.table_schemas[late.NAME].empty_table()]
        self._rejected: list[dict[str, Any]] = []
        self.counters: Counter[str] = Counter()
        self.watermark: Millis = MIN_TIMESTAMP
        self.clock: Millis = 0
        self.epochs = 0

    def commit(
        self, rows: Sequence[Row], at: datetime | Millis, complete: bool = True, side: str | None = None
    ) -> None:
        """Add a commit to the source.

        Args:
            rows: the rows, each a mapping; a missing source column is null.
            at: commit time; an int is epoch milliseconds.
            complete: False if the rest of the commit follows in the next call.
            side: `left` or `right` if there are two inputs.
        """
        number = self._number(side)
        self._commits[number].append(_Commit(self._whole(number, rows), _millis(at), complete))

    def run(self, parallelism: int = 1) -> None:
        """Run one epoch over the commits since the last one, on `parallelism` shards."""
        taken, self._commits = list(in_order(self._commits)), [[] for _ in self._commits]
        times = self._event_times()
        reads = []
        for number, commit in taken:
            # The rest of a commit does not start a new one.
            reads.append(
                ReadCommit(SourceCommit(0, commit.time, ()), (), int(self._is_half_read), commit.complete, number)
            )
            self._is_half_read = not commit.complete
        reads = list(in_steps(reads, times))
        usable: list[tuple[int, Millis, Row, Row]] = []
        largest: dict[int, dict[str, Millis]] = {}
        seen: dict[int, list[SeenEvent]] = {}
        for read, (number, commit) in zip(reads, taken, strict=True):
            input_ = self.bound.inputs[number]
            rows = list(zip(commit.rows, self._derive[number](commit.rows), strict=True))
            judged = self._evaluated(number, rows, commit.time)
            usable += [(read.step, time, *joint(self.bound, input_, row, derived)) for time, row, derived in judged]
            events = [(time, derived) for time, _, derived in judged]
            of_commit = largest.setdefault(read.step, {})
            for time, derived in [*events, *self._dropped(number, rows, commit.time)]:
                partition = partition_of(input_, derived)
                of_commit[partition] = max(of_commit.get(partition, time), time)
            seen[read.step] = seen_events(input_, read.step, events) if input_.reads_events else []
        self._epoch(usable, steps_of(reads, times, largest, lambda read: seen[read.step]), None, parallelism)
        self._keep(times)

    def pass_time(self, to: datetime | Millis, parallelism: int = 1) -> None:
        """Run a clock epoch, in which time advances without data. All commits must have been read."""
        times = self._event_times()
        clock = max(self.clock, _millis(to))
        self._epoch([], [CommitStep(clock, times.advance(clock))], None, parallelism)
        self._keep(times)

    def backfill(
        self,
        rows: Sequence[Row],
        start: datetime | Millis,
        end: datetime | Millis,
        now: datetime | Millis = 0,
        parallelism: int = 1,
        right: Sequence[Row] = (),
    ) -> None:
        """Run one interval in event order: the rows of a table (of two, with `right`) in `[start, end)`.

        A missing column of the source is null.

        Raises:
            IllegalArgument: the interval does not begin at the end of the previous one, or a row has a column that the
                source does not have.
        """
        order = EventOrder.of(self.bound.compute)
        begin, until = _millis(start), _millis(end)
        if self.epochs and begin - order.lag != self.watermark:
            raise IllegalArgument(
                "start", start, f"the previous run ended at {self.watermark + order.lag} ms: begin there"
            )
        self.watermark = begin - order.lag
        usable: list[tuple[int, Millis, Row, Row]] = []
        for number, (input_, table) in enumerate(zip(self.bound.inputs, (rows, right), strict=False)):
            whole = self._whole(number, table)
            inside = [
                (row, derived)
                for row, derived in zip(whole, self._derive[number](whole), strict=True)
                if (time := self._time(number, derived)) is not None and begin <= time < until
            ]
            for time, row, derived in self._evaluated(number, inside, None):
                usable.append((0, time, *joint(self.bound, input_, row, derived)))
        self._epoch(usable, [CommitStep(max(self.clock, _millis(now)), until - order.lag)], order, parallelism)

    def results(self) -> list[dict[str, Any]]:
        """Return every row of table `results`, in the order in which they were emitted."""
        return _rows(pa.concat_tables(self._results))

    def latest(self) -> list[dict[str, Any]]:
        """Return the newest pane of each window that is not retracted, by key and start."""
        return self._sorted(results.latest(pa.concat_tables(self._results), self.bound.key.names))

    def final(self) -> list[dict[str, Any]]:
        """Return the final windows, which can no longer change, by key and start."""
        latest = results.latest(pa.concat_tables(self._results), self.bound.key.names)
        compute = self.bound.compute
        ends_by_clock = isinstance(compute, Windows) and compute.ends_by_clock
        return self._sorted(results.final(latest, self.clock - 1 if ends_by_clock else self.watermark))

    def late(self) -> list[dict[str, Any]]:
        """Return every row of table `late`."""
        return _rows(pa.concat_tables(self._late))

    def rejected(self) -> list[dict[str, Any]]:
        """Return every rejected row: the columns of the source, and `reason` as in table `rejects`."""
        return list(self._rejected)

    def state(self) -> list[dict[str, Any]]:
        """Return every row of table `state`, by key group."""
        return _rows(self._state)

    def _event_times(self) -> EventTimes:
        return restored_times(self.bound.pipeline, self.watermark, self.clock, self._partitions, self._inputs)

    def _keep(self, times: EventTimes) -> None:
        self._partitions, self._inputs = partitions_of(times), watermarks_of(times)

    def _number(self, side: str | None) -> int:
        sides = [input_.side for input_ in self.bound.inputs]
        if side not in sides:
            raise IllegalArgument(
                "side",
                side,
                "the pipeline has one input: leave it out"
                if sides == [None]
                else f"give the input: {' or '.join(map(repr, sides))}",
            )
        return sides.index(side)

    def _whole(self, number: int, rows: Sequence[Row]) -> list[Row]:
        """Return the rows with every column of the source. Refuse a row with a column that the source does not have."""
        columns = self.bound.inputs[number].source.names
        for row in rows:
            if unknown := [name for name in row if name not in columns]:
                raise IllegalArgument("rows", row, f"the source has no column {unknown[0]!r}; it has {columns}")
        return [{name: row.get(name) for name in columns} for row in rows]

    def _evaluated(
        self, number: int, rows: Sequence[tuple[Row, Row | None]], committed: Millis | None
    ) -> list[tuple[Millis, Row, Row]]:
        """Return time, source row and derived row of each usable row; count the others, and keep the rejected rows."""
        usable = []
        for row, derived in rows:
            time = self._time(number, derived)
            judgement = status(self.bound, derived, time, committed, self.bound.inputs[number])
            self.counters["filtered" if judgement == DROPPED else "rejected" if judgement != OK else "usable"] += 1
            if judgement == OK and time is not None and derived is not None:
                usable.append((time, row, derived))
            elif judgement != DROPPED:
                self._rejected.append({**row, "reason": judgement})
        return usable

    def _dropped(
        self, number: int, rows: Sequence[tuple[Row, Row | None]], committed: Millis
    ) -> list[tuple[Millis, Row]]:
        """Return the time and values of each row that `where` drops but that moves the watermark (`watermark_from`).

        Such a row has only the source's columns.
        """
        input_ = self.bound.inputs[number]
        dropped = []
        for row, derived in rows if input_.input.watermark_from == "all" else ():
            if derived is None:
                time = event_millis(input_.input.source, row[input_.input.source.timestamp])
                if time is not None and is_timely(self.bound, time, committed):
                    dropped.append((time, row))
        return dropped

    def _time(self, number: int, derived: Row | None) -> Millis | None:
        source = self.bound.inputs[number].input.source
        return None if derived is None else event_millis(source, derived[source.timestamp])

    def _epoch(
        self,
        usable: Sequence[tuple[int, Millis, Row, Row]],
        steps: Sequence[CommitStep],
        order: EventOrder | None,
        parallelism: int,
    ) -> None:
        if not steps:
            return
        self.epochs += 1
        job = self._job(steps, order, cut_shards(parallelism, self.bound.pipeline.max_parallelism))
        events = job.placing.select([events_table(self.bound, usable)], range(len(job.shards)))
        kept = []
        for number, shard in enumerate(job.shards):
            groups = self._state["key_group"]
            held = pc.and_(pc.greater_equal(groups, shard.first), pc.less_equal(groups, shard.last))
            mine = events[number] if number in events else events_table(self.bound, [])
            run = run_operator(job, mine, self._state.filter(held))
            self._results.append(run.results())
            self._late.append(run.late())
            kept.append(run.state().drop_columns(["manifest"]))
            # The number of open windows is not cumulative, so it must not be summed over epochs.
            self.counters.update({name: count for name, count in run.counters().items() if name != "open_windows"})
        self._state = pa.concat_tables(kept)
        self.counters["open_windows"] = len(open_windows(self._state, self.bound.key.names))
        complete = [step.watermark for step in steps if step.complete]
        self.watermark = max([self.watermark, *complete])
        self.clock = steps[-1].clock

    def _job(self, steps: Sequence[CommitStep], order: EventOrder | None, shards: tuple[Shard, ...]) -> ShardJob:
        bound = self.bound
        return ShardJob(
            warehouse=Warehouse("."),
            paths={},
            schemas=bound.table_schemas,
            compute=bound.compute,
            panes=bound.panes,
            key=bound.key,
            used=bound.used,
            value_types=bound.value_types,
            state=bound.state,
            shards=shards,
            max_parallelism=bound.pipeline.max_parallelism,
            order=order,
            steps=tuple(steps),
            watermark_before=self.watermark,
            clock_before=self.clock,
            epoch=self.epochs,
            timeline=1,
            now=steps[-1].clock,
        )

    def _sorted(self, table: pa.Table) -> list[dict[str, Any]]:
        first = datetime(1, 1, 1, tzinfo=UTC)
        by = [*self.bound.key.names, "window_start" if results.has_panes(table.schema) else "event_time"]
        return sorted(
            _rows(table),
            key=lambda row: [(row[name] is not None, row[name] or (first if name == by[-1] else "")) for name in by],
        )


def _check(pipeline: Pipeline, sources: Sequence[SourceColumns]) -> None:
    """Check that the columns of each input of the pipeline are given and are schemas."""
    names = ("source", "right")[: len(pipeline.inputs)]
    if len(sources) > len(names):
        raise IllegalArgument("right", sources[1], "the pipeline has one input: leave it out")
    if len(sources) < len(names):
        raise IllegalArgument("right", None, "the pipeline has two inputs: give SourceColumns(...) for the second")
    for name, columns in zip(names, sources, strict=True):
        if not isinstance(columns, SourceColumns):
            raise IllegalArgument(name, columns, "give SourceColumns(...) for the second input")
        for field, schema in ((name, columns.source), ("derived", columns.derived or columns.source)):
            if not isinstance(schema, pa.Schema):
                raise IllegalArgument(
                    field, schema, "give a pyarrow schema, such as pa.schema([('user', pa.string())])"
                )


def _millis(moment: datetime | Millis) -> Millis:
    if not isinstance(moment, int | datetime):
        raise IllegalArgument("at", moment, "give a datetime with a zone, or an int of epoch milliseconds")
    return moment if isinstance(moment, int) else to_millis(moment)


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows

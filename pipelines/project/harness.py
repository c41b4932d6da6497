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
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import late, rejects, results, state
from tidegate.pipelines.definition.binding import bind_all
from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.engine.local import order_by
from tidegate.pipelines.epoch.event_times import (
    CommitStep,
    EventOrder,
    partitions_of,
    restored_times,
    step_until,
    watermarks_of,
)
from tidegate.pipelines.epoch.job import ShardJob, naming
from tidegate.pipelines.epoch.plan import cut_shards
from tidegate.pipelines.epoch.plan_commits import ReadCommit, in_steps, steps_of
from tidegate.pipelines.epoch.shard import no_events, run_rejecting
from tidegate.pipelines.ledger.manifest import PartitionWatermark, Shard
from tidegate.pipelines.project.harness_rows import Derive, HarnessInput, HarnessSlice, Row
from tidegate.pipelines.sources.commits import FilePart, SourceCommit, in_order
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.columnar.slices import open_windows
from tidegate.windowing.compute import Windows
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.time import MIN_TIMESTAMP, Millis, show_millis, to_millis
from tidegate.windowing.watermarks import EventTimes


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
        self._given = [
            HarnessInput.of(pipeline, input_, columns.source, columns.derived, columns.derive)
            for input_, columns in zip(pipeline.inputs, sources, strict=True)
        ]
        self.bound = bind_all(pipeline, [(given.source, given.derived) for given in self._given])
        self._read: list[Counter[str]] = [Counter() for _ in sources]
        self._commits: list[list[_Commit]] = [[] for _ in sources]
        self._state: pa.Table = state.operators(self.bound.table_schemas[state.NAME].empty_table())
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
            at: commit time: a datetime with a zone, or an int of epoch milliseconds.
            complete: False if the rest of the commit follows in the next call.
            side: `left` or `right` if there are two inputs.

        Raises:
            IllegalArgument: the time has no zone, the side is unknown, or a row has a column that the source lacks.
        """
        number = self._number(side)
        self._commits[number].append(_Commit(self._whole(number, rows), _millis(at, "at"), complete))

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
        rows = HarnessSlice(self.bound, self._given)
        for read, (number, commit) in zip(reads, taken, strict=True):
            rows.add(FilePart("", None, read.step, commit.time, input=number), commit.rows)
        self._count(rows)
        seen = {input_: rows.seen(input_) for input_, part in enumerate(self.bound.inputs) if part.reads_events}
        with naming(self.bound.pipeline.name):
            steps = steps_of(
                reads,
                times,
                rows.measures.largest,
                lambda read: seen[read.number].of(read.step) if read.number in seen else (),
            )
        self._epoch(rows, steps, None, parallelism)
        self._keep(times)

    def pass_time(self, to: datetime | Millis, parallelism: int = 1) -> None:
        """Run a clock epoch, in which time advances without data. All commits must have been read."""
        times = self._event_times()
        clock = max(self.clock, _millis(to, "to"))
        step = step_until(times, clock)
        self._epoch(HarnessSlice(self.bound, self._given), [step], None, parallelism)
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

        A missing column of the source is null. As in a run, the first interval rejects the unusable rows of the whole
        table, and a later interval those that were not in the table before; rows that arrived for the time before the
        interval are late, or go into windows that are still open.

        Raises:
            IllegalArgument: a time has no zone, the interval does not begin at the end of the previous one, or the
                source lacks a column of a row.
        """
        order = EventOrder.of(self.bound.compute)
        begin, until, clock = _millis(start, "start"), _millis(end, "end"), _millis(now, "now")
        if self.epochs and begin - order.lag != self.watermark:
            raise IllegalArgument(
                "start", start, f"the previous run ended at {show_millis(self.watermark + order.lag)}: begin there"
            )
        self.watermark = begin - order.lag
        read = HarnessSlice(self.bound, self._given)
        for number, table in enumerate((rows, right)[: len(self.bound.inputs)]):
            whole = self._whole(number, table)
            inside = FilePart("", None, 0, LAST_TIME, begin, until, input=number)
            if not self.epochs:
                read.add(inside, whole)
            else:
                read.add(inside, whole, with_rejects=False)
                read.add(replace(inside, since=FIRST_TIME, until=begin), self._new(number, whole))
            self._read[number] |= Counter(map(repr, whole))
        self._count(read)
        self._epoch(read, [CommitStep(max(self.clock, clock), until - order.lag)], order, parallelism)

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
        """Return every rejected row: the columns of the source, and `reason` as in table `rejects`.

        Rows for which your code raised an error also have `error`.
        """
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

    def _new(self, number: int, rows: Sequence[Row]) -> list[Row]:
        """Return the rows of a table that earlier intervals did not find in it."""
        before, new = Counter(self._read[number]), []
        for row in rows:
            if before[repr(row)]:
                before[repr(row)] -= 1
            else:
                new.append(row)
        return new

    def _count(self, rows: HarnessSlice) -> None:
        """Count the rows of an epoch, and keep those that it rejects."""
        counts, rejected = rows.measures.slice_counts, len(rows.rejected)
        self.counters.update(
            filtered=counts.dropped,
            rejected=rejected,
            usable=counts.usable + sum(counts.rejected.values()) - rejected,
        )
        self._rejected += rows.rejected

    def _reject(self, rows: pa.Table) -> None:
        """Keep rows of table rejects for which user code raised an error."""
        self.counters.update(rejected=len(rows), usable=-len(rows))
        names = [*self.bound.source.names, *(field.name for field in rejects.TRAILING)]
        wanted = [*self.bound.source.names, "reason", "error"]
        self._rejected += _rows(rows.rename_columns(names).select(wanted))

    def _epoch(
        self,
        rows: HarnessSlice,
        steps: Sequence[CommitStep],
        order: EventOrder | None,
        parallelism: int,
    ) -> None:
        if not steps:
            return
        self.epochs += 1
        job = self._job(steps, order, cut_shards(parallelism, self.bound.pipeline.max_parallelism))
        events = job.placing.select(rows.events(), range(len(job.shards)))
        kept = []
        for number, shard in enumerate(job.shards):
            groups = self._state["key_group"]
            held = pc.and_(pc.greater_equal(groups, shard.first), pc.less_equal(groups, shard.last))
            run, unusable = run_rejecting(job, events.get(number, no_events()), self._state.filter(held))
            if unusable is not None:
                self._reject(unusable)
            self._results.append(run.results())
            self._late.append(run.late())
            kept.append(state.operators(run.state()))
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
            pipeline=self.bound.pipeline.name,
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
            on_error=bound.pipeline.on_error,
        )

    def _sorted(self, table: pa.Table) -> list[dict[str, Any]]:
        by = [*self.bound.key.names, "window_start" if results.has_panes(table.schema) else "event_time"]
        return _rows(table.take(order_by(table, by)))


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


def _millis(moment: datetime | Millis, field: str) -> Millis:
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        return to_millis(moment)
    if isinstance(moment, int) and not isinstance(moment, bool):
        return moment
    example = "datetime(2024, 3, 1, 12, tzinfo=UTC)"
    raise IllegalArgument(field, moment, f"give a datetime with a zone, {example}, or an int of epoch milliseconds")


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows

"""Run a whole Pipeline value over rows with chosen cuts, in this process and without Spark.

Binding, watermarks, the operator that the planner takes, panes, tables and state rows are those of an
epoch; only reading the source and committing files are left out. Between epochs nothing is kept but
rows and clocks, so every epoch is a restart.

>>> from datetime import timedelta
>>> import pyarrow as pa
>>> from pipelines.pipeline import DeltaSource, Pipeline
>>> from windowing import Count, EventTimeSessionWindows, WatermarkStrategy, Windows
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

from pipelines.binding import bind
from pipelines.epoch.event_time import ONLY_PARTITION, EventTime
from pipelines.epoch.shard import ShardJob, run_operator
from pipelines.epoch.steps import CommitStep, EventOrder
from pipelines.pipeline import Pipeline
from pipelines.snapshots.manifest import PartitionWatermark, Shard
from pipelines.sources.columns import DROPPED, OK
from pipelines.storage import Warehouse
from pipelines.tables import late, results, state
from pipelines.tables.columns import to_delta
from pipelines.testing.rows import Derive, Row, event_millis, events_table, status
from windowing.errors import IllegalArgument
from windowing.keys import key_group_range
from windowing.time import MIN_TIMESTAMP, Millis, to_millis


@dataclass(frozen=True, slots=True)
class _Commit:
    """A source commit, or a part of one, that no epoch has read."""

    rows: Sequence[Row]
    time: Millis
    complete: bool


class PipelineHarness:
    """A pipeline whose source is what a test commits.

    Args:
        pipeline: the value.
        source: columns of the source table.
        derived: columns after `columns=`; needed where the pipeline has any.
        derive: what `columns` and `where` do, in Python: they are Spark's SQL, which does not run here.

    Raises:
        IllegalArgument: the pipeline has `columns` or `where`, and nothing stands in for them; or what
            binding refuses.
    """

    def __init__(
        self, pipeline: Pipeline, source: pa.Schema, derived: pa.Schema | None = None, derive: Derive | None = None
    ) -> None:
        if derive is None and (pipeline.columns or pipeline.where is not None):
            field = "columns" if pipeline.columns else "where"
            raise IllegalArgument(
                field,
                getattr(pipeline, field),
                "it is Spark's SQL: give derive= a function that does the same to a row",
            )
        self.bound = bind(pipeline, source, derived if derived is not None else source)
        self._derive = derive
        self._commits: list[_Commit] = []
        self._state: pa.Table = self.bound.table_schemas[state.NAME].empty_table().drop_columns(["manifest"])
        self._partitions: Mapping[str, PartitionWatermark] = {}
        self._results: list[pa.Table] = [self.bound.table_schemas[results.NAME].empty_table()]
        self._late: list[pa.Table] = [self.bound.table_schemas[late.NAME].empty_table()]
        self.rejected: list[dict[str, Any]] = []
        self.counters: Counter[str] = Counter()
        self.watermark: Millis = MIN_TIMESTAMP
        self.clock: Millis = 0
        self.epochs = 0

    def commit(self, rows: Sequence[Row], at: datetime | Millis, complete: bool = True) -> None:
        """Add a commit to the source.

        Args:
            rows: a mapping with every column of the source each.
            at: commit time; an int is epoch milliseconds.
            complete: False where the rest of the commit follows in the next call.
        """
        self._commits.append(_Commit(list(rows), _millis(at), complete))

    def run(self, parallelism: int = 1) -> None:
        """One epoch over everything that was committed since the last one, on so many shards."""
        commits, self._commits = self._commits, []
        event_time = self._event_time()
        usable: list[tuple[int, Millis, Row, Row]] = []
        steps = []
        for index, commit in enumerate(commits):
            largest: dict[str, Millis] = {}
            for time, row, derived in self._judged(commit.rows, commit.time):
                usable.append((index, time, row, derived))
                by = self._partition(derived)
                largest[by] = max(largest.get(by, time), time)
            steps.append(event_time.step(largest, commit.time, commit.complete))
        self._epoch(usable, steps, None, parallelism)
        self._partitions = event_time.snapshot()

    def pass_time(self, to: datetime | Millis, parallelism: int = 1) -> None:
        """A clock epoch: all commits are read, and time goes on without data."""
        event_time = self._event_time()
        clock = max(self.clock, _millis(to))
        self._epoch([], [CommitStep(clock, event_time.advance(clock))], None, parallelism)
        self._partitions = event_time.snapshot()

    def backfill(
        self,
        rows: Sequence[Row],
        start: datetime | Millis,
        end: datetime | Millis,
        now: datetime | Millis = 0,
        parallelism: int = 1,
    ) -> None:
        """A run in event order over the rows of a table that lie in `[start, end)`.

        Raises:
            IllegalArgument: an interval that does not begin where the one before ended.
        """
        order = EventOrder.of(self.bound.compute)
        begin, until = _millis(start), _millis(end)
        if self.epochs and begin - order.lag != self.watermark:
            raise IllegalArgument(
                "start", start, f"the run before ended at {self.watermark + order.lag} ms: go on there"
            )
        self.watermark = begin - order.lag
        inside = [row for row in rows if (time := self._time(row)) is not None and begin <= time < until]
        usable = [(0, *judged) for judged in self._judged(inside, None)]
        self._epoch(usable, [CommitStep(max(self.clock, _millis(now)), until - order.lag)], order, parallelism)

    def results(self) -> list[dict[str, Any]]:
        """Every row of table `results`, in the order in which it was put out."""
        return _rows(pa.concat_tables(self._results))

    def latest(self) -> list[dict[str, Any]]:
        """The newest pane of each window that is not withdrawn, by key and start."""
        return self._sorted(results.latest(pa.concat_tables(self._results), self.bound.key.names))

    def final(self) -> list[dict[str, Any]]:
        """The windows that nothing can change any more, by key and start."""
        latest = results.latest(pa.concat_tables(self._results), self.bound.key.names)
        return self._sorted(results.final(latest, self.watermark))

    def late(self) -> list[dict[str, Any]]:
        """Every row of table `late`."""
        return _rows(pa.concat_tables(self._late))

    def state(self) -> list[dict[str, Any]]:
        """Every row of table `state`, by key group."""
        return _rows(self._state)

    def _event_time(self) -> EventTime:
        return EventTime.restored(self.bound.pipeline.watermark, self.watermark, self.clock, self._partitions)

    def _partition(self, row: Row) -> str:
        by = self.bound.pipeline.watermark_by
        if by is None:
            return ONLY_PARTITION
        return "null" if row[by] is None else str(row[by])

    def _judged(self, rows: Sequence[Row], committed: Millis | None) -> list[tuple[Millis, Row, Row]]:
        """Time, source row and derived row of what can be used; the rest is counted, and kept if rejected."""
        usable = []
        for row in rows:
            derived, time = self._derived(row), self._time(row)
            found = status(self.bound, derived, time, committed)
            self.counters["filtered" if found == DROPPED else "rejected" if found != OK else "usable"] += 1
            if found == OK and time is not None and derived is not None:
                usable.append((time, row, derived))
            elif found != DROPPED:
                self.rejected.append({**row, "reason": found})
        return usable

    def _derived(self, row: Row) -> Row | None:
        return row if self._derive is None else self._derive(dict(row))

    def _time(self, row: Row) -> Millis | None:
        derived = self._derived(row)
        return None if derived is None else event_millis(self.bound.pipeline.source, derived[self._timestamp])

    @property
    def _timestamp(self) -> str:
        return self.bound.pipeline.source.timestamp

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
        groups = self.bound.pipeline.max_parallelism
        shards = [key_group_range(shard, parallelism, groups) for shard in range(parallelism)]
        job = self._job(steps, order, tuple(Shard(first=shard.first, last=shard.last) for shard in shards))
        kept = []
        for shard in job.shards:
            mine = [event for event in usable if shard.first <= self._key_group(event[3]) <= shard.last]
            groups_held = self._state["key_group"].to_pylist()
            held = pa.array([shard.first <= group <= shard.last for group in groups_held], pa.bool_())
            run = run_operator(job, shard, events_table(self.bound, mine), self._state.filter(held))
            self._results.append(run.results())
            self._late.append(run.late())
            kept.append(run.state().drop_columns(["manifest"]))
            self._count(run.counters())
        self._state = pa.concat_tables(kept)
        self.counters["open_windows"] = sum(self._state["in_flight"].to_pylist())
        complete = [step.watermark for step in steps if step.complete]
        self.watermark = max([self.watermark, *complete])
        self.clock = steps[-1].clock

    def _count(self, counters: Mapping[str, int]) -> None:
        # What is open is no count that adds up.
        self.counters.update({name: count for name, count in counters.items() if name != "open_windows"})

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
            value_types=tuple(to_delta(bound.derived.field(name).type) for name in bound.used),
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

    def _key_group(self, row: Row) -> int:
        values = [row[name] for name in self.bound.key.names]
        return self.bound.key.key_group_of(self.bound.key.key_of(values), self.bound.pipeline.max_parallelism)

    def _sorted(self, table: pa.Table) -> list[dict[str, Any]]:
        first = datetime(1, 1, 1, tzinfo=UTC)
        by = [*self.bound.key.names, "window_start"]
        return sorted(
            _rows(table),
            key=lambda row: [(row[name] is not None, row[name] or (first if name == by[-1] else "")) for name in by],
        )


def _millis(moment: datetime | Millis) -> Millis:
    return moment if isinstance(moment, int) else to_millis(moment)


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows

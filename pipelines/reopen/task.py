"""The job of a shard in an epoch that computes windows again, run by a task of the engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.event_columns import COMMIT, TIME
from tidegate.pipelines.epoch.exchange import unpacked
from tidegate.pipelines.epoch.job import ShardJob
from tidegate.pipelines.epoch.operate import job_of
from tidegate.pipelines.epoch.shard import ShardOutcome
from tidegate.pipelines.reopen.correct import ReachesBeyond, correct
from tidegate.pipelines.reopen.pane_numbers import NO_WINDOWS
from tidegate.pipelines.reopen.plan import ReopenPlan
from tidegate.pipelines.tables import results, state
from tidegate.pipelines.tables.files import write_file
from tidegate.pipelines.tables.key_groups import key_groups
from tidegate.pipelines.tables.keys import are_in
from tidegate.windowing.state.rows import WINDOW
from tidegate.windowing.time import Millis

BEYOND = "beyond"
"""Counter of a shard that corrected nothing: the milliseconds by which a session reaches beyond its stretch."""


@dataclass(frozen=True)
class ReopenJob:
    """The input of every task of an epoch that computes windows again, except the events; it travels to the executors.

    Args:
        shards: the job of any epoch's shards.
        files: state files of each shard that has stretches.
        wanted: the stretches of all shards.
        published: the published panes in the stretches that were not retracted.
        margin: longest time by which a session may reach beyond its stretch, milliseconds.
        newest_panes: number of the newest pane of each window, also of retracted ones.
        may_come_again: published sessions that late elements may bring back.
    """

    shards: ShardJob
    files: dict[int, tuple[str, ...]]
    wanted: pa.Table
    published: pa.Table
    margin: Millis = 0
    newest_panes: pa.Table | None = None
    may_come_again: pa.Table | None = None

    @classmethod
    def of(cls, plan: ReopenPlan) -> ReopenJob:
        """Return the job of a plan."""
        epoch, groups = plan.epoch, set(_groups(plan, plan.wanted))
        assert epoch.head is not None
        files = {
            number: tuple(
                file["path"]
                for file in epoch.head.files
                if file["min.key_group"] <= shard.last and file["max.key_group"] >= shard.first
            )
            for number, shard in enumerate(epoch.shards)
            if any(shard.first <= group <= shard.last for group in groups)
        }
        return cls(
            job_of(epoch), files, plan.wanted, plan.published, plan.margin, plan.newest_panes, plan.may_come_again
        )

    def run(self, number: int, events: pa.Table) -> ShardOutcome:
        """Compute the stretches of one shard again, and write the files with the corrections."""
        began = perf_counter()
        job, shard = self.shards, self.shards.shards[number]

        def of_shard(rows: pa.Table) -> pa.Table:
            groups = key_groups(rows, job.key.names, job.max_parallelism)
            return rows.filter(pc.and_(pc.greater_equal(groups, shard.first), pc.less_equal(groups, shard.last)))

        group = pc.field("key_group")
        rows = job.warehouse.read_files(
            job.paths[state.NAME],
            self.files[number],
            job.schemas[state.NAME],
            where=(group >= shard.first) & (group <= shard.last),
        ).drop_columns([state.MANIFEST.name])
        try:
            wanted, published = of_shard(self.wanted), of_shard(self.published)
            again, newest = (
                NO_WINDOWS if rows_of_windows is None else of_shard(rows_of_windows)
                for rows_of_windows in (self.may_come_again, self.newest_panes)
            )
            # State rows become objects of Python, so only those are passed whose windows may change.
            concerned = are_in(rows, wanted, job.key.names)
            of_keys, rest = rows.filter(concerned), rows.filter(pc.invert(concerned))
            corrections = correct(job, events, of_keys, wanted, published, self.margin, newest, again)
        except ReachesBeyond as beyond:
            return ShardOutcome(number, False, counters={BEYOND: beyond.by})
        if corrections.state is not None:
            rest = state.to_delta_rows(rest, job.schemas[state.NAME])
            corrections = replace(corrections, state=pa.concat_tables([rest, corrections.state]).sort_by("key_group"))
        outcome = ShardOutcome(number, corrections.state is not None, next_panes=corrections.next_panes)
        for table, out in ((results.NAME, corrections.results), (state.NAME, corrections.state)):
            if out is not None and (
                file := write_file(job.warehouse, job.paths[table], f"{table}-{job.epoch:06d}-{number:05d}", out)
            ):
                outcome.files[table] = file
        outcome.counters = {"fired_late": corrections.fired, "withdrawn": corrections.retracted}
        if corrections.state is not None:
            state_rows = corrections.state
            is_open = pc.and_(pc.equal(state_rows["namespace"], WINDOW), state_rows["in_flight"])
            outcome.rows = len(state_rows)
            outcome.counters["open_windows"] = pc.sum(is_open).as_py() or 0
            outcome.next_event_time_timer = pc.min(pc.list_flatten(state_rows["event_time_timers"])).as_py()
        outcome.seconds = {"correct": perf_counter() - began}
        return outcome

    def run_packs(self, number: str, packs: Sequence[pa.Buffer]) -> Iterator[pa.RecordBatch]:
        """Run as a task on the packs of a shard."""
        yield self._reported(int(number), unpacked(packs))

    def run_shards(self, numbers: Sequence[int], tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        """Run as a task that reads the events of all shards, and keeps those of its own.

        Args:
            numbers: the shards of the task.
            tables: the events of all shards.
        """
        events = self.shards.placing.select(tables, numbers)
        for number in numbers:
            yield self._reported(number, events.pop(number, None))

    def _reported(self, number: int, events: pa.Table | None) -> pa.RecordBatch:
        outcome = self.run(number, pa.table({COMMIT: [], TIME: []}) if events is None else events)
        return pa.RecordBatch.from_pydict({"shard": pa.array([number], pa.int32()), "info": [outcome.to_json()]})


def _groups(plan: ReopenPlan, rows: pa.Table) -> Sequence[int]:
    groups: list[int] = key_groups(rows, plan.key, plan.epoch.bound.pipeline.max_parallelism).unique().to_pylist()
    return groups

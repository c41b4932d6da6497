"""The job of a shard in an epoch that recomputes windows, run by a task of the engine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import results, state
from tidegate.pipelines.definition.event_columns import COMMIT, TIME
from tidegate.pipelines.epoch.correct import Corrections, Work, correct
from tidegate.pipelines.epoch.job import ShardJob
from tidegate.pipelines.epoch.operate import job_of
from tidegate.pipelines.epoch.plan import files_of
from tidegate.pipelines.epoch.recompute_plan import RecomputePlan
from tidegate.pipelines.epoch.shard import Receive, ShardOutcome
from tidegate.pipelines.ledger.tables.files import write_file
from tidegate.pipelines.ledger.tables.keys import are_in, key_groups
from tidegate.pipelines.ledger.tables.state_files import read_state
from tidegate.windowing.columnar.slices import open_windows

BEYOND = "beyond"
"""Counter of a shard that could not be corrected: the milliseconds by which a session reaches beyond its span."""


@dataclass(frozen=True)
class RecomputeJob:
    """The input of every task of an epoch that recomputes windows, except the events; it is sent to the executors.

    `files` are the state files of each shard that has affected spans.
    """

    shards: ShardJob
    files: dict[int, tuple[str, ...]]
    work: Work

    @classmethod
    def of(cls, plan: RecomputePlan) -> RecomputeJob:
        """Return the job of a plan."""
        epoch = plan.epoch
        assert epoch.head is not None
        groups = set(key_groups(plan.wanted, plan.key, epoch.bound.pipeline.max_parallelism).unique().to_pylist())
        files = {
            number: files_of(epoch.head.files, shard)
            for number, shard in enumerate(epoch.shards)
            if any(shard.first <= group <= shard.last for group in groups)
        }
        work = Work(plan.wanted, plan.published, plan.newest_panes, plan.may_reappear, plan.margin)
        return cls(job_of(epoch), files, work)

    def run(self, number: int, events: pa.Table) -> ShardOutcome:
        """Recompute the spans of one shard, and write the files with the corrections."""
        began = perf_counter()
        job, shard, work = self.shards, self.shards.shards[number], self.work.of_shard(self.shards, number)
        group = pc.field("key_group")
        rows = read_state(
            job.warehouse,
            job.paths[state.NAME],
            self.files[number],
            self.files[number],
            job.schemas[state.NAME],
            where=(group >= shard.first) & (group <= shard.last),
        )
        # State rows are decoded to Python objects, so only those whose windows may change are passed.
        concerned = are_in(rows, work.wanted, job.key.names)
        corrections = correct(job, events, rows.filter(concerned), work)
        if not isinstance(corrections, Corrections):
            return ShardOutcome(number, False, counters={BEYOND: corrections})
        if corrections.state is not None:
            rest = state.to_delta_rows(rows.filter(pc.invert(concerned)), job.schemas[state.NAME])
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
            outcome.rows = len(state_rows)
            outcome.counters["open_windows"] = len(open_windows(state_rows, job.key.names))
            outcome.next_event_time_timer = pc.min(pc.list_flatten(state_rows["event_time_timers"])).as_py()
        outcome.seconds = {"correct": perf_counter() - began}
        return outcome

    def report(self, marker: str, receive: Receive) -> pa.RecordBatch:
        """Run as a task for the shard whose number is given as text."""
        events = receive()
        return self.run(int(marker), pa.table({COMMIT: [], TIME: []}) if events is None else events).report()

"""The tasks of an epoch, its second step: they move the events to their shards, where the operator runs.

Events reach a shard in one of two ways. If the files are small, each task reads all of them and keeps the events of its
shards: one stage, without an exchange. Tasks on one machine share what they read. Otherwise tasks read the files and
pack the events by shard, and the engine moves the packs. Each shard runs even without events, because its timers may be
due.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from time import perf_counter
from typing import Any

import pyarrow as pa

from tidegate.pipelines.definition import rejects
from tidegate.pipelines.definition.event_columns import LAST_TIME
from tidegate.pipelines.engine.base import Engine, Pack, split
from tidegate.pipelines.epoch.combine import combined
from tidegate.pipelines.epoch.exchange import (
    Placing,
    SharedReading,
    bundles_of,
    is_exchange_cheaper,
    shared_reading,
    unpacked,
)
from tidegate.pipelines.epoch.job import ShardJob
from tidegate.pipelines.epoch.plan import EpochPlan, files_of
from tidegate.pipelines.epoch.shard import RESULT_SCHEMA, Marker, Receive, ShardOutcome, outcomes_of, run_shard
from tidegate.pipelines.epoch.shard_state import can_have_deltas, split_of
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.ledger.manifest import Shard
from tidegate.pipelines.ledger.snapshots.compatibility import left_behind, migration_of
from tidegate.pipelines.ledger.tables.files import deltas_of, write_rows
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.source_table import EvaluatedRows
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.time import MIN_TIMESTAMP

_BYTES_OF_REJECTS = 2**28
"""Number of bytes of rejected rows after which a task writes a file."""

EVENTS_COMBINED = 32
"""Number of events that threads of one process read and combine in about the time that a row takes in an operator.
Neither Arrow nor NumPy holds Python's lock meanwhile, so processes would gain nothing.
"""


def operate(engine: Engine, plan: EpochPlan) -> list[ShardOutcome]:
    """Run the epoch's tasks, and return the outcome of each shard; shard -1 stands for the rejected rows."""
    job, cores = job_of(plan), engine.cores
    events = job.files
    began = perf_counter()
    found = markers_of(plan)
    markers = {marker.shard: marker.to_json() for marker in found}

    def run(marker: str, receive: Receive) -> pa.RecordBatch:
        return run_shard(job, Marker.from_json(marker), receive)

    usable = plan.counts.usable
    state_rows = 0 if plan.parent is None else sum(shard.rows for shard in plan.parent.manifest.shards)
    state_rows -= sum(marker.rows_left(job, usable) for marker in found)
    must_exchange = is_exchange_cheaper(usable, len(plan.shards), cores)
    threads = 1 if job.combining is None or must_exchange else engine.threads
    read = usable if threads == 1 else -(-usable // EVENTS_COMBINED)
    tasks = engine.tasks(len(markers), read + state_rows)
    reads = Reads(job.placing, events, partial(_events, job), threads if tasks == 1 else 1)
    reports = run_shards(engine, reads, markers, run, must_exchange, tasks)
    outcomes = outcomes_of(reports)
    seen = sum(outcome.counters.get(name, 0) for outcome in outcomes for name in ("elements", "rejected"))
    if (unusable := plan.rows.unusable) is not None:
        outcomes += _write_rejects(engine, job, unusable)
    if events is not None and seen < usable:
        # Only rows whose keys are too long are counted as usable without being events; such rows are rare.
        outcomes += _write_rejects(engine, job, events, long_keys=True)
    _check_complete(plan, outcomes)
    for outcome in outcomes:
        outcome.seconds["job"] = perf_counter() - began
    return outcomes


def _events(job: ShardJob, judged: Iterator[EvaluatedRows]) -> Iterator[pa.Table]:
    """Return the events of checked rows, combined where that is exact."""
    assert job.files is not None
    return combined(job, map(job.files.events_of, judged))


@dataclass(frozen=True)
class Reads:
    """What the shards of a job read: a slice, None if it has no rows, and the events of its checked rows.

    With several threads, a task keeps the events of all files in memory.
    """

    placing: Placing
    files: FileSlice | None
    events: Callable[[Iterator[EvaluatedRows]], Iterator[pa.Table]]
    threads: int = 1

    def of_parts(self, numbers: Iterable[int] | None = None) -> Iterator[pa.Table]:
        """Return the events of parts of the slice; None for all."""
        if self.files is None:
            return
        bundles: tuple[tuple[int, ...], ...] = ()
        if self.threads > 1 and numbers is None:
            bundles = bundles_of([part.rows or 0 for part in self.files.parts], self.threads)
        if len(bundles) < 2:
            yield from self.events(self.files.evaluated(numbers))
            return
        with ThreadPoolExecutor(self.threads) as pool:
            try:
                for tables in pool.map(self._of_bundle, bundles):
                    yield from tables
            finally:
                pool.shutdown(cancel_futures=True)

    def _of_bundle(self, numbers: Sequence[int]) -> list[pa.Table]:
        assert self.files is not None
        return list(self.events(self.files.evaluated(numbers)))

    def packed(self, judged: Iterator[EvaluatedRows]) -> Iterator[pa.RecordBatch]:
        """Return the events of checked rows, packed by shard."""
        return self.placing.packs(self.events(judged))

    def of_shards(self, numbers: Sequence[int], shared: SharedReading | None) -> dict[int, pa.Table]:
        """Return the events of shards. A shard without events has no entry."""
        if shared is not None:
            return shared.read(self.of_parts, self.placing, numbers)
        return self.placing.select(self.of_parts(), numbers)


def run_shards(
    engine: Engine,
    reads: Reads,
    markers: Mapping[int, str],
    run: Callable[[str, Receive], pa.RecordBatch],
    must_exchange: bool,
    tasks: int,
) -> list[pa.RecordBatch]:
    """Run a function once for each shard, with the shard's events. Return the reports.

    If all tasks together would read too much, or the rows go through Spark, tasks pack the events by shard and the
    engine moves the packs. Otherwise each task reads the files, and keeps the events of its shards. `run` gets the
    marker of a shard as text, and a function that returns the shard's events. Without an exchange, each of `tasks`
    reads the files.
    """
    if must_exchange or (reads.files is not None and reads.files.needs_spark):

        def run_packs(marker: str, packs: Sequence[Pack]) -> Iterator[pa.RecordBatch]:
            yield run(marker, lambda: unpacked(packs))

        return engine.exchanged(reads.files, reads.packed, markers, run_packs, RESULT_SCHEMA)
    numbers = list(markers)
    shards = [[numbers[place] for place in places] for places in split(len(numbers), tasks)]
    with shared_reading(reads.files, len(shards) if engine.is_on_one_machine else 1) as shared:

        def run_in_place(numbers: Sequence[int]) -> Iterator[pa.RecordBatch]:
            # The first shard of a task reads for all of its shards, so its time to receive events includes the reading.
            events = cache(partial(reads.of_shards, numbers, shared))

            def given(table: pa.Table | None) -> Iterator[pa.Table]:
                return iter(() if table is None else (table,))

            for number in numbers:
                yield run(markers[number], lambda: given(events().pop(number, None)))  # noqa: B023 - called at once

        return engine.in_place(shards, run_in_place, RESULT_SCHEMA)


def job_of(plan: EpochPlan) -> ShardJob:
    """Return the job of an epoch: the values of its plan that the tasks need."""
    bound, tables = plan.bound, plan.tables
    schemas = plan.bound.table_schemas
    return ShardJob(
        pipeline=bound.pipeline.name,
        warehouse=tables.warehouse,
        paths={name: tables.path(name) for name in schemas},
        schemas=schemas,
        compute=plan.compute,
        panes=_panes(plan),
        key=bound.key,
        used=bound.used,
        value_types=bound.value_types,
        state=bound.state,
        shards=plan.shards,
        files=_read_by(plan),
        max_parallelism=bound.pipeline.max_parallelism,
        order=plan.order,
        steps=plan.steps,
        watermark_before=plan.watermark_before,
        clock_before=plan.clock_before,
        epoch=plan.epoch,
        timeline=plan.timeline,
        now=plan.started_at,
        old_format=None if plan.parent is None else migration_of(bound, plan.parent.manifest),
        left_behind=left_behind(bound.pipeline),
        on_error=bound.pipeline.on_error,
    )


def _read_by(plan: EpochPlan) -> FileSlice | None:
    """Return the slice with the usable rows. If user code may reject rows, every event gets its origin."""
    files = plan.rows.events
    if files is None or plan.bound.pipeline.on_error == "stop":
        return files
    return files.of(files.parts, {part.commit: LAST_TIME for part in files.parts})


def _panes(plan: EpochPlan) -> PanePolicy:
    """Return the pane policy of the pipeline. Closed windows stay closed, unless the epoch corrects them."""
    closed = MIN_TIMESTAMP if plan.kind in ("reopen", "change") else plan.closed_through
    return replace(plan.bound.panes, closed_through=closed)


def markers_of(plan: EpochPlan) -> list[Marker]:
    """Return a marker for each shard."""
    parent = plan.parent
    files = () if parent is None else parent.files
    rewrite = must_rewrite(plan, files)
    before: dict[tuple[int, int], Shard] = {}
    if parent is not None and not any(position.files for position in parent.manifest.positions.values()):
        before = {(shard.first, shard.last): shard for shard in parent.manifest.shards}
    # Changed code may clean up a window at a different time than its stored timers imply.
    may_split = (
        parent is not None
        and not rewrite
        and parent.manifest.fingerprint == plan.bound.fingerprint
        and can_have_deltas(plan.compute, plan.bound.state)
    )
    markers = []
    for index, shard in enumerate(plan.shards):
        names = files_of(files, shard)
        own = [file for file in files if file["path"] in names]
        split = split_of(own) if may_split else None
        markers.append(
            Marker(index, names, rewrite, before.get((shard.first, shard.last)), tuple(deltas_of(own)), split)
        )
    return markers


def must_rewrite(plan: EpochPlan, files: Sequence[dict[str, Any]]) -> bool:
    """Return True if all shards must rewrite their state: for a migration, or if a file has rows of several shards."""
    if plan.parent is not None and migration_of(plan.bound, plan.parent.manifest) is not None:
        return True
    return any(
        not any(shard.first <= file["min.key_group"] and file["max.key_group"] <= shard.last for shard in plan.shards)
        for file in files
    )


def _write_rejects(engine: Engine, job: ShardJob, files: FileSlice, long_keys: bool = False) -> list[ShardOutcome]:
    reports = engine.over(files, partial(write_rejects, job, files, long_keys), RESULT_SCHEMA)
    return outcomes_of(reports.to_batches())


def write_rejects(
    job: ShardJob, files: FileSlice, long_keys: bool, judged: Iterator[EvaluatedRows]
) -> Iterator[pa.RecordBatch]:
    """Write the rows of a slice that can't be used, with all columns and the reason.

    With `long_keys`, these are the rows of the slice's interval whose keys are too long; without it, all other rejected
    rows.
    """
    schema = job.schemas[rejects.NAME]
    parts, size = list[pa.Table](), 0
    for rows in judged:
        for reason, flags in rows.rejected.items():
            if (reason == rejects.KEY_TOO_LONG) is not long_keys:
                continue
            if long_keys:
                flags = flags & rows.counted(files.parts[rows.number].since, files.parts[rows.number].until)
            whole = files.as_rows(rows, flags)
            parts.append(rejects.rows_of(whole, pa.repeat(reason, len(whole)), schema, job.timeline, job.epoch))
            size += parts[-1].nbytes
            if size > _BYTES_OF_REJECTS:
                yield _written(job, parts)
                parts, size = [], 0
    if parts:
        yield _written(job, parts)


def _written(job: ShardJob, parts: Sequence[pa.Table]) -> pa.RecordBatch:
    table = pa.concat_tables(parts)
    (file,) = write_rows(job.warehouse, job.paths[rejects.NAME], f"{rejects.NAME}-{job.epoch:06d}", table)
    outcome = ShardOutcome(-1, True, files={rejects.NAME: file})
    outcome.counters = {"rejected": len(table)}
    return outcome.report()


def _check_complete(plan: EpochPlan, outcomes: Sequence[ShardOutcome]) -> None:
    reported = sorted(outcome.shard for outcome in outcomes if outcome.shard >= 0)
    if reported != list(range(len(plan.shards))):
        raise TidegateError(
            f"epoch {plan.epoch} of {plan.tables.pipeline}: shards {list(range(len(plan.shards)))} should have "
            f"reported, but {reported} did. Nothing was committed; run it again"
        )
    elements = sum(outcome.counters.get("elements", 0) for outcome in outcomes)
    rejected = sum(outcome.counters.get("rejected", 0) for outcome in outcomes)
    counted = sum(plan.counts.rejected.values())
    if elements > plan.counts.usable or elements + rejected != plan.counts.usable + counted:
        raise TidegateError(
            f"epoch {plan.epoch} of {plan.tables.pipeline}: the slice was counted as {plan.counts.usable} usable and "
            f"{counted} rejected rows, but the tasks saw {elements} and {rejected}. The source returned different rows "
            "when it was read twice. Nothing was committed"
        )

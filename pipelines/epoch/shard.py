"""Step 2 inside a task: the state and events of one shard go through the operator, and out come files.

Nothing here is committed: a failed or repeated attempt leaves files that no table lists, and VACUUM
collects them. The driver learns about the files from the one row that a task yields.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipelines.epoch.outputs import Outputs
from pipelines.epoch.steps import CommitStep, EventOrder
from pipelines.snapshots.manifest import DataFile, Shard
from pipelines.sources.columns import COMMIT, KEY_PREFIX, MARKER, ROW, TIME, VALUE_PREFIX
from pipelines.storage import Warehouse
from pipelines.tables import late, results, state
from pipelines.tables.files import write_file
from windowing.compute import Windows
from windowing.keys import KeyGroupRange, KeySchema
from windowing.operators.window import WindowOperator
from windowing.panes import PanePolicy, Timing
from windowing.state.rows import StateSchema
from windowing.time import Millis

RESULT_SCHEMA = "shard int, info string"
_ROWS_AT_A_TIME = 65_536


@dataclass(frozen=True)
class ShardJob:
    """What every task of an epoch needs to know; it travels to the executors."""

    warehouse: Warehouse
    paths: Mapping[str, str]
    schemas: Mapping[str, pa.Schema]
    windows: Windows
    panes: PanePolicy
    key: KeySchema
    used: tuple[str, ...]
    state: StateSchema
    shards: tuple[Shard, ...]
    max_parallelism: int
    order: EventOrder | None
    steps: tuple[CommitStep, ...]
    watermark_before: Millis
    clock_before: Millis
    epoch: int
    timeline: int
    now: Millis


@dataclass
class ShardOutcome:
    """What a task did, as the driver learns it."""

    shard: int
    changed: bool
    rows: int = 0
    files: dict[str, DataFile] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    next_event_time_timer: Millis | None = None
    next_processing_time_timer: Millis | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        """The text that a task yields."""
        return json.dumps({**vars(self), "files": {name: file.model_dump() for name, file in self.files.items()}})

    @classmethod
    def from_json(cls, text: str) -> ShardOutcome:
        """The outcome that a task yielded."""
        raw = json.loads(text)
        raw["files"] = {name: DataFile.model_validate(file) for name, file in raw["files"].items()}
        return cls(**raw)


def run_shard(job: ShardJob, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the shard that the marker row among the batches names; nothing where there is no marker."""
    began = perf_counter()
    events, marker = _collect(batches)
    if marker is None:
        return
    received = perf_counter()
    shard = job.shards[marker["shard"]]
    operator = _restored(job, shard, marker["files"])
    restored = perf_counter()
    outputs = Outputs(job, operator, events)
    _drive(job, operator, events, outputs)
    operated = perf_counter()
    counters = _counters(operator, len(events))
    changed = bool(counters["elements"] or counters["timers_fired"] or marker["rewrite"])
    outcome = ShardOutcome(marker["shard"], changed)
    if changed:
        for table, rows in (
            (results.NAME, outputs.results()),
            (late.NAME, outputs.late()),
            (state.NAME, _state_rows(job, operator)),
        ):
            prefix = f"{table}-{job.epoch:06d}-{marker['shard']:05d}"
            if file := write_file(job.warehouse, job.paths[table], prefix, rows):
                outcome.files[table] = file
    outcome.counters = counters
    outcome.rows = outcome.files[state.NAME].rows if state.NAME in outcome.files else 0
    outcome.next_event_time_timer = operator.timers.event_time.peek()
    outcome.next_processing_time_timer = operator.timers.processing_time.peek()
    outcome.seconds = {
        "receive": received - began,
        "restore": restored - received,
        "operate": operated - restored,
        "write": perf_counter() - operated,
    }
    yield pa.RecordBatch.from_pydict({"shard": pa.array([marker["shard"]], pa.int32()), "info": [outcome.to_json()]})


def _collect(batches: Iterator[pa.RecordBatch]) -> tuple[pa.Table, dict[str, Any] | None]:
    """All events of the shard, and its marker."""
    marker: dict[str, Any] | None = None
    parts: list[pa.RecordBatch] = []
    for batch in batches:
        markers = batch.column(batch.schema.get_field_index(MARKER))
        if markers.null_count < len(markers):
            marker = json.loads(markers.drop_null()[0].as_py())
            batch = batch.filter(markers.is_null())
        if len(batch):
            parts.append(batch)
    if not parts:
        return pa.table({COMMIT: [], TIME: []}), marker
    table = pa.Table.from_batches(parts).drop_columns([MARKER])
    ties = [name for name in table.schema.names if name not in (ROW, TIME, COMMIT) and _sortable(table, name)]
    order = [(name, "ascending") for name in (COMMIT, TIME, *ties)]
    return table.sort_by(order), marker


def _sortable(table: pa.Table, name: str) -> bool:
    kind = table.schema.field(name).type
    return not pa.types.is_nested(kind) and not pa.types.is_null(kind)


def _restored(job: ShardJob, shard: Shard, files: Sequence[str]) -> WindowOperator:
    operator = WindowOperator(
        job.windows,
        panes=job.panes,
        account_for_all=True,
        key_groups=KeyGroupRange(shard.first, shard.last),
        key_group_of=lambda key: job.key.key_group_of(key, job.max_parallelism),
    )
    operator.restore_time(job.watermark_before, job.clock_before)
    if files:
        groups = pc.field("key_group")
        rows = job.warehouse.read_files(
            job.paths[state.NAME],
            files,
            job.schemas[state.NAME],
            where=(groups >= shard.first) & (groups <= shard.last),
        )
        operator.restore_state(job.state.from_table(rows.drop_columns(["manifest"])))
    return operator


def _drive(job: ShardJob, operator: WindowOperator, events: pa.Table, outputs: Outputs) -> None:
    """Feed the events: the clock first, then commit by commit, elements by time, then the watermark."""
    if job.order is not None:
        _drive_in_event_order(job, job.order, operator, events, outputs)
        return
    position = 0
    starts = events[COMMIT].to_pylist()
    for index, step in enumerate(job.steps):
        operator.process_processing_time(step.clock)
        end = position
        while end < len(starts) and starts[end] == index:
            end += 1
        for key, value, time, row in _elements(job, events, position, end):
            operator.process_element(key, value, time)
            outputs.after_element(row)
        position = end
        if step.complete:
            operator.end_commit()
            operator.process_watermark(step.watermark)
        outputs.collect()


def _drive_in_event_order(
    job: ShardJob, order: EventOrder, operator: WindowOperator, events: pa.Table, outputs: Outputs
) -> None:
    (step,) = job.steps
    operator.process_processing_time(step.clock)
    for key, value, time, row in _elements(job, events, 0, len(events)):
        if time - order.lag > operator.current_watermark:
            operator.end_commit()
            operator.process_watermark(time - order.lag)
        operator.process_element(key, value, time)
        outputs.after_element(row)
    operator.end_commit()
    operator.process_watermark(step.watermark)
    outputs.collect()


def _elements(
    job: ShardJob, events: pa.Table, begin: int, end: int
) -> Iterator[tuple[Any, dict[str, Any], Millis, int]]:
    """Key, value, time and row number of each event."""
    for start in range(begin, end, _ROWS_AT_A_TIME):
        part = events.slice(start, min(_ROWS_AT_A_TIME, end - start))
        columns = [part[f"{KEY_PREFIX}{name}"].to_pylist() for name in job.key.names]
        keys = columns[0] if len(columns) == 1 else _tuples(columns, len(part))
        values = _tuples([part[f"{VALUE_PREFIX}{name}"].to_pylist() for name in job.used], len(part))
        for row, (key, value, time) in enumerate(zip(keys, values, part[TIME].to_pylist(), strict=True), start):
            yield key, dict(zip(job.used, value, strict=True)), time, row


def _tuples(columns: list[list[Any]], rows: int) -> Sequence[tuple[Any, ...]]:
    return list(zip(*columns, strict=True)) if columns else [()] * rows


def _state_rows(job: ShardJob, operator: WindowOperator) -> pa.Table:
    rows = job.state.to_table(operator.state_rows(), job.max_parallelism)
    return state.to_delta_rows(rows, job.schemas[state.NAME])


def _counters(operator: WindowOperator, elements: int) -> dict[str, int]:
    counters, timers = operator.counters, operator.timers
    fired = timers.event_time.fired + timers.processing_time.fired
    deleted = timers.event_time.deleted + timers.processing_time.deleted
    return {
        "elements": elements,
        "on_time": counters.on_time,
        "late": counters.late,
        "no_window": counters.no_window,
        **{f"fired_{timing.value}": counters.fired[timing] for timing in Timing},
        "withdrawn": counters.withdrawn,
        "timers_registered": timers.event_time.added + timers.processing_time.added,
        "timers_fired": fired,
        "timers_deleted": deleted,
        "open_windows": len(operator.cells),
    }

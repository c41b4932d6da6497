"""A shard inside a task: the operator reads its state and events, and the task writes its files.

A task commits nothing. A failed or repeated attempt leaves files that no table lists, and VACUUM removes them. A task
reports its files to the driver in one row for each shard. Only `OutcomeRows` turns the outcome of the operator into
rows of tables results, late and state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import late, rejects, results, state
from tidegate.pipelines.definition.counters import CHANGES
from tidegate.pipelines.definition.event_columns import COMMIT, FILE, LAST_TIME, PLACE, ROW, TIME
from tidegate.pipelines.epoch import pieces
from tidegate.pipelines.epoch.exchange import joined
from tidegate.pipelines.epoch.job import ShardJob, elements_of, naming, number_of_events, places_in_time, timeline_of
from tidegate.pipelines.epoch.shard_state import Split, TouchedState, WholeState, is_read_in_part
from tidegate.pipelines.epoch.user_code import error_of, failed_call, origin_of, rows_that_raise
from tidegate.pipelines.errors import Refused, TidegateError
from tidegate.pipelines.failures import is_of_user
from tidegate.pipelines.ledger.manifest import DataFile, Shard
from tidegate.pipelines.ledger.tables.files import write_rows
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.windowing.columnar import (
    ColumnarOperator,
    ColumnarWindowJoin,
    choose_operator,
    joined_outcomes,
    run_in_passes,
    run_in_pieces,
)
from tidegate.windowing.compute import WindowJoin, Windows
from tidegate.windowing.epochs import Elements, EpochOutcome
from tidegate.windowing.epochs.elements import KEY_PREFIX, VALUE_PREFIX
from tidegate.windowing.epochs.row_operator import RowOperator
from tidegate.windowing.errors import WindowingError
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis
from tidegate.windowing.timestamps import in_schema, timestamps_of

RESULT_SCHEMA = pa.schema([("shard", pa.int32()), ("info", pa.string())])
"""Columns of the row in which a task reports a shard to the driver."""

Receive: TypeAlias = Callable[[], Iterator[pa.Table]]
"""Function that yields the events of a shard. They need not fit in memory together: see `pieces`."""


@dataclass
class ShardOutcome:
    """Report of a task to the driver about one shard.

    `kept` are earlier state files of the shard that stay valid.
    """

    shard: int
    changed: bool
    rows: int = 0
    files: dict[str, DataFile] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    next_event_time_timer: Millis | None = None
    next_processing_time_timer: Millis | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the text that the task yields."""
        return json.dumps({**vars(self), "files": {name: file.model_dump() for name, file in self.files.items()}})

    def report(self) -> pa.RecordBatch:
        """Return the row that the task yields."""
        return pa.RecordBatch.from_pydict({"shard": pa.array([self.shard], pa.int32()), "info": [self.to_json()]})

    @classmethod
    def from_json(cls, text: str) -> ShardOutcome:
        """Return the outcome from a text that a task yielded."""
        raw = json.loads(text)
        raw["files"] = {name: DataFile.model_validate(file) for name, file in raw["files"].items()}
        return cls(**raw)


@dataclass(frozen=True)
class Marker:
    """Information for a task about one shard.

    Args:
        shard: number of the shard.
        files: state files of the shard.
        rewrite: True if the state must be rewritten even if nothing changes.
        before: the same key groups in the parent snapshot; None if it had other shards, or read a commit only
            partially. Its timers show whether the state must be read.
        deltas: the files that may hold delta rows.
        split: the files as base and delta; None if the shard has to be read whole.
    """

    shard: int
    files: tuple[str, ...]
    rewrite: bool
    before: Shard | None = None
    deltas: tuple[str, ...] = ()
    split: Split | None = None

    def to_json(self) -> str:
        """Return the text that is sent to the task."""
        before = None if self.before is None else self.before.model_dump()
        return json.dumps({**vars(self), "before": before, "split": self.split and vars(self.split)})

    @classmethod
    def from_json(cls, text: str) -> Marker:
        """Return the marker from its text."""
        raw = json.loads(text)
        before = None if raw["before"] is None else Shard.model_validate(raw["before"])
        split = None if raw["split"] is None else Split(**raw["split"])
        return cls(raw["shard"], tuple(raw["files"]), raw["rewrite"], before, tuple(raw["deltas"]), split)

    def is_untouched(self, job: ShardJob) -> bool:
        """Return True if no timer becomes due in the epoch, so that the shard does not change without events."""
        if self.before is None or self.rewrite:
            return False
        timers = (self.before.next_event_time_timer, self.before.next_processing_time_timer)
        reached = (max(step.watermark for step in job.steps), max(step.clock for step in job.steps))
        return all(timer is None or timer > time for timer, time in zip(timers, reached, strict=True))

    def rows_left(self, job: ShardJob, events: int) -> int:
        """Return the number of state rows that an epoch with this many events does not touch."""
        if self.split is None or self.before is None or not self.is_untouched(job):
            return 0
        return self.before.rows if is_read_in_part(self.before, events) else 0


def outcomes_of(reports: Iterable[pa.RecordBatch]) -> list[ShardOutcome]:
    """Return the outcomes that tasks reported."""
    return [ShardOutcome.from_json(text) for report in reports for text in report.column("info").to_pylist()]


def written_files(outcomes: Iterable[ShardOutcome], table: str) -> tuple[DataFile, ...]:
    """Return the files that tasks wrote for a table."""
    return tuple(outcome.files[table] for outcome in outcomes if table in outcome.files)


def no_events() -> pa.Table:
    """Return an empty table of events, for a shard that received none."""
    return pa.table({COMMIT: [], TIME: []})


def run_shard(job: ShardJob, marker: Marker, receive: Receive) -> pa.RecordBatch:
    """Run a shard, and return the row that reports it to the driver, with a row for each further file."""
    began = perf_counter()
    shard, suffix = job.shards[marker.shard], f"{job.epoch:06d}-{marker.shard:05d}"
    # Rows that raise are found by computing their keys again from the state before the epoch.
    tables, is_large = pieces.taken(receive(), None if job.on_error == "reject" else job.compute)
    events = no_events()
    if not is_large and (whole := joined(list(tables))) is not None:
        events = whole
    received = perf_counter()
    if not is_large and not len(events) and marker.before is not None and marker.is_untouched(job):
        return _unchanged(marker.shard, marker.before, received - began).report()
    before = _whole_state(job, shard, marker, pieces.MOST_ROWS) if is_large else _state(job, shard, marker, events)
    restored = perf_counter()
    unusable: pa.Table | None = None
    try:
        late_files: list[DataFile] = []
        if is_large:
            run = _run_in_pieces(job, tables, before.rows, f"{late.NAME}-{suffix}", late_files)
        else:
            run, unusable = run_rejecting(job, events, before.rows)
    except Exception as error:
        if isinstance(error, pa.ArrowInvalid) and "offset overflow" in str(error):
            raise Refused(
                f"key groups {shard.first} to {shard.last}: a column of the events or of their state is larger than 2 "
                "GiB, the limit of an array. Give the pipeline a larger parallelism, or smaller epochs "
                "(--max-rows-per-epoch, a shorter interval)"
            ) from error
        raise_named(job, events, before.rows, error)
    operated = perf_counter()
    counters = run.counters()
    changed = marker.rewrite or any(counters[name] for name in CHANGES)
    outcome = ShardOutcome(marker.shard, changed)
    if changed:
        # A backfill's interval is already short enough.
        published = run.results() if job.order is not None else results.by_window(run.results())
        for table, table_rows in ((results.NAME, published), (late.NAME, run.late())):
            for file in write_rows(job.warehouse, job.paths[table], f"{table}-{suffix}", table_rows):
                outcome.files[table] = file
        rows = run.state()
        files, kept = before.write(rows, f"{state.NAME}-{suffix}")
        outcome.kept = list(kept)
        for file in files:
            outcome.files[state.NAME] = file
    if unusable is not None:
        for file in write_rows(job.warehouse, job.paths[rejects.NAME], f"{rejects.NAME}-{suffix}", unusable):
            outcome.files[rejects.NAME] = file
        counters["rejected"] = len(unusable)
    outcome.rows = before.count_after(len(rows) if changed else len(before.rows))
    outcome.counters = counters | {"open_windows": before.open_windows_after(counters["open_windows"])}
    outcome.next_event_time_timer, outcome.next_processing_time_timer = before.next_timers(
        (run.next_event_time_timer, run.next_processing_time_timer)
    )
    outcome.seconds = {
        "receive": received - began,
        "restore": restored - received,
        "operate": operated - restored,
        "write": perf_counter() - operated,
    }
    further = [ShardOutcome(-1, True, files={late.NAME: file}) for file in late_files]
    return pa.concat_batches([each.report() for each in (outcome, *further)])


def _run_in_pieces(
    job: ShardJob, tables: Iterator[pa.Table], rows: pa.Table, prefix: str, late_files: list[DataFile]
) -> OutcomeRows:
    """Run the operator of a shard piece by piece. The late rows of each piece are written, and the file is listed."""
    columnar = ColumnarOperator(job.windows, job.state, job.panes, job.max_parallelism)
    outcomes, piece, count = list[EpochOutcome](), pa.table({}), 0

    def fed() -> Iterator[tuple[Elements, int, bool]]:
        nonlocal piece, count
        places = places_in_time(job)
        for piece, last, ended in pieces.in_pieces(tables, len(job.steps), job.steps[-1].complete):
            count += number_of_events(piece)
            yield elements_of(job, piece), int(places[last]), ended

    def run() -> Iterator[EpochOutcome]:
        try:
            yield from run_in_pieces(columnar, fed(), rows, timeline_of(job), 2 * pieces.ROWS_OF_A_PIECE)
        except Exception as error:
            # The state before the piece no longer exists, but most errors depend on a single row only.
            raise_named(job, piece, rows.slice(0, 0), error)

    for outcome in run():
        late_files += write_rows(job.warehouse, job.paths[late.NAME], prefix, OutcomeRows(job, piece, outcome).late())
        if outcomes:
            # Only the state after the last piece is needed.
            outcomes[-1] = replace(outcomes[-1], state=rows.slice(0, 0))
        outcomes.append(replace(outcome, late=outcome.late.slice(0, 0)))
    return OutcomeRows(job, piece, joined_outcomes(outcomes), count)


def _state(job: ShardJob, shard: Shard, marker: Marker, events: pa.Table) -> WholeState | TouchedState:
    if marker.split is not None and marker.before is not None:
        touched = TouchedState.read(job, marker.split, marker.before, events)
        if touched is not None:
            return touched
    # If state need not be rewritten, no file has rows of another shard.
    return _whole_state(job, shard, marker, len(events))


def _whole_state(job: ShardJob, shard: Shard, marker: Marker, events: int) -> WholeState:
    return WholeState.read(job, shard, marker.files, marker.deltas, marker.rewrite, events)


def _unchanged(number: int, before: Shard, receiving: float) -> ShardOutcome:
    counters = dict.fromkeys((*before.counters, *CHANGES), 0) | {"open_windows": before.counters.get("open_windows", 0)}
    return ShardOutcome(
        number,
        changed=False,
        rows=before.rows,
        counters=counters,
        next_event_time_timer=before.next_event_time_timer,
        next_processing_time_timer=before.next_processing_time_timer,
        seconds={"receive": receiving},
    )


def raise_named(job: ShardJob, events: pa.Table, rows: pa.Table, error: Exception) -> NoReturn:
    """Raise an error of a shard. If user code raised it, the new error names the row, timer or window.

    Raises:
        UserCodeFailed: user code raised it, and a retry would fail in the same way.
    """
    if not _may_be_of_user(error):
        raise error
    call = failed_call(job, events, rows, result_type(job))
    if call is None:
        raise error
    raise error_of(job, events, call) from call.error


def _may_be_of_user(error: Exception) -> bool:
    # The library itself refuses a value that user code returned.
    return not isinstance(error, TidegateError) and (isinstance(error, WindowingError) or is_of_user(error))


def run_rejecting(job: ShardJob, events: pa.Table, rows: pa.Table) -> tuple[OutcomeRows, pa.Table | None]:
    """Run the operator of a shard. With `on_error="reject"`, events for which user code raises an error are left out.

    Their rows for table rejects are returned too; None if there are none.
    """
    if job.on_error == "stop":
        return run_operator(job, events, rows), None
    try:
        return run_operator(job, events, rows), None
    except Exception as error:
        raised = rows_that_raise(job, events, rows, result_type(job)) if _may_be_of_user(error) else {}
        if not raised:
            raise
    numbers = np.array(sorted(raised))
    is_left = np.ones(len(events), np.bool_)
    is_left[numbers] = False
    left = events.filter(pa.array(is_left))
    schema, errors = job.schemas[rejects.NAME], [raised[number] for number in numbers.tolist()]
    whole = source_rows(events, job.files, numbers)
    fields = list(schema)[: len(whole)]
    given = pa.Table.from_arrays(whole, names=[field.name for field in fields])
    reasons = pa.repeat(rejects.USER_CODE, len(given))
    origins = [origin_of(job, events, number) for number in numbers.tolist()]
    unusable = rejects.rows_of(given, reasons, schema, job.timeline, job.epoch, errors, origins)
    try:
        return run_operator(job, left, rows), unusable
    except Exception as error:
        raise_named(job, left, rows, error)


def run_operator(job: ShardJob, events: pa.Table, rows: pa.Table) -> OutcomeRows:
    """Run the operator of a shard, whose events may be in any order.

    Raises:
        IllegalArgument: the pipeline's code gave a value that is not valid; the message names the pipeline.
    """
    with naming(job.pipeline):
        return _run(job, events, rows)


def _run(job: ShardJob, events: pa.Table, rows: pa.Table) -> OutcomeRows:
    elements, timeline = elements_of(job, events), timeline_of(job)
    # Whether arrays raise may depend on which elements share an epoch, so errors must be those of single elements.
    if job.on_error == "stop" and choose_operator(job.compute).columnar:
        if isinstance(job.compute, WindowJoin):
            join = ColumnarWindowJoin(job.compute, job.state, job.max_parallelism, result_type(job))
            return OutcomeRows(job, events, join.run(elements, rows, timeline))
        columnar = ColumnarOperator(job.windows, job.state, job.panes, job.max_parallelism)
        return OutcomeRows(job, events, run_in_passes(columnar, elements, rows, timeline))
    row = RowOperator(job.compute, job.state, job.panes, job.max_parallelism, result_type(job))
    return OutcomeRows(job, events, row.run(elements, rows, timeline))


def moments(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return times, int64 epoch milliseconds, as TIMESTAMPs. The smallest and the largest event time become null."""
    has_none = pc.or_(pc.equal(times, MIN_TIMESTAMP), pc.equal(times, MAX_TIMESTAMP))
    return timestamps_of(pc.if_else(has_none, None, times) if pc.any(has_none).as_py() else times)


def source_rows(events: pa.Table, files: FileSlice | None, rows: Sequence[int] | pa.ChunkedArray) -> list[pa.Array]:
    """Return all columns of the source for the given events, in the given order.

    Without `files`, the events include these rows.
    """
    asked = events.take(rows)
    carried = None
    if ROW in events.column_names:
        structs = asked[ROW].combine_chunks()
        if files is None or not structs.null_count:
            return list(structs.flatten())
        carried = pa.Table.from_arrays(structs.flatten(), schema=files.row)
    assert files is not None
    is_carried = (
        np.zeros(len(asked), np.bool_) if carried is None else structs.is_valid().to_numpy(zero_copy_only=False)
    )
    read = pa.array(np.flatnonzero(~is_carried))
    origins = asked.select([FILE, PLACE]).take(read)
    numbers, places = (np.asarray(origins[name].to_numpy()).astype(np.int64) for name in (FILE, PLACE))
    keys = [asked[f"{KEY_PREFIX}{name}"].take(read) for name in files.key]
    whole = files.source_rows(numbers, places, keys)
    if carried is not None and is_carried.any():
        whole = pa.concat_tables([whole, carried.filter(pa.array(is_carried))])
        order = np.concatenate([np.flatnonzero(~is_carried), np.flatnonzero(is_carried)])
        whole = whole.take(pa.array(np.argsort(order)))
    return [column.combine_chunks() for column in whole.columns]


def result_type(job: ShardJob) -> pa.StructType:
    """Return the name and type of each result column, as in table results."""
    reserved = results.RESERVED if isinstance(job.compute, Windows) else results.ELEMENT_RESERVED
    ours = {*job.key.names, *reserved}
    return pa.struct([field for field in job.schemas[results.NAME] if field.name not in ours])


class OutcomeRows:
    """The rows of one shard in one epoch. Each of its events is one element of the outcome.

    `elements` is the number of all events, if `events` has only some of them.
    """

    def __init__(
        self,
        job: ShardJob,
        events: pa.Table,
        outcome: EpochOutcome,
        elements: int | None = None,
    ) -> None:
        self._job = job
        self._events = events
        self._outcome = outcome
        self._elements = number_of_events(events) if elements is None else elements

    def results(self) -> pa.Table:
        """Return rows of table results."""
        schema = self._job.schemas[results.NAME]
        if not isinstance(self._job.compute, Windows):
            outputs = self._outcome.outputs
            columns = {"output": outputs["output"], "event_time": moments(outputs["timestamp"])}
            columns |= self._emitted(len(outputs))
            return self._table(schema, columns | self._keys_and_values(outputs), len(outputs))
        panes = self._outcome.panes
        columns = {name: panes[name] for name in ("window_id", "pane", "timing", "op")}
        columns |= {name: moments(panes[name]) for name in ("window_start", "window_end", "watermark")}
        columns["final_at"] = moments(self._final_at(panes["window_end"]))
        columns |= self._emitted(len(panes))
        return self._table(schema, columns | self._keys_and_values(panes), len(panes))

    def late(self) -> pa.Table:
        """Return rows of table late."""
        rows, schema = self._outcome.late, self._job.schemas[late.NAME]
        columns: dict[str, Any] = {"reason": rows["reason"]}
        columns |= {name: moments(rows[name]) for name in ("watermark", "window_start", "window_end")}
        if len(rows):
            columns["lateness_ms"] = pc.subtract(rows["watermark"], self._events[TIME].take(rows["row"]))
            source = source_rows(self._events, self._job.files, rows["row"])
            for field, values in zip(list(schema)[: -len(late.TRAILING)], source, strict=True):
                columns[field.name] = values.cast(field.type)
        return self._table(schema, columns, len(rows))

    def state(self) -> pa.Table:
        """Return rows of table state."""
        return in_schema(self._outcome.state, self._job.schemas[state.NAME])

    def counters(self) -> dict[str, int]:
        """Return the counters by name."""
        return self._outcome.counters.by_name() | {"elements": self._elements}

    @property
    def next_event_time_timer(self) -> Millis | None:
        """Lowest watermark at which the shard has work to do; None if there is none."""
        return self._outcome.next_timer

    @property
    def next_processing_time_timer(self) -> Millis | None:
        """Processing time at which the next processing-time timer is due."""
        return self._outcome.next_processing_time_timer

    def _final_at(self, ends: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return the watermark at which each window becomes final; null for the global window, which never ends."""
        # With a longer lateness, windows of a snapshot may wait until a time outside the range.
        waited = pc.add(pc.subtract(ends, 1), self._job.windows.lateness)
        return pc.min_element_wise(waited, pa.scalar(LAST_TIME - 1, pa.int64()), skip_nulls=False)

    def _keys_and_values(self, rows: pa.Table) -> dict[str, pa.ChunkedArray]:
        columns = {name: rows[f"{KEY_PREFIX}{name}"] for name in self._job.key.names}
        return columns | {
            name.removeprefix(VALUE_PREFIX): rows[name] for name in rows.column_names if name.startswith(VALUE_PREFIX)
        }

    def _emitted(self, rows: int) -> dict[str, pa.Array]:
        """Return the column with the driver's clock; only table results has it."""
        (moment,) = moments(pa.array([self._job.now], pa.int64()))
        return {"emitted_at": pa.repeat(moment, rows)}

    def _table(self, schema: pa.Schema, columns: dict[str, Any], rows: int) -> pa.Table:
        """Return a table with the given columns, those with one value for the epoch, and nulls in all others."""
        same = {"timeline": self._job.timeline, "epoch": self._job.epoch, "stale": False}
        return in_schema(pa.table({name: pa.repeat(value, rows) for name, value in same.items()} | columns), schema)

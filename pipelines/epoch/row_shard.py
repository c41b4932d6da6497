"""A shard through the row operator: events one by one, and out come the rows of its tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.pipelines.definition.event_columns import (
    COMMIT,
    FILE,
    KEY_PREFIX,
    PLACE,
    ROW,
    SIDE,
    TIME,
    VALUE_PREFIX,
    plain,
)
from tidegate.pipelines.definition.joint import value_column
from tidegate.pipelines.epoch.operators import make_operator
from tidegate.pipelines.epoch.outputs import Outputs
from tidegate.pipelines.epoch.steps import EventOrder
from tidegate.pipelines.manifest import Shard
from tidegate.pipelines.tables import state
from tidegate.windowing.keys import KeyGroupRange
from tidegate.windowing.operators.event_order import advance
from tidegate.windowing.operators.protocol import KeyedOperator
from tidegate.windowing.operators.two_inputs import SIDES
from tidegate.windowing.time import Millis

if TYPE_CHECKING:
    from tidegate.pipelines.epoch.shard import ShardJob

_ROWS_AT_A_TIME = 65_536


class RowShard:
    """One shard of an epoch, run when it is made.

    Args:
        job: what every task of the epoch knows.
        shard: the key groups.
        events: the shard's events, in any order.
        rows: the shard's state rows.
    """

    def __init__(self, job: ShardJob, shard: Shard, events: pa.Table, rows: pa.Table) -> None:
        self._job = job
        self._events = _ordered(events)
        self._operator = _restored(job, shard, rows)
        self._outputs = Outputs(job, self._operator, self._events)
        if job.order is None:
            self._drive()
        else:
            self._drive_in_event_order(job.order)

    def results(self) -> pa.Table:
        """Rows of table results."""
        return self._outputs.results()

    def late(self) -> pa.Table:
        """Rows of table late."""
        return self._outputs.late()

    def state(self) -> pa.Table:
        """Rows of table state."""
        job = self._job
        rows = job.state.to_table(self._operator.state_rows(), job.max_parallelism)
        return state.to_delta_rows(rows, job.schemas[state.NAME])

    def counters(self) -> dict[str, int]:
        """What was counted, by name."""
        return self._operator.counters.by_name() | {"elements": len(self._events)}

    @property
    def next_event_time_timer(self) -> Millis | None:
        """When event time has to reach for something to happen."""
        return self._operator.next_event_time

    @property
    def next_processing_time_timer(self) -> Millis | None:
        """When the next processing-time timer is due."""
        return self._operator.timers.processing_time.peek()

    def _drive(self) -> None:
        """Feed the events: the clock first, then commit by commit, elements by time, then the watermark."""
        job, operator, outputs = self._job, self._operator, self._outputs
        position = 0
        commits = self._events[COMMIT].to_pylist()
        for index, step in enumerate(job.steps):
            operator.process_processing_time(step.clock)
            end = position
            while end < len(commits) and commits[end] == index:
                end += 1
            for key, value, time, side, row in _elements(job, self._events, position, end):
                operator.process_element(key, value, time, side)
                outputs.after_element(row)
            position = end
            if step.complete:
                operator.end_commit()
                operator.process_watermark(step.watermark)
            outputs.collect()

    def _drive_in_event_order(self, order: EventOrder) -> None:
        job, operator, outputs = self._job, self._operator, self._outputs
        (step,) = job.steps
        operator.process_processing_time(step.clock)
        for key, value, time, side, row in _elements(job, self._events, 0, len(self._events)):
            if time - order.lag > operator.timers.current_watermark:
                advance(operator, time - order.lag)
            operator.process_element(key, value, time, side)
            outputs.after_element(row)
        advance(operator, step.watermark)
        outputs.collect()


def _ordered(events: pa.Table) -> pa.Table:
    """Events by commit and time, ties by the columns in use, so that no order of arrival shows."""
    events = pa.table([plain(column) for column in events.columns], names=events.schema.names)
    placed = (ROW, FILE, PLACE, TIME, COMMIT)
    ties = [name for name in events.schema.names if name not in placed and _sortable(events, name)]
    return events.sort_by([(name, "ascending") for name in (COMMIT, TIME, *ties)])


def _sortable(table: pa.Table, name: str) -> bool:
    kind = table.schema.field(name).type
    return not pa.types.is_nested(kind) and not pa.types.is_null(kind)


def _restored(job: ShardJob, shard: Shard, rows: pa.Table) -> KeyedOperator:
    operator = make_operator(
        job.compute,
        job.panes,
        KeyGroupRange(shard.first, shard.last),
        lambda key: job.key.key_group_of(key, job.max_parallelism),
        _element_types(job),
    )
    operator.restore_time(job.watermark_before, job.clock_before)
    operator.restore_state(job.state.from_table(rows))
    return operator


def _elements(
    job: ShardJob, events: pa.Table, begin: int, end: int
) -> Iterator[tuple[Any, dict[str, Any], Millis, str | None, int]]:
    """Key, value, time, side and row number of each event."""
    for start in range(begin, end, _ROWS_AT_A_TIME):
        part = events.slice(start, min(_ROWS_AT_A_TIME, end - start))
        columns = [part[f"{KEY_PREFIX}{name}"].to_pylist() for name in job.key.names]
        keys = columns[0] if len(columns) == 1 else _tuples(columns, len(part))
        times = part[TIME].to_pylist()
        for row, (key, (side, value), time) in enumerate(zip(keys, _values(job, part), times, strict=True), start):
            yield key, value, time, side, row


def _values(job: ShardJob, part: pa.Table) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """The side and the value of each event; of two inputs an event has the columns of its own."""
    # A map is a dict to user code, as it is when an element comes back from a snapshot.
    columns = [part[f"{VALUE_PREFIX}{name}"].to_pylist(maps_as_pydicts="lossy") for name in job.used]
    values = _tuples(columns, len(part))
    if SIDE not in job.used:
        for value in values:
            yield None, dict(zip(job.used, value, strict=True))
        return
    sides = part[f"{VALUE_PREFIX}{SIDE}"].to_pylist()
    names = {own: _columns_of(job, own) for own in SIDES}
    for side, value in zip(sides, values, strict=True):
        yield side, {name: value[i] for i, name in names[side]}


def _columns_of(job: ShardJob, side: str) -> list[tuple[int, str]]:
    """Where the columns of one of two inputs stand among those of both, and what they are called there."""
    prefix = value_column(side, "")
    return [(i, name.removeprefix(prefix)) for i, name in enumerate(job.used) if name.startswith(prefix)]


def _element_types(job: ShardJob) -> tuple[pa.StructType, ...]:
    """The type of the elements of each input."""
    if SIDE not in job.used:
        return (pa.struct(list(zip(job.used, job.value_types, strict=True))),)
    return tuple(pa.struct([(name, job.value_types[i]) for i, name in _columns_of(job, side)]) for side in SIDES)


def _tuples(columns: list[list[Any]], rows: int) -> Sequence[tuple[Any, ...]]:
    return list(zip(*columns, strict=True)) if columns else [()] * rows

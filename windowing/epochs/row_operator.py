"""The epoch operator for any computation: it feeds windows, process functions and joins one element at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.aggregates.vectorised import Int64s
from tidegate.windowing.compute import Compute, CoProcess, IntervalJoin, Join, KeyedProcess, Windows
from tidegate.windowing.declared import row_checker
from tidegate.windowing.epochs.elements import KEY_PREFIX, VALUE_PREFIX, Elements
from tidegate.windowing.epochs.merging import merging
from tidegate.windowing.epochs.outcome import LATE_COLUMNS, EpochOutcome, no_late, nothing, result_table
from tidegate.windowing.epochs.timeline import Timeline
from tidegate.windowing.errors import IllegalArgument, UnsupportedOperation
from tidegate.windowing.keys import KeySchema, window_identity
from tidegate.windowing.operators.joins import IntervalJoinOperator, WindowJoinOperator
from tidegate.windowing.operators.process import KeyedCoProcessOperator, KeyedProcessOperator
from tidegate.windowing.operators.protocol import KeyedOperator
from tidegate.windowing.operators.records import ElementResult, LateElement, SideOutput, WindowPair, WindowResult
from tidegate.windowing.operators.window import WindowOperator
from tidegate.windowing.operators.window.snapshot import without_slices
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.sides import LEFT, RIGHT, SIDES
from tidegate.windowing.state.rows import SLICE, StateRow, StateSchema
from tidegate.windowing.time import Millis
from tidegate.windowing.windows import TimeWindow, start_and_end


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A call of user code that raised an error.

    Args:
        key: the key.
        row: index of the element among those of the epoch; None for a timer, and for a window that fires.
        window: the window; None if there is none, or if an element was being processed.
        timer: time of the timer, int64 epoch milliseconds; None if it was not a timer.
        error: the error.
    """

    key: Any
    row: int | None
    window: TimeWindow | None
    timer: Millis | None
    error: Exception

    @classmethod
    def of(cls, operator: KeyedOperator, element: tuple[Any, int] | None, error: Exception) -> FailedCall:
        """Return the call of user code that raised an error, and its element (key and index) if it had one."""
        key, namespace, timer = operator.running
        window = namespace if isinstance(namespace, TimeWindow) else None
        if element is None:
            return cls(key, None, window, timer, error)
        # The pane that an element fires contains other elements too, so the error is not blamed on this one.
        return cls(element[0], element[1] if operator.firing is None else None, window, None, error)


class RowOperator:
    """An `EpochOperator` around a keyed operator that is created for each epoch; only state rows outlive it.

    Pane policies are for windows; other computations ignore them. `late_output` and `account_for_all` are those of
    `WindowOperator`. After an error of user code, `failed` has the call that raised it.
    """

    def __init__(
        self,
        compute: Compute,
        state: StateSchema,
        panes: PanePolicy,
        max_parallelism: int,
        results: pa.StructType | None = None,
        *,
        late_output: bool = True,
        account_for_all: bool = True,
    ) -> None:
        self._compute = compute
        self._windows = compute if isinstance(compute, Windows) else None
        self._panes = panes
        self._late_output, self._account_for_all = late_output, account_for_all
        self._state = state
        self._max_parallelism = max_parallelism
        self._results = ResultColumns.of(compute, results)
        self.failed: FailedCall | None = None

    def run(self, elements: Elements, state: pa.Table, timeline: Timeline) -> EpochOutcome:
        """Process the elements of an epoch, given the state rows before it; see `EpochOperator`.

        Raises:
            IllegalArgument: a result does not fit the declared columns.
            UnsupportedOperation: a window's function sent something to a side output.
        """
        operator = self._make(elements)
        operator.restore_time(timeline.initial, timeline.clock)
        rows: Iterable[StateRow] = self._state.from_table(state)
        if self._windows is not None and pc.any(pc.equal(state["namespace"], SLICE)).as_py():
            rows = without_slices(rows, self._windows)
        operator.restore_state(rows)
        key = self._state.key
        records = Records()
        try:
            feed(operator, elements, timeline, key, records)
        except Exception as error:
            self.failed = FailedCall.of(operator, records.element, error)
            raise
        operator.counters.elements = elements.total
        gives_panes = self._windows is not None
        if gives_panes:
            refuse_side_outputs(records.outputs)
        return EpochOutcome(
            panes=panes_of(records.panes, key, self._results) if gives_panes else nothing(),
            outputs=nothing() if gives_panes else outputs_of(records.outputs, key, self._results),
            late=late_of(records.late, records.late_rows),
            state=self._state.to_table(operator.state_rows(), self._max_parallelism),
            counters=operator.counters,
            next_timer=operator.next_event_time,
            next_processing_time_timer=operator.timers.processing_time.peek(),
            rows_by_row=elements.total,
        )

    def _make(self, elements: Elements) -> KeyedOperator:
        compute, inputs = self._compute, elements.types
        if isinstance(compute, Windows):
            if elements.counts is not None:
                compute = replace(compute, aggregate=merging(compute.bound_aggregate))
            if compute.reduce is not None:
                compute = replace(compute, reduce=_reducing(compute.reduce, inputs[0]))
            return WindowOperator(
                compute,
                panes=self._panes,
                late_output=self._late_output,
                account_for_all=self._account_for_all,
                check_times=True,
            )
        if isinstance(compute, KeyedProcess):
            return KeyedProcessOperator(compute, value_type=inputs[0])
        if isinstance(compute, CoProcess):
            left, right = inputs
            return KeyedCoProcessOperator(compute, left_type=left, right_type=right)
        return IntervalJoinOperator(compute) if isinstance(compute, IntervalJoin) else WindowJoinOperator(compute)


def _reducing(reduce: Callable[[Any, Any], Any], kind: pa.StructType) -> Callable[[Any, Any], Any]:
    """Wrap a user's reduce function, so that its values are checked and it may modify its arguments."""
    copy, fit = row_checker(kind, reduce, "element"), row_checker(kind, reduce, "reduced value")
    # The elements may also be in other windows, and the reduced value may be in a pane.
    return lambda left, right: fit(reduce(copy(left), copy(right)))


@dataclass(frozen=True)
class ResultColumns:
    """The result columns of a computation, including those of side outputs, and the value type for each tag."""

    fields: pa.StructType
    side_outputs: Mapping[str, pa.StructType]

    @classmethod
    def of(cls, compute: Compute, fields: pa.StructType | None = None) -> ResultColumns:
        """Return the result columns of a computation. By default, they are the declared ones.

        Raises:
            IllegalArgument: `fields` is None and nothing is declared.
        """
        side_outputs = {} if isinstance(compute, Windows | Join) else dict(compute.function.side_outputs)
        if fields is None:
            result = compute.result_type if isinstance(compute.result_type, pa.StructType) else ()
            declared = {field.name: field.type for field in result} | side_outputs
            if not declared:
                raise IllegalArgument("fields", None, "give the type of a result row: the computation declares none")
            fields = pa.struct(list(declared.items()))
        return cls(fields, side_outputs)

    def columns(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, pa.Array]:
        """Return the columns of result rows by name."""
        return {field.name: pa.array([row.get(field.name) for row in rows], field.type) for field in self.fields}

    def row(self, record: ElementResult | SideOutput) -> Mapping[str, Any]:
        """Return the row of an output of a process function or join.

        Raises:
            IllegalArgument: a side output was not declared.
        """
        value = record.value
        if isinstance(record, SideOutput):
            if record.tag not in self.side_outputs:
                tags = sorted(self.side_outputs)
                raise IllegalArgument("tag", record.tag, f"declare it in side_outputs, which has {tags}")
            return {record.tag: value}
        if isinstance(value, WindowPair):
            # The columns are microseconds, and Arrow reads an int as microseconds. A datetime can't exceed the year
            # 9999.
            start, end = (bound * 1000 for bound in value.window)
            return {"window_start": start, "window_end": end, LEFT: value.left, RIGHT: value.right}
        if isinstance(value, tuple):
            return dict(zip(SIDES, value, strict=True))
        row: Mapping[str, Any] = value
        return row


def panes_of(records: Sequence[WindowResult], key: KeySchema, results: ResultColumns) -> pa.Table:
    """Return results of windows in the format of `Outcome.panes`."""
    hashes = {owner: key.hash_of(owner) for owner in {record.key for record in records}}
    bounds = [start_and_end(record.window) for record in records]
    ids = [window_identity(hashes[record.key], *(record.identity or (0, 0))) for record in records]
    return result_table(
        key,
        _keys(records, key),
        results.columns([record.value for record in records]),
        window_id=pa.array(ids, pa.int64()),
        window_start=pa.array([start for start, _ in bounds], pa.int64()),
        window_end=pa.array([end for _, end in bounds], pa.int64()),
        pane=pa.array([record.pane for record in records], pa.int32()),
        timing=pa.array([record.timing.value for record in records], pa.string()),
        op=pa.array([record.op for record in records], pa.string()),
        watermark=pa.array([record.watermark for record in records], pa.int64()),
    )


def outputs_of(records: Sequence[ElementResult | SideOutput], key: KeySchema, results: ResultColumns) -> pa.Table:
    """Return results of functions and joins in the format of `Outcome.outputs`."""
    tags = [record.tag if isinstance(record, SideOutput) else None for record in records]
    return result_table(
        key,
        _keys(records, key),
        results.columns([results.row(record) for record in records]),
        timestamp=pa.array([record.timestamp for record in records], pa.int64()),
        output=pa.array(tags, pa.string()),
    )


def late_of(records: Sequence[LateElement], rows: Sequence[int]) -> pa.Table:
    """Return late elements in the format of `Outcome.late`."""
    if not records:
        return no_late()
    bounds = [start_and_end(record.window) for record in records]
    columns = {
        "row": rows,
        "reason": [record.reason for record in records],
        "watermark": [record.watermark for record in records],
        "window_start": [start for start, _ in bounds],
        "window_end": [end for _, end in bounds],
    }
    return pa.table(columns, schema=LATE_COLUMNS)


def refuse_side_outputs(outputs: Sequence[ElementResult | SideOutput]) -> None:
    """Refuse the side outputs of a window's function."""
    for record in outputs:
        tag = record.tag if isinstance(record, SideOutput) else None
        raise UnsupportedOperation(
            f"side output {tag!r}: all panes of a pipeline have one type, so windows can't have side outputs. Yield a "
            "result with a column for the kind, or create another pipeline"
        )


def _keys(records: Sequence[WindowResult | ElementResult | SideOutput], key: KeySchema) -> list[pa.Array]:
    keys = [key.columns_of(record.key) for record in records]
    return [pa.array([values[i] for values in keys], kind) for i, kind in enumerate(key.types)]


_ROWS_AT_A_TIME = 65_536
_RECORDS_AT_A_TIME = 50_000


@dataclass(slots=True)
class Records:
    """The records that a row operator emitted in an epoch, in the order of their creation.

    `late_rows` has the index of each late element among the elements of the epoch. `element` is the key and the index
    of the element that raised an error.
    """

    panes: list[WindowResult] = field(default_factory=list)
    outputs: list[ElementResult | SideOutput] = field(default_factory=list)
    late: list[LateElement] = field(default_factory=list)
    late_rows: list[int] = field(default_factory=list)
    element: tuple[Any, int] | None = None

    def collect(self, operator: KeyedOperator) -> None:
        """Move the operator's output into this value."""
        for record in operator.take_output():
            if isinstance(record, WindowResult):
                self.panes.append(record)
            elif isinstance(record, ElementResult | SideOutput):
                self.outputs.append(record)
            elif isinstance(record, LateElement):
                self.late.append(record)


Fed: TypeAlias = tuple[Any, dict[str, Any], Millis, str | None, int]
"""Key, value, timestamp and side of an element, as a row operator takes them, and the element's index."""


def feed(operator: KeyedOperator, elements: Elements, timeline: Timeline, key: KeySchema, records: Records) -> None:
    """Feed an epoch: for each commit set the clock, feed its elements by time, then end it and move the watermark.

    A timer of windows that end by the clock fires when the clock has passed its time, as in a running Flink job. So
    elements of the same millisecond come first.

    In event order the watermark follows the elements instead: before an element at t it advances to `t - lag`, but not
    beyond the watermark after the epoch. The output goes to `records`.
    """
    rows = order_of(elements, key)
    ordered = replace(elements, keys=_plain(elements.keys)).take(rows)
    ends = np.searchsorted(ordered.commits, np.arange(len(timeline.clocks)), side="right").tolist()
    steps = zip(timeline.clocks.tolist(), timeline.complete.tolist(), timeline.moves.tolist(), strict=True)
    begin = 0
    for end, (clock, complete, watermark) in zip(ends, steps, strict=True):
        operator.process_processing_time(clock, within=True)
        for key_value, value, timestamp, side, row in _fed(ordered, rows, key, begin, end):
            if (
                timeline.lag is not None
                and (moved := timeline.following(timestamp)) > operator.timers.current_watermark
            ):
                advance(operator, moved)
            size = len(operator.output)
            try:
                operator.process_element(key_value, value, timestamp, side)
            except Exception:
                records.element = (key_value, row)
                raise
            if len(operator.output) > size:
                # The operator emits a late element immediately, as its last record.
                if isinstance(operator.output[-1], LateElement):
                    records.late_rows.append(row)
                if len(operator.output) > _RECORDS_AT_A_TIME:
                    records.collect(operator)
        if timeline.lag is not None:
            advance(operator, watermark)
        elif complete:
            operator.end_commit()
            operator.process_watermark(watermark)
        records.collect(operator)
        begin = end


def advance(operator: KeyedOperator, watermark: Millis) -> None:
    """Advance event time to `watermark`, firing every due timer at its own time.

    So the watermark of a pane does not depend on the other keys of its shard.
    """
    operator.end_commit()
    while (due := operator.next_event_time) is not None and due <= watermark:
        operator.process_watermark(due)
    operator.process_watermark(watermark)


def order_of(elements: Elements, key: KeySchema) -> Int64s:
    """Return the rows of elements by commit and time, then by key and value: the order of arrival has no effect."""
    keys = _plain(elements.keys)
    columns = {
        "commit": pa.array(elements.commits),
        "timestamp": pa.array(elements.timestamps),
        **{f"{KEY_PREFIX}{name}": keys[name] for name in key.names},
        **({} if elements.sides is None else {"side": elements.sides}),
        **{f"{VALUE_PREFIX}{name}": column for name, column in elements.columns.items()},
    }
    by = [(name, "ascending") for name, column in columns.items() if _is_sortable(column.type)]
    return np.asarray(pc.sort_indices(pa.table(columns), sort_keys=by).to_numpy()).astype(np.int64)


def _fed(ordered: Elements, rows: Int64s, key: KeySchema, begin: int, end: int) -> Iterator[Fed]:
    places = {
        side: [(list(ordered.columns).index(column), name) for column, name in columns]
        for side, columns in ordered.names.items()
    }
    for start in range(begin, end, _ROWS_AT_A_TIME):
        part = ordered.slice(start, min(_ROWS_AT_A_TIME, end - start))
        keys = [part.keys[name].to_pylist() for name in key.names]
        # User code sees a map as a dict, both here and after a restore from a snapshot.
        columns = [column.to_pylist(maps_as_pydicts="lossy") for column in part.columns.values()]
        yield from zip(
            keys[0] if len(keys) == 1 else _tuples(keys, len(part)),
            _values(_tuples(columns, len(part)), part, places),
            part.timestamps.tolist(),
            [None] * len(part) if part.sides is None else part.sides.to_pylist(),
            rows[start : start + len(part)].tolist(),
            strict=True,
        )


def _values(
    values: Sequence[tuple[Any, ...]], part: Elements, places: Mapping[str | None, list[tuple[int, str]]]
) -> Iterator[dict[str, Any]]:
    """Yield the value of each element, with the columns of its input."""
    if part.sides is None:
        names = [name for _, name in places[None]]
        yield from (dict(zip(names, value, strict=True)) for value in values)
        return
    for side, value in zip(part.sides.to_pylist(), values, strict=True):
        yield {name: value[i] for i, name in places[side]}


def _plain(columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> dict[str, pa.Array | pa.ChunkedArray]:
    """Return the columns with dictionaries decoded."""
    return {
        name: column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for name, column in columns.items()
    }


def _is_sortable(kind: pa.DataType) -> bool:
    return not pa.types.is_nested(kind) and not pa.types.is_null(kind)


def _tuples(columns: list[list[Any]], rows: int) -> Sequence[tuple[Any, ...]]:
    return list(zip(*columns, strict=True)) if columns else [()] * rows

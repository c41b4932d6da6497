"""The keys and clusters that arrays would not get exactly right go through the row operator, here.

Keys are their codes, so results, late elements and state rows come back in the form that kernels give.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Int64s
from tidegate.windowing.columnar.contents import ColumnarContents
from tidegate.windowing.columnar.elements import Elements
from tidegate.windowing.columnar.kernel import LateRows, Made
from tidegate.windowing.columnar.panes import TIMINGS, PaneRows
from tidegate.windowing.columnar.state import CodedRows, StateArrays
from tidegate.windowing.columnar.timeline import Timeline
from tidegate.windowing.operators.event_order import advance
from tidegate.windowing.operators.records import LateElement, WindowResult
from tidegate.windowing.operators.window.operator import WindowOperator
from tidegate.windowing.time import Millis
from tidegate.windowing.windows import TimeWindow, Window

_COMMIT, _TIME, _CODE, _ROW = "__commit", "__time", "__code", "__row"


def run_by_row(
    operator: WindowOperator,
    contents: ColumnarContents,
    state: StateArrays,
    timeline: Timeline,
    clock: Millis,
    elements: Elements,
    codes: Int64s,
    rows: Int64s,
    known: CodedRows,
) -> Made:
    """Run some elements and state rows through a new row operator.

    Args:
        operator: the operator; it is new.
        contents: the aggregates.
        state: the state rows.
        timeline: how the watermark moves.
        clock: processing time, int64 epoch milliseconds.
        elements: all elements.
        codes: the key of each element.
        rows: the elements that go this way.
        known: the state rows that do.
    """
    operator.restore_time(timeline.initial, clock)
    table = known.rows.add_column(0, "code", pa.array(known.codes))
    operator.restore_state(state.by_code.from_table(table))
    late_rows = _feed(operator, timeline, _ordered(elements, codes, rows))
    made = Made()
    records = operator.take_output()
    results = [record for record in records if isinstance(record, WindowResult)]
    if results:
        made.panes.append(_panes(results, contents.result))
    late = [record for record in records if isinstance(record, LateElement)]
    if late:
        made.late.append(_late(late, late_rows))
    by_code = state.by_code.to_table(operator.state_rows(), 1)
    made.state.append(CodedRows(by_code["code"].to_numpy(), state.rest_of(by_code)))
    made.counters = operator.counters
    timers = operator.timers.event_time
    made.counters.timers_registered = timers.added
    made.counters.timers_fired = timers.fired
    made.counters.timers_deleted = timers.deleted
    made.counters.open_windows = len(operator.cells)
    return made


def _ordered(elements: Elements, codes: Int64s, rows: Int64s) -> pa.Table:
    """Elements by commit and time, equal ones by their columns, as a shard's elements come."""
    places = pa.array(rows)
    columns = {
        _COMMIT: pa.array(elements.commits[rows]),
        _TIME: pa.array(elements.timestamps[rows]),
        **{name: column.take(places) for name, column in elements.columns.items()},
        _CODE: pa.array(codes[rows]),
        _ROW: places,
    }
    names = [name for name, column in columns.items() if name != _ROW and not pa.types.is_nested(column.type)]
    return pa.table(columns).sort_by([(name, "ascending") for name in names])


def _feed(operator: WindowOperator, timeline: Timeline, table: pa.Table) -> list[int]:
    """Feed elements and move the watermark; the rows of the elements that were put out as late."""
    late: list[int] = []
    lag = timeline.lag
    commit = 0
    for row, key, value, time, own in _values(table):
        if lag is None:
            for passed in range(commit, own):
                _end_commit(operator, timeline, passed)
            commit = own
        elif time - lag > operator.current_watermark:
            advance(operator, time - lag)
        before = operator.counters.late
        operator.process_element(key, value, time)
        if operator.counters.late > before:
            late.append(row)
    if lag is not None:
        advance(operator, timeline.final)
        return late
    for passed in range(commit, len(timeline.complete)):
        _end_commit(operator, timeline, passed)
    return late


def _end_commit(operator: WindowOperator, timeline: Timeline, commit: int) -> None:
    if timeline.complete[commit]:
        operator.end_commit()
        operator.process_watermark(int(np.append(timeline.before[1:], timeline.final)[commit]))


def _values(table: pa.Table) -> Iterator[tuple[int, int, dict[str, Any], int, int]]:
    """Row, key, value, time and commit of each element."""
    own = {_COMMIT, _TIME, _CODE, _ROW}
    columns = table.select([name for name in table.column_names if name not in own])
    frame = (table[name].to_pylist() for name in (_ROW, _CODE, _TIME, _COMMIT))
    values = columns.to_pylist() if columns.num_columns else [{} for _ in range(len(table))]
    for row, code, time, commit, value in zip(*frame, values, strict=True):
        yield row, code, value, time, commit


def _panes(results: list[WindowResult], result: pa.StructType) -> PaneRows:
    return PaneRows(
        _numbers(record.key for record in results),
        _numbers(_bound(record.window, 0) for record in results),
        _numbers(_bound(record.window, 1) for record in results),
        (
            _numbers(_bound(record.identity, 0) for record in results),
            _numbers(_bound(record.identity, 1) for record in results),
        ),
        _numbers(record.pane for record in results),
        _numbers(TIMINGS.index(record.timing.value) for record in results),
        _numbers(record.op == "-" for record in results),
        _numbers(record.watermark for record in results),
        [pa.array([record.value[field.name] for record in results], field.type) for field in result],
    )


def _late(late: list[LateElement], rows: list[int]) -> LateRows:
    return LateRows(
        _numbers(rows),
        _numbers(record.watermark for record in late),
        _numbers(_bound(record.window, 0) for record in late),
        _numbers(_bound(record.window, 1) for record in late),
        np.array([isinstance(record.window, TimeWindow) for record in late]),
        [record.reason for record in late],
    )


def _bound(window: Window | None, index: int) -> Millis:
    return window[index] if isinstance(window, TimeWindow) else 0


def _numbers(values: Any) -> Int64s:
    return np.fromiter(values, np.int64)

"""The row operator with the columnar operator's interface, so that tests can hold one against the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.columnar import Elements, Outcome, Timeline
from tidegate.windowing.columnar.operator import no_late
from tidegate.windowing.compute import Windows
from tidegate.windowing.keys import KeySchema, window_identity
from tidegate.windowing.operators.event_order import advance
from tidegate.windowing.operators.records import LateElement, WindowResult
from tidegate.windowing.operators.window import WindowOperator
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.state.rows import StateSchema
from tidegate.windowing.time import Millis
from tidegate.windowing.windows import TimeWindow, Window


def row_epoch(
    windows: Windows,
    state: StateSchema,
    panes: PanePolicy,
    max_parallelism: int,
    elements: Elements,
    before: pa.Table,
    timeline: Timeline,
    clock: Millis = 0,
) -> Outcome:
    """An epoch through the row operator, fed as a pipeline's shard feeds it."""
    operator = WindowOperator(windows, panes=panes, account_for_all=True)
    operator.restore_time(timeline.initial, clock)
    operator.restore_state(state.from_table(before))
    late_rows = list(_feed(operator, timeline, state.key, elements))
    records = operator.take_output()
    operator.counters.timers_registered = operator.timers.event_time.added
    operator.counters.timers_fired = operator.timers.event_time.fired
    operator.counters.timers_deleted = operator.timers.event_time.deleted
    operator.counters.open_windows = len(operator.cells)
    late = [record for record in records if isinstance(record, LateElement)]
    return Outcome(
        _panes([record for record in records if isinstance(record, WindowResult)], windows, state.key),
        pa.Table.from_pylist(
            [
                {
                    "row": row,
                    "reason": record.reason,
                    "watermark": record.watermark,
                    "window_start": _bound(record.window, 0),
                    "window_end": _bound(record.window, 1),
                }
                for row, record in zip(late_rows, late, strict=True)
            ],
            schema=no_late().schema,
        ),
        state.to_table(operator.state_rows(), max_parallelism),
        operator.counters,
        operator.timers.event_time.peek(),
        len(elements),
    )


def _feed(operator: WindowOperator, timeline: Timeline, key: KeySchema, elements: Elements) -> Iterator[int]:
    """Feed the elements and move time; gives the row of each late element."""
    table = pa.table({**dict(elements.keys), **dict(elements.columns)}) if elements.keys or elements.columns else None
    values = [{}] * len(elements) if table is None else table.select(list(elements.columns)).to_pylist()
    keys = list(zip(*[elements.keys[name].to_pylist() for name in key.names], strict=True)) or [()] * len(elements)
    watermarks = [*timeline.before[1:].tolist(), timeline.final]
    order = _order(elements)
    times, commits = elements.timestamps.tolist(), elements.commits.tolist()

    def process(row: int) -> Iterator[int]:
        late = operator.counters.late
        operator.process_element(key.key_of(keys[row]), values[row], times[row])
        if operator.counters.late > late:
            yield row

    if timeline.lag is not None:
        for row in order:
            if times[row] - timeline.lag > operator.current_watermark:
                advance(operator, times[row] - timeline.lag)
            yield from process(row)
        advance(operator, timeline.final)
        return
    for commit, complete in enumerate(timeline.complete.tolist()):
        for row in order:
            if commits[row] == commit:
                yield from process(row)
        if complete:
            operator.end_commit()
            operator.process_watermark(watermarks[commit])


def _order(elements: Elements) -> list[int]:
    """The rows by commit and time, ties by the columns, as a shard feeds them."""
    columns: dict[str, Any] = {"commit": pa.array(elements.commits), "time": pa.array(elements.timestamps)}
    columns |= {f"key_{name}": column for name, column in elements.keys.items()}
    columns |= {f"value_{name}": column for name, column in elements.columns.items()}
    keys = [(name, "ascending") for name, column in columns.items() if not pa.types.is_nested(column.type)]
    rows: list[int] = pc.sort_indices(pa.table(columns), sort_keys=keys).to_pylist()
    return rows


def _panes(results: list[WindowResult], windows: Windows, key: KeySchema) -> pa.Table:
    columns: dict[str, Any] = {
        f"key_{name}": pa.array([key.columns_of(record.key)[i] for record in results], kind)
        for i, (name, kind) in enumerate(zip(key.names, key.types, strict=True))
    }
    columns |= {
        "window_id": pa.array([_id(key, record) for record in results], pa.int64()),
        "window_start": pa.array([_bound(record.window, 0) for record in results], pa.int64()),
        "window_end": pa.array([_bound(record.window, 1) for record in results], pa.int64()),
        "pane": pa.array([record.pane for record in results], pa.int32()),
        "timing": pa.array([record.timing.value for record in results], pa.string()),
        "op": pa.array([record.op for record in results], pa.string()),
        "watermark": pa.array([record.watermark for record in results], pa.int64()),
    }
    for field in windows.result_type or ():
        columns[f"value_{field.name}"] = pa.array([record.value[field.name] for record in results], field.type)
    return pa.table(columns)


def _id(key: KeySchema, record: WindowResult) -> int:
    return window_identity(key.hash_of(record.key), *(record.identity or (0, 0)))


def _bound(window: Window | None, index: int) -> Millis | None:
    return window[index] if isinstance(window, TimeWindow) else None

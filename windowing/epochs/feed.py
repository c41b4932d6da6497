"""The only feed of a row operator: it advances time and passes on the elements of an epoch in order.

Pipelines, the columnar operator's fallback, the test harnesses for users and the property tests all use it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.windowing.aggregates.vectorised import Int64s
from tidegate.windowing.epochs.elements import KEY_PREFIX, VALUE_PREFIX, Elements
from tidegate.windowing.epochs.timeline import Timeline
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.operators.protocol import KeyedOperator
from tidegate.windowing.operators.records import ElementResult, LateElement, SideOutput, WindowResult
from tidegate.windowing.time import Millis

_ROWS_AT_A_TIME = 65_536
_RECORDS_AT_A_TIME = 50_000


@dataclass(frozen=True, slots=True)
class Records:
    """The records that a row operator emitted in an epoch, in the order of their creation.

    `late_rows` has the index of each late element among the elements of the epoch.
    """

    panes: list[WindowResult] = field(default_factory=list)
    outputs: list[ElementResult | SideOutput] = field(default_factory=list)
    late: list[LateElement] = field(default_factory=list)
    late_rows: list[int] = field(default_factory=list)

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
"""Key, value, timestamp and side of an element, as a row operator takes them, and its index among the elements."""


def feed(operator: KeyedOperator, elements: Elements, timeline: Timeline, key: KeySchema) -> Records:
    """Feed an epoch: for each commit set the clock, feed its elements by time, then end it and move the watermark.

    A timer of windows that end by the clock fires when the clock has passed its time, as in a running Flink job. So
    elements of the same millisecond come first.

    In event order the watermark follows the elements instead: before an element at t it advances to `t - lag`, but not
    beyond the watermark after the epoch.
    """
    records = Records()
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
            operator.process_element(key_value, value, timestamp, side)
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
    return records


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
    """Yield the elements from `begin` to `end`, exclusive."""
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

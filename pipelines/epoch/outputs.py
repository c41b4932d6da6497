"""What the operator of a shard puts out, gathered into the rows of tables results and late."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.pipelines.epoch.element_rows import check_names, declared_types, element_columns
from tidegate.pipelines.epoch.moments import moments
from tidegate.pipelines.epoch.source_rows import source_rows
from tidegate.pipelines.tables import late, results
from tidegate.windowing.aggregates import AggregateColumns
from tidegate.windowing.compute import Windows
from tidegate.windowing.declared import declared_array
from tidegate.windowing.errors import UnsupportedOperation
from tidegate.windowing.keys import window_identity
from tidegate.windowing.operators.protocol import KeyedOperator
from tidegate.windowing.operators.records import ElementResult, LateElement, SideOutput, WindowResult
from tidegate.windowing.time import MAX_TIMESTAMP, Millis
from tidegate.windowing.windows import TimeWindow, Window

if TYPE_CHECKING:
    from tidegate.pipelines.epoch.shard import ShardJob

_RECORDS_AT_A_TIME = 50_000


class Outputs:
    """Records of one operator, and of each late one the row of the slice it came from."""

    def __init__(self, job: ShardJob, operator: KeyedOperator, events: pa.Table) -> None:
        self._job = job
        self._operator = operator
        self._events = events
        self._results: list[WindowResult] = []
        self._elements: list[ElementResult | SideOutput] = []
        self._late: list[LateElement] = []
        self._late_rows: list[int] = []
        self._hashes: dict[Any, int] = {}

    def after_element(self, row: int) -> None:
        """Note whether the element of a row was late."""
        counters = self._operator.counters
        if counters.late > len(self._late_rows):
            self._late_rows.append(row)
        if len(self._operator.output) > _RECORDS_AT_A_TIME:
            self.collect()

    def collect(self) -> None:
        """Take what the operator put out."""
        for record in self._operator.take_output():
            if isinstance(record, WindowResult):
                self._results.append(record)
            elif isinstance(record, ElementResult | SideOutput):
                self._elements.append(record)
            elif isinstance(record, LateElement):
                self._late.append(record)

    def results(self) -> pa.Table:
        """Rows of table results.

        Raises:
            IllegalArgument: a result is not what was declared.
            UnsupportedOperation: a window's function sent something to a side output.
        """
        job, records = self._job, self._results
        schema = job.schemas[results.NAME]
        if not isinstance(job.compute, Windows):
            columns = element_columns(job, self._elements)
            columns["event_time"] = _moments(record.timestamp for record in self._elements)
            return self._table(schema, columns, len(self._elements))
        if self._elements:
            raise UnsupportedOperation(
                f"side output {self._elements[0].tag!r}: the panes of windows have one type in a pipeline. Yield a "  # type: ignore[union-attr]
                "result with a column that tells, or make it a pipeline of its own"
            )
        lateness = job.windows.lateness
        keys = [job.key.columns_of(record.key) for record in records]
        columns = {name: [key[i] for key in keys] for i, name in enumerate(job.key.names)}
        columns |= {
            "window_id": [self._window_id(record.key, record.identity) for record in records],
            "window_start": _moments(_bound(record.window, 0) for record in records),
            "window_end": _moments(_bound(record.window, 1) for record in records),
            "pane": [record.pane for record in records],
            "timing": [record.timing.value for record in records],
            "op": [record.op for record in records],
            "final_at": _moments(min(record.timestamp + lateness, MAX_TIMESTAMP) for record in records),
            "watermark": _moments(record.watermark for record in records),
        }
        ours = {field.name for field in results.LEADING} | set(job.key.names)
        columns |= self._values([field for field in schema if field.name not in ours])
        return self._table(schema, columns, len(records))

    def _values(self, fields: list[pa.Field]) -> dict[str, Any]:
        """The result columns of windows; those of the user's own code are held against their types."""
        values = [record.value for record in self._results]
        windows = self._job.windows
        if windows.process is None and isinstance(windows.aggregate, Mapping | AggregateColumns):
            return {field.name: [value[field.name] for value in values] for field in fields}
        names, declared = {field.name for field in fields}, declared_types(windows)
        for value in values:
            check_names("result", value, names)
        return {
            field.name: declared_array(
                f"result column {field.name!r}",
                [value.get(field.name) for value in values],
                field.type,
                declared.get(field.name),
            )
            for field in fields
        }

    def late(self) -> pa.Table:
        """Rows of table late."""
        schema, records = self._job.schemas[late.NAME], self._late
        columns: dict[str, Any] = {
            "reason": [record.reason for record in records],
            "lateness_ms": [
                None if record.timestamp is None else record.watermark - record.timestamp for record in records
            ],
            "watermark": _moments(record.watermark for record in records),
            "window_start": _moments(_bound(record.window, 0) for record in records),
            "window_end": _moments(_bound(record.window, 1) for record in records),
        }
        if records:
            rows = source_rows(self._events, self._job.files, self._late_rows)
            for field, values in zip(list(schema)[: -len(late.TRAILING)], rows, strict=True):
                columns[field.name] = values.cast(field.type)
        return self._table(schema, columns, len(records))

    def _table(self, schema: pa.Schema, columns: Mapping[str, Any], rows: int) -> pa.Table:
        job = self._job
        same = {
            "timeline": [job.timeline] * rows,
            "epoch": [job.epoch] * rows,
            "emitted_at": _moments([job.now] * rows),
            "stale": [False] * rows,
        }
        arrays = [_array({**same, **columns}.get(field.name), field.type, rows) for field in schema]
        return pa.table(arrays, schema=schema)

    def _window_id(self, key: Any, window: Window) -> int:
        known = self._hashes.get(key)
        if known is None:
            known = self._hashes[key] = self._job.key.hash_of(key)
        return window_identity(known, *window) if isinstance(window, TimeWindow) else window_identity(known, 0, 0)


def _bound(window: Window | None, index: int) -> Millis | None:
    return window[index] if isinstance(window, TimeWindow) else None


def _moments(times: Iterable[Millis | None]) -> pa.Array:
    return moments(pa.array(times, pa.int64()))


def _array(values: Any, kind: pa.DataType, rows: int) -> pa.Array:
    if values is None:
        return pa.nulls(rows, kind)
    return values if isinstance(values, pa.Array) else pa.array(values, kind)

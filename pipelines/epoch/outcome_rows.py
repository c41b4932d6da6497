"""The one place that turns the outcome of a shard's operator into rows of tables results, late and state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import late, results, state
from tidegate.pipelines.definition.event_columns import FILE, LAST_TIME, PLACE, ROW, TIME
from tidegate.pipelines.epoch.job import ShardJob
from tidegate.pipelines.epoch.next_panes import Numbers, renumbered, renumbered_state
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.windowing.compute import Windows
from tidegate.windowing.epochs import Outcome
from tidegate.windowing.epochs.elements import KEY_PREFIX, VALUE_PREFIX
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis
from tidegate.windowing.timestamps import as_type, timestamps_of


def moments(times: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return times, int64 epoch milliseconds, as TIMESTAMPs. The minimum and maximum of event time become null."""
    bounds = pc.min_max(times)
    first, last = bounds["min"].as_py(), bounds["max"].as_py()
    if first is None or (first > MIN_TIMESTAMP and last < LAST_TIME):
        return timestamps_of(times)
    fits = pc.and_(pc.greater(times, MIN_TIMESTAMP), pc.less(times, LAST_TIME))
    return timestamps_of(pc.if_else(fits, times, None))


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
        carried = pa.Table.from_arrays(structs.flatten(), schema=files.shape.rows)
    assert files is not None
    is_carried = (
        np.zeros(len(asked), np.bool_) if carried is None else structs.is_valid().to_numpy(zero_copy_only=False)
    )
    read = pa.array(np.flatnonzero(~is_carried))
    origins = asked.select([FILE, PLACE]).take(read)
    numbers, places = (np.asarray(origins[name].to_numpy()).astype(np.int64) for name in (FILE, PLACE))
    keys = [asked[f"{KEY_PREFIX}{name}"].take(read) for name in files.shape.key]
    whole = files.source_rows(numbers, places, keys)
    if carried is not None and is_carried.any():
        whole = pa.concat_tables([whole, carried.filter(pa.array(is_carried))])
        order = np.concatenate([np.flatnonzero(~is_carried), np.flatnonzero(is_carried)])
        whole = whole.take(pa.array(np.argsort(order)))
    return [column.combine_chunks() for column in whole.columns]


def result_type(job: ShardJob) -> pa.StructType:
    """Return name and type of each result column, as in table results."""
    reserved = results.RESERVED if isinstance(job.compute, Windows) else results.ELEMENT_RESERVED
    ours = {*job.key.names, *reserved}
    return pa.struct([field for field in job.schemas[results.NAME] if field.name not in ours])


class OutcomeRows:
    """The rows of one shard in one epoch. Each of its events is one element of the outcome.

    `numbers` are those of the first panes of windows that reappear.
    """

    def __init__(
        self, job: ShardJob, events: pa.Table, outcome: Outcome, numbers: Numbers = MappingProxyType({})
    ) -> None:
        self._job = job
        self._numbers = numbers
        self._events = events
        self._outcome = outcome

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
        rows = self._table(schema, columns | self._keys_and_values(panes), len(panes))
        return renumbered(rows, self._job.key.names, self._numbers) if self._numbers else rows

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
        job, rows = self._job, self._outcome.state
        if self._numbers:
            rows = renumbered_state(job, rows, self._numbers)
        return state.to_delta_rows(rows, job.schemas[state.NAME])

    def counters(self) -> dict[str, int]:
        """Return the counters by name."""
        return self._outcome.counters.by_name() | {"elements": len(self._events)}

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
        lateness = self._job.windows.lateness
        latest = pa.scalar(max(MAX_TIMESTAMP - lateness, 0), pa.int64())
        return pc.add(pc.min_element_wise(pc.subtract(ends, 1), latest, skip_nulls=False), lateness)

    def _keys_and_values(self, rows: pa.Table) -> dict[str, pa.ChunkedArray]:
        columns = {name: rows[f"{KEY_PREFIX}{name}"] for name in self._job.key.names}
        return columns | {
            name.removeprefix(VALUE_PREFIX): rows[name] for name in rows.column_names if name.startswith(VALUE_PREFIX)
        }

    def _emitted(self, rows: int) -> dict[str, pa.Array]:
        """Return the column with the driver's clock; only table results has it."""
        (moment,) = moments(pa.array([self._job.now], pa.int64()))
        return {"emitted_at": pa.repeat(moment, rows)}

    def _table(self, schema: pa.Schema, columns: Mapping[str, Any], rows: int) -> pa.Table:
        """Return a table with the given columns, columns with one value for the epoch, and nulls in all others."""
        job = self._job
        same = {"timeline": job.timeline, "epoch": job.epoch, "stale": False}
        arrays = []
        for field in schema:
            if field.name in columns:
                column = columns[field.name]
                arrays.append(as_type(column, field.type))
            elif field.name in same:
                arrays.append(pa.repeat(pa.scalar(same[field.name], field.type), rows))
            else:
                arrays.append(pa.nulls(rows, field.type))
        return pa.table(arrays, schema=schema)

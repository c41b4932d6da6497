"""A shard through the columnar operator: arrays in, the rows of tables results, late and state out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.event_columns import COMMIT, KEY_PREFIX, TIME, VALUE_PREFIX
from tidegate.pipelines.epoch.moments import moments
from tidegate.pipelines.epoch.source_rows import source_rows
from tidegate.pipelines.tables import late, results, state
from tidegate.windowing.columnar import ColumnarOperator, Elements, Outcome, Timeline, run_in_passes
from tidegate.windowing.time import MAX_TIMESTAMP, Millis

if TYPE_CHECKING:
    from tidegate.pipelines.epoch.shard import ShardJob


class ColumnarShard:
    """One shard of an epoch, run when it is made.

    Args:
        job: what every task of the epoch knows.
        events: the shard's events, in any order.
        rows: the shard's state rows.
    """

    def __init__(self, job: ShardJob, events: pa.Table, rows: pa.Table) -> None:
        self._job = job
        self._events = events
        operator = ColumnarOperator(job.windows, job.state, job.panes, job.max_parallelism)
        self._outcome: Outcome = run_in_passes(
            operator, _elements(job, events), rows, _timeline(job), job.steps[-1].clock
        )

    def results(self) -> pa.Table:
        """Rows of table results."""
        job, panes = self._job, self._outcome.panes
        ends, lateness = panes["window_end"], job.windows.lateness
        known: dict[str, Any] = {name: panes[f"{KEY_PREFIX}{name}"] for name in job.key.names}
        known |= {name: panes[name] for name in ("window_id", "pane", "timing", "op")}
        known |= {name: moments(panes[name]) for name in ("window_start", "window_end", "watermark")}
        last = pc.subtract(ends, 1)
        capped = pc.min_element_wise(last, pa.scalar(max(MAX_TIMESTAMP - lateness, 0), pa.int64()))
        known["final_at"] = moments(pc.add(capped, lateness))
        known |= {
            name.removeprefix(VALUE_PREFIX): panes[name] for name in panes.column_names if name.startswith(VALUE_PREFIX)
        }
        return self._table(job.schemas[results.NAME], known, len(panes))

    def late(self) -> pa.Table:
        """Rows of table late."""
        found, schema = self._outcome.late, self._job.schemas[late.NAME]
        rows = found["row"]
        known: dict[str, Any] = {"reason": found["reason"]}
        known |= {name: moments(found[name]) for name in ("watermark", "window_start", "window_end")}
        if len(found):
            known["lateness_ms"] = pc.subtract(found["watermark"], self._events[TIME].take(rows))
            source = source_rows(self._events, self._job.files, rows)
            for field, values in zip(list(schema)[: -len(late.TRAILING)], source, strict=True):
                known[field.name] = values.cast(field.type)
        return self._table(schema, known, len(found))

    def state(self) -> pa.Table:
        """Rows of table state."""
        return state.to_delta_rows(self._outcome.state, self._job.schemas[state.NAME])

    def counters(self) -> dict[str, int]:
        """What was counted, by name."""
        return self._outcome.counters.by_name() | {"elements": len(self._events)}

    @property
    def next_event_time_timer(self) -> Millis | None:
        """When the next event-time timer is due."""
        return self._outcome.next_timer

    @property
    def next_processing_time_timer(self) -> Millis | None:
        """Event-time windows set no timers in processing time."""
        return None

    def _table(self, schema: pa.Schema, known: Mapping[str, Any], rows: int) -> pa.Table:
        job = self._job
        same = {"timeline": job.timeline, "epoch": job.epoch, "stale": False}
        columns = []
        for field in schema:
            if field.name in known:
                column = known[field.name]
                columns.append(column if column.type == field.type else column.cast(field.type))
            elif field.name == "emitted_at":
                columns.append(moments(pa.repeat(pa.scalar(job.now, pa.int64()), rows)))
            elif field.name in same:
                columns.append(pa.repeat(pa.scalar(same[field.name], field.type), rows))
            else:
                columns.append(pa.nulls(rows, field.type))
        return pa.table(columns, schema=schema)


def _elements(job: ShardJob, events: pa.Table) -> Elements:
    keys = zip(job.key.names, job.key.types, strict=True)
    used = zip(job.used, job.value_types, strict=True)
    return Elements(
        {name: _key(events, f"{KEY_PREFIX}{name}", kind) for name, kind in keys},
        _integers(events, TIME),
        _integers(events, COMMIT),
        {name: _column(events, f"{VALUE_PREFIX}{name}", kind) for name, kind in used},
    )


def _column(events: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    """A column in one piece; of nothing, where a slice has no events and no columns."""
    if name not in events.column_names:
        return pa.array([], kind)
    column = events[name].combine_chunks()
    return column if column.type == kind else column.cast(kind)


def _key(events: pa.Table, name: str, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """A key column; dictionaries stay what they are, since keys are put into one anyway."""
    if name in events.column_names and pa.types.is_dictionary(events.schema.field(name).type):
        return events[name]
    return _column(events, name, kind)


def _integers(events: pa.Table, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(_column(events, name, pa.int64()).to_numpy())


def _timeline(job: ShardJob) -> Timeline:
    if job.order is not None:
        return Timeline.in_event_order(job.watermark_before, job.steps[-1].watermark, job.order.lag)
    return Timeline.of_commits(job.watermark_before, [(step.watermark, step.complete) for step in job.steps])

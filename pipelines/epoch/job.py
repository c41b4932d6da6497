"""The job of an epoch's tasks, and the conversion of a shard's events to an operator's elements and timeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.event_columns import COMMIT, COUNT, KEY_PREFIX, SIDE, TIME, VALUE_PREFIX
from tidegate.pipelines.definition.pipeline import OnError
from tidegate.pipelines.epoch.event_times import CommitStep, EventOrder
from tidegate.pipelines.epoch.exchange import Placing
from tidegate.pipelines.ledger.manifest import Shard
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.aggregates.vectorised import Int64s
from tidegate.windowing.columnar import Combining
from tidegate.windowing.compute import Compute, Windows
from tidegate.windowing.epochs import Elements, Timeline
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.panes import PanePolicy
from tidegate.windowing.state.migration import StateFormat
from tidegate.windowing.state.rows import StateSchema
from tidegate.windowing.time import Millis
from tidegate.windowing.timestamps import as_type


@dataclass(frozen=True)
class ShardJob:
    """Everything that each task of an epoch needs; this value is sent to the executors.

    `pipeline` is the name that begins messages about values that its code returned. `old_format` is the format of the
    state rows if they must be migrated, otherwise None. `files` is the slice that the events were read from. With
    `on_error="reject"`, each event must have its origin, see `FileSlice.events_of`.
    """

    pipeline: str
    warehouse: Warehouse
    paths: Mapping[str, str]
    schemas: Mapping[str, pa.Schema]
    compute: Compute
    panes: PanePolicy
    key: KeySchema
    used: tuple[str, ...]
    value_types: tuple[pa.DataType, ...]
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
    old_format: StateFormat | None = None
    left_behind: frozenset[str] = frozenset()
    files: FileSlice | None = None
    on_error: OnError = "stop"

    @property
    def placing(self) -> Placing:
        """Assignment of keys to the shards of the job."""
        return Placing(self.key, self.shards, self.max_parallelism)

    @property
    def combining(self) -> Combining | None:
        """How events are combined where they are read; None if each goes to its shard alone."""
        # An error of user code must be that of one row.
        if self.on_error != "stop":
            return None
        found = Combining.of(self.compute)
        return found if isinstance(found, Combining) else None

    @property
    def windows(self) -> Windows:
        """The computation, which must be windows."""
        assert isinstance(self.compute, Windows)
        return self.compute


@contextmanager
def naming(pipeline: str) -> Iterator[None]:
    """Add the name of the pipeline to an error about a value that its code returned."""
    try:
        yield
    except IllegalArgument as error:
        raise IllegalArgument(f"pipeline {pipeline}: {error.field}", error.value, error.remedy) from error


def elements_of(job: ShardJob, events: pa.Table) -> Elements:
    """Return the events of a shard, or parts of windows made of them, as elements."""
    keys = zip(job.key.names, job.key.types, strict=True)
    used = list(zip(job.used, job.value_types, strict=True))
    if are_parts := COUNT in events.column_names:
        used = [(name, kind) for name, kind in job.state.contents if kind is not None]
    return Elements(
        timestamps=_integers(events, TIME),
        commits=places_in_time(job)[_integers(events, COMMIT)],
        keys={name: _key(events, f"{KEY_PREFIX}{name}", kind) for name, kind in keys},
        columns={name: _column(events, f"{VALUE_PREFIX}{name}", kind) for name, kind in used if name != SIDE},
        sides=_column(events, f"{VALUE_PREFIX}{SIDE}", pa.string()) if SIDE in job.used else None,
        counts=_integers(events, COUNT) if are_parts else None,
    )


def number_of_events(events: pa.Table) -> int:
    """Return the number of events in a table of events, or of parts made of them."""
    return int(pc.sum(events[COUNT]).as_py() or 0) if COUNT in events.column_names else len(events)


def places_in_time(job: ShardJob) -> Int64s:
    """Return, for each step of an epoch, its number in the timeline of the epoch."""
    return np.cumsum([len(step.passed) + 1 for step in job.steps]) - 1


def timeline_of(job: ShardJob) -> Timeline:
    """Return how time moves in the epoch."""
    first, last = job.watermark_before, job.steps[-1]
    # Each time at which partitions became idle is a commit without elements.
    moments = [
        moment
        for step in job.steps
        for moment in (*((*passed, True) for passed in step.passed), (step.clock, step.watermark, step.complete))
    ]
    if job.order is not None:
        return Timeline.in_event_order(first, last.watermark, job.order.lag, now=last.clock, clock=job.clock_before)
    return Timeline.of_commits(
        first,
        [(watermark, complete) for _, watermark, complete in moments],
        clocks=[clock for clock, _, _ in moments],
        clock=job.clock_before,
    )


def _column(events: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    """Return a column as one array. It is empty if the slice has no events and therefore lacks the column."""
    if name not in events.column_names:
        return pa.array([], kind)
    return as_type(events[name].combine_chunks(), kind)


def _key(events: pa.Table, name: str, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return a key column. Dictionaries are kept, because the operator needs a dictionary of keys anyway."""
    if name in events.column_names and pa.types.is_dictionary(events.schema.field(name).type):
        return events[name]
    return _column(events, name, kind)


def _integers(events: pa.Table, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(_column(events, name, pa.int64()).to_numpy())

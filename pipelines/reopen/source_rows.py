"""Source rows that a snapshot has read. Tasks read them again to compute stretches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.event_columns import KEY_PREFIX, TIME, plain
from tidegate.pipelines.engine.base import Engine, split
from tidegate.pipelines.epoch.exchange import Placing, is_exchange_cheaper
from tidegate.pipelines.epoch.file_slices import of_version, parts_of
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.shard import RESULT_SCHEMA, ShardOutcome, outcomes_of
from tidegate.pipelines.errors import Refused, TidegateError
from tidegate.pipelines.manifest import Interval, Position
from tidegate.pipelines.reopen.first_run import FirstRun
from tidegate.pipelines.reopen.passed import Passed
from tidegate.pipelines.reopen.plan import ReopenPlan
from tidegate.pipelines.reopen.stretches import END, START
from tidegate.pipelines.reopen.task import ReopenJob
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.pipelines.sources.source_table import JudgedRows
from tidegate.pipelines.tables import late
from tidegate.pipelines.tables.columns import input_rows
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.columnar.key_codes import encode_keys
from tidegate.windowing.compute import Windows
from tidegate.windowing.keys import KeySchema

_MANY = 1_000_000
"""Rows of a file whose number is not recorded."""


class SourceRows:
    """Source rows that a snapshot has read.

    Args:
        engine: the engine of the run.
        source: the source at its newest version.
        head: the snapshot.
        tables: the pipeline's tables.
        position: the position up to which rows are read; None for that of the snapshot.
        first_run: returns the first run of the pipeline; None reads it.

    Raises:
        Refused: the version that the snapshot has read can't be read any more.
    """

    def __init__(
        self,
        engine: Engine,
        source: OpenInput,
        head: Snapshot,
        tables: PipelineTables,
        position: Position | None = None,
        first_run: Callable[[], FirstRun | None] | None = None,
    ) -> None:
        self._engine = engine
        self._tables = tables
        self._source = source
        self._head = head
        self._first_run = first_run or (lambda: FirstRun.of(tables))
        self._position = source.settled(position or source.whole(source.position_of(head.manifest)))

    def keyed(self, late_rows: pa.Table) -> pa.Table:
        """Return rows of table late with the key columns of the pipeline added.

        A key takes the place of another column of its name.
        """
        bound = self._source.bound
        inputs = input_rows(late_rows, late.TRAILING, bound.source, bound.renamed.get(late.NAME, {}))
        if set(bound.key.names) & set(bound.pipeline.columns) and len(inputs):
            inputs = self._source.derived(inputs, bound.key.names)
        for name, kind in zip(bound.key.names, bound.key.types, strict=True):
            column = inputs[name].cast(kind) if name in inputs.column_names else pa.nulls(0, kind)
            place = late_rows.schema.get_field_index(name)
            late_rows = (
                late_rows.append_column(name, column) if place < 0 else late_rows.set_column(place, name, column)
            )
        return late_rows

    def passed(self, windows: Windows, within: Interval) -> pa.Table:
        """Return the windows that missed a row because they had passed, while another window accepted the row."""
        return Passed(self._source, self._head, self._tables).windows(windows, within)

    def correct(self, plan: ReopenPlan) -> list[ShardOutcome]:
        """Compute the stretches of a plan again, in one task for each shard with stretches.

        Raises:
            TidegateError: a shard did not report.
        """
        job, files = ReopenJob.of(plan), self.files_of(plan)
        cores = self._engine.cores
        rows = sum(_MANY if part.rows is None else part.rows for part in files.parts)
        if files.needs_spark or is_exchange_cheaper(rows, min(len(job.files), cores), cores):
            reports = self._exchanged(plan, job, files)
        else:
            reports = self._in_place(plan, job, files, rows)
        outcomes = outcomes_of(reports)
        if sorted(outcome.shard for outcome in outcomes) != sorted(job.files):
            raise TidegateError(f"shards {sorted(job.files)} should report, but some did not. Nothing was committed")
        return outcomes

    def _files(self, within: Interval) -> FileSlice:
        """Return every usable row of an interval that was read, also from the version that was read in part."""
        source, position = self._source, self._position
        end = within.end if position.frontier is None else min(within.end, position.frontier)
        parts: list[FilePart] = []
        if position.version >= 0:
            parts += of_version(source, position.version, self._head.manifest, within.start, end).parts
            if (first := self._first_run()) is not None:
                parts = first.without_unread(source, parts, position.version)
        if position.files:
            (commit,) = source.commits(position.version, position.version + 1)
            parts += parts_of(source, replace(commit, files=commit.files[: position.files]), within.start, end)
        if position.version < 0 and not position.files:
            name = source.bound.pipeline.name
            raise Refused(f"pipeline {name!r} has read nothing yet: first run `tidegate stream {name} --available-now`")
        return source.files.of(parts)

    def files_of(self, plan: ReopenPlan) -> FileSlice:
        """Return the files that may have events of the stretches of a plan."""
        spans = plan.spans
        first, last = (pc.min_max(spans[name]) for name in (START, END))
        return self._files(Interval(start=first["min"].as_py(), end=last["max"].as_py()))

    def _in_place(self, plan: ReopenPlan, job: ReopenJob, files: FileSlice, rows: int) -> list[pa.RecordBatch]:
        """Let each task read all files, and keep the events of its shards. Most corrections read few files."""
        spans, key, numbers = plan.spans, self._source.bound.key, list(job.files)
        tasks = min(self._engine.tasks(len(numbers), rows), self._engine.cores)

        def run(shards: Sequence[int]) -> Iterator[pa.RecordBatch]:
            return job.run_shards(shards, events_within(key, files, files.judged(), spans))

        shards = [[numbers[place] for place in places] for places in split(len(numbers), tasks)]
        return self._engine.in_place(shards, run, RESULT_SCHEMA)

    def _exchanged(self, plan: ReopenPlan, job: ReopenJob, files: FileSlice) -> list[pa.RecordBatch]:
        """Let tasks pack the events of the stretches, and exchange the packs by shard.

        Shards without events run too, to retract published panes.
        """
        spans, key = plan.spans, self._source.bound.key
        placing = Placing(key, plan.epoch.shards, self._source.bound.pipeline.max_parallelism)

        def pack(judged: Iterator[JudgedRows]) -> Iterator[pa.RecordBatch]:
            return placing.packs(events_within(key, files, judged, spans))

        markers = {number: str(number) for number in job.files}
        return self._engine.exchanged(files, pack, markers, job.run_packs, RESULT_SCHEMA)


def events_within(
    key: KeySchema, files: FileSlice, judged: Iterator[JudgedRows], spans: pa.Table
) -> Iterator[pa.Table]:
    """Yield the events that lie in a span of their key, as `within_spans` does."""
    tables = (within_spans(key, files.events_of(rows), spans) for rows in judged)
    return (table for table in tables if len(table))


def within_spans(key: KeySchema, events: pa.Table, spans: pa.Table) -> pa.Table:
    """Return the events that lie in a span of their key. Spans of a key don't touch.

    Args:
        key: the key columns.
        events: events of a slice.
        spans: spans with the key columns.
    """
    keys = {
        name: plain(events[f"{KEY_PREFIX}{name}"]).cast(kind) for name, kind in zip(key.names, key.types, strict=True)
    }
    of_spans, of_events = encode_keys(
        key, ({name: spans[name] for name in key.names}, len(spans)), (keys, len(events))
    ).codes
    starts, ends = (np.asarray(spans[name].to_numpy(), np.int64) for name in (START, END))
    times = np.asarray(events[TIME].to_numpy(), np.int64)
    order = np.lexsort((starts, of_spans))
    # Events and starts of spans in one order: the last start at or before an event is that of its span, if any is.
    everything = np.lexsort(
        (
            np.concatenate([np.zeros(len(spans)), np.ones(len(events))]),
            np.concatenate([starts[order], times]),
            np.concatenate([of_spans[order], of_events]),
        )
    )
    is_span = everything < len(spans)
    last = np.maximum.accumulate(np.where(is_span, np.arange(len(everything)), -1))
    places = everything[~is_span] - len(spans)
    nearest = everything[np.maximum(last[~is_span], 0)]
    span = order[np.minimum(nearest, len(spans) - 1)] if len(spans) else nearest
    inside = np.zeros(len(events), np.bool_)
    inside[places] = (last[~is_span] >= 0) & (of_spans[span] == of_events[places]) & (times[places] < ends[span])
    return events.filter(pa.array(inside))

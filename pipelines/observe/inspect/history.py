"""The history of a pipeline's newest snapshot, told from table `epochs` and the log of its source.

The source keeps the order in which rows arrived, and table `epochs` the watermark of each epoch. Event time is moved
over the commits again, by the code that planned the epochs, and compared with the table. So the history doesn't depend
on how many snapshots are retained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import epochs, late
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.event_columns import plain
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.epoch.event_times import EventOrder, EventTimes
from tidegate.pipelines.epoch.file_slices import of_added, of_version, parts_of
from tidegate.pipelines.epoch.open_input import OpenInput, choices_of
from tidegate.pipelines.epoch.plan_commits import ReadCommit, in_steps, of_commits, steps_of
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest, is_on
from tidegate.pipelines.ledger.snapshots.head import require_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.inspect.lives import PART, PLACE, STEP, TIME, Life, Step
from tidegate.pipelines.sources.commits import FilePart
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.windowing.compute import Windows
from tidegate.windowing.functions import AggregateFunction
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis, to_millis
from tidegate.windowing.windows import TimeWindow


class Untold(Refused):
    """The history can't be told from what is kept."""


@dataclass(frozen=True)
class History:
    """The steps that led to a snapshot, and the opened source.

    Args:
        source: the source.
        tables: the pipeline's tables.
        manifest: manifest of the snapshot.
        steps: the steps, in order.
    """

    source: OpenInput
    tables: PipelineTables
    manifest: Manifest
    steps: tuple[Step, ...]

    @property
    def windows(self) -> Windows:
        """The computation, with bound aggregates."""
        compute = self.source.bound.compute
        assert isinstance(compute, Windows)
        return compute

    def rows(self, wanted: Callable[[pa.Table], npt.NDArray[np.bool_]], after: int = 0) -> Rows:
        """Return the usable rows of some keys, in the order of the steps and of time.

        Args:
            wanted: returns a flag for each row of a table with the key columns.
            after: only rows that a later epoch read.
        """
        parts = [
            replace(part, commit=number)
            for number, step in enumerate(self.steps)
            for part in step.parts
            if step.epoch > after
        ]
        files = self.source.files.of(parts)
        columns = files.tables[0].columns
        names = list(dict.fromkeys(filter(None, [*columns.names, *columns.limited, columns.partition_by])))
        bound, found = self.source.bound, []
        for judged in files.judged(names=[names]):
            part = files.parts[judged.number]
            kept = judged.usable(part.since, part.until)
            table = pa.table({name: plain(judged.table[name]) for name in columns.names})
            if bound.key.names:
                kept &= wanted(table)
            if kept.any():
                flags = pa.array(kept)
                added = {
                    STEP: pa.array(np.full(len(table), part.commit)),
                    TIME: pa.array(judged.times),
                    PART: pa.array(np.full(len(table), judged.number)),
                    PLACE: pa.array(judged.places),
                }
                columns_of = {name: table[name] for name in table.column_names}
                found.append(pa.table({**added, **columns_of}).filter(flags))
        rows = pa.concat_tables(found) if found else None
        if rows is not None:
            by = [STEP, TIME, *(name for name in bound.used if name in rows.column_names)]
            sortable = [(name, "ascending") for name in by if not pa.types.is_nested(rows.schema.field(name).type)]
            rows = rows.sort_by(sortable)
        return Rows(tuple(files.parts), [] if rows is None else rows.to_pylist(maps_as_pydicts="lossy"))

    def lives(self, rows: Rows, reopened: Mapping[int, Sequence[Millis]]) -> Life:
        """Return the life of the windows of one key.

        Args:
            rows: the rows of the key.
            reopened: by epoch, the times of the late rows of the key that it reopened.
        """
        assigner, clock = self.windows.assigner, _Clock()

        def windows_of(row: Mapping[str, Any]) -> list[tuple[Millis, Millis]]:
            assigned = assigner.assign_windows(row, row[TIME], clock)
            return [(window.start, window.end) for window in assigned if isinstance(window, TimeWindow)]

        return Life(self.steps, windows_of, assigner.merges, self.windows.lateness, reopened).live(rows.rows)

    def result_of(self, rows: Rows, numbers: Sequence[int]) -> dict[str, Any]:
        """Return the value of a window by its definition: its rows, one after the other, given to the aggregate.

        Raises:
            Untold: the window's function is not an aggregate.
        """
        windows, elements = self.windows, [rows.rows[number] for number in sorted(numbers)]
        if windows.process is not None or windows.evictor is not None or windows.aggregate is None:
            raise Untold("only the values of aggregates are computed again")
        function = windows.aggregate
        assert isinstance(function, AggregateFunction)
        contents = function.create_accumulator()
        for element in elements:
            contents = function.add_at(element, element[TIME], contents)
        result: dict[str, Any] = function.get_result(contents)
        return result


@dataclass
class _Clock:
    """The clock for an assigner, which windows of event time don't read."""

    current_processing_time: Millis = 0


@dataclass(frozen=True)
class Rows:
    """Rows of the source, as dicts with the columns of events and `STEP`, `TIME`, `PART` and `PLACE`."""

    parts: tuple[FilePart, ...]
    rows: list[dict[str, Any]]


def history(config: Config, pipeline: str) -> History:
    """Return the history of the newest snapshot.

    Raises:
        Refused: it can't be told; the message says why.
    """
    value, tables = load_pipeline(config, pipeline), PipelineTables.of(config, pipeline)
    manifest = require_snapshot(tables).manifest
    windows = value.compute
    if not isinstance(windows, Windows) or not windows.assigner.is_event_time:
        raise Untold(f"pipeline {pipeline!r} has no windows of event time: only their history can be told")
    for choice in choices_of(config, value):
        if (reason := choice.files_by_spark or choice.sql_by_spark) is not None:
            raise Untold(f"pipeline {pipeline!r}: {reason}, and its rows are only read without Spark here")
    if value.watermark.reads_events:
        raise Untold(f"pipeline {pipeline!r}: its watermark generator sees every event, so its past is not repeated")
    source = OpenInput.open(LocalEngine.of(config), tables, value)
    if manifest.stagger_offset is not None:
        bound = source.bound.compute
        assert isinstance(bound, Windows)
        drawn = replace(bound, assigner=bound.assigner.with_stagger(manifest.stagger_offset))
        source = replace(source, bound=replace(source.bound, compute=drawn))
    return History(source, tables, manifest, tuple(_steps(source, tables, manifest)))


def _steps(source: OpenInput, tables: PipelineTables, manifest: Manifest) -> Iterator[Step]:
    """Yield the steps of the epochs on the lineage of a snapshot."""
    rows = read_table(tables.warehouse, tables.open(epochs.NAME), where=~pc.field("stale"))
    on_line = [row for row in rows.to_pylist() if is_on(manifest.line, row["epoch"])]
    times: EventTimes | None = EventTimes.of(source.bound.pipeline, None)
    read, watermark, frontier = -1, MIN_TIMESTAMP, None
    for row in sorted(on_line, key=lambda row: row["epoch"]):
        epoch, kind, version = row["epoch"], row["kind"], row["source_version"]
        clock = to_millis(row["processing_time"])
        after = _watermark(row["watermark"], watermark, manifest if epoch == manifest.epoch else None)
        if kind == "change":
            raise Untold(
                f"pipeline {source.bound.pipeline.name!r}: epoch {epoch} corrected windows after rows of the source "
                "changed, and what the source had before is not kept"
            )
        if kind == "backfill":
            start, frontier = to_millis(row["interval_start"]), to_millis(row["interval_end"])
            inside = of_version(source, version, None, start, frontier).parts
            late = of_added(source, list(source.log.unread(read, version)), until=start).parts if read >= 0 else ()
            lag = EventOrder.of(source.bound.compute).lag
            before = start - lag if watermark == MIN_TIMESTAMP else watermark
            yield Step(epoch, kind, version, clock, before, after, lag, (*late, *inside))
            times = None
        elif kind == "stream" and times is None:
            # The first epoch of a stream after a backfill reads what the backfill left of its version.
            assert frontier is not None
            rest = of_version(source, version, None, frontier)
            times = EventTimes.restored(source.bound.pipeline, watermark, clock, {}, {})
            times.end_together([source.measure(rest).largest.get(0, {})], clock, [()])
            yield Step(epoch, kind, version, clock, watermark, after, None, rest.parts)
        elif kind in ("stream", "clock") and times is not None:
            yield from _commits(source, times, epoch, read, version, watermark)
            if kind == "clock":
                yield Step(epoch, kind, None, clock, watermark, max(after, times.advance(clock)))
        else:
            yield Step(epoch, kind, None, clock, watermark, after)
        if kind == "stream" and times is not None and after not in (times.watermark, MAX_TIMESTAMP):
            raise Untold(
                f"pipeline {source.bound.pipeline.name!r}: the watermark after epoch {epoch} is not the one that the "
                "present code gives, so another watermark strategy ran then"
            )
        read, watermark = version, after


def _commits(
    source: OpenInput, times: EventTimes, epoch: int, read: int, until: int, watermark: Millis
) -> Iterator[Step]:
    """Yield the steps of the commits after a version, and move event time over them."""
    for commit in source.log.unread(read, until):
        (alone,) = in_steps([ReadCommit(commit, commit.files, len(commit.files), True)], times)
        largest = source.measure(of_commits(source.files, [alone])).largest
        steps = steps_of([alone], times, largest, lambda read: ())
        before = max(watermark, steps[0].watermark if len(steps) > 1 else MIN_TIMESTAMP)
        watermark = max(watermark, times.watermark)
        yield Step(epoch, "stream", commit.version, steps[-1].clock, before, watermark, None, parts_of(source, commit))


def _watermark(value: Any, before: Millis, newest: Manifest | None) -> Millis:
    """Return the watermark after an epoch. Null in table epochs is the beginning, or the end of input."""
    if newest is not None:
        return newest.watermark
    if value is not None:
        return to_millis(value)
    return before if before == MIN_TIMESTAMP else MAX_TIMESTAMP


def reopenings(late_rows: pa.Table) -> dict[int, list[Millis]]:
    """Return by epoch the event times of the late rows that it reopened."""
    found: dict[int, list[Millis]] = {}
    if late.REOPENED in late_rows.column_names:
        for epoch, time in zip(late_rows[late.REOPENED].to_pylist(), late.event_times(late_rows).tolist(), strict=True):
            if epoch is not None:
                found.setdefault(epoch, []).append(time)
    return found

"""The plan of an epoch that reopens late rows: which stretches of which keys, and what stands there now."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME
from tidegate.pipelines.epoch.event_times import EventTimes
from tidegate.pipelines.epoch.plan import EpochPlan, SliceCounts, SliceFrames, clock_of
from tidegate.pipelines.epoch.shard import ShardOutcome
from tidegate.pipelines.epoch.steps import CommitStep, EventOrder
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import Interval, Reopening, Shard
from tidegate.pipelines.reopen.selection import Selection, check_reopenable
from tidegate.pipelines.reopen.shape import check_shape
from tidegate.pipelines.reopen.stretches import (
    END,
    START,
    Stretches,
    islands,
    session_stretches,
    spans_of,
    windows_at,
)
from tidegate.pipelines.snapshots.contents import state_rows
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.snapshots.publish import key_columns
from tidegate.pipelines.storage import arrow_schema, read_table
from tidegate.pipelines.tables import late, results
from tidegate.pipelines.tables.key_groups import hash_of_texts, key_groups, key_hashes
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.columnar.key_codes import encode_keys
from tidegate.windowing.compute import Windows
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.panes import Accumulation
from tidegate.windowing.state.rows import WINDOW
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis
from tidegate.windowing.timestamps import epoch_millis

_OF_PANES = ("window_id", "window_start", "window_end", "pane", "op", "final_at", "epoch", "stale")
"""What tells which panes stand, and where."""


@dataclass(frozen=True)
class ReopenPlan:
    """What an epoch that reopens late rows does.

    Args:
        epoch: number, shards and clocks; it reads in event order up to the watermark of the head.
        wanted: the stretches to compute again, with the key columns.
        standing: published panes in them that were not withdrawn.
        reopening: the late rows that are meant.
        late_rows: how many they are, in each shard of the epoch.
        margin: how far a session may reach beyond its stretch, milliseconds.
    """

    epoch: EpochPlan
    wanted: pa.Table
    standing: pa.Table
    reopening: Reopening
    late_rows: tuple[int, ...]
    margin: Millis = 0

    @property
    def key(self) -> tuple[str, ...]:
        """The key columns."""
        return self.epoch.bound.key.names

    @property
    def windows(self) -> Windows:
        """The windows that are computed again."""
        windows = self.epoch.compute
        assert isinstance(windows, Windows), windows
        return windows

    @property
    def spans(self) -> pa.Table:
        """The spans of time whose rows are needed, of each key apart."""
        return islands(self.epoch.bound.key, self.wanted).table()


class ReadRows(Protocol):
    """The rows of the source that a snapshot has read."""

    def keyed(self, late_rows: pa.Table) -> pa.Table:
        """Rows of table late with the key columns of the pipeline beside what they have."""

    def passed(self, windows: Windows, within: Interval) -> pa.Table:
        """Windows of rows that came behind the watermark and were taken by others of their windows.

        Args:
            windows: with the assigner.
            within: where the event times of rows lie whose windows are meant.
        """

    def correct(self, plan: ReopenPlan) -> list[ShardOutcome]:
        """Compute the stretches of a plan again, in the shards that have any."""


def plan_reopen(
    tables: PipelineTables,
    bound: BoundPipeline,
    head: Snapshot,
    selection: Selection,
    rows: ReadRows,
    now: Millis,
    margin: Millis = 0,
) -> ReopenPlan:
    """Plan an epoch that reopens late rows; there may be nothing for it to do.

    Args:
        tables: the pipeline's tables, published up to the head.
        bound: the pipeline.
        head: the snapshot to go on from.
        selection: which late rows are meant.
        rows: the rows of the source that the head has read.
        now: the driver's clock.
        margin: milliseconds by which sessions of a shorter gap than today's may be apart and yet be one.

    Raises:
        Refused: late rows of this pipeline can't be reopened, or were late for windows of another size.
    """
    epoch = _epoch(tables, bound, head, now)
    windows, key = epoch.compute, bound.key
    assert isinstance(windows, Windows)
    hash_ = None if selection.key is None else hash_of_texts(key, selection.key)
    reopening = Reopening(epoch=epoch.epoch, key=hash_, start=selection.start, end=selection.end)
    late_handle = tables.open(late.NAME)
    found = read_table(tables.warehouse, late_handle)
    found = rows.keyed(found.filter(late.is_open(found)))
    meant = late.is_meant(found, key.names, reopening)
    handle = tables.open(results.NAME)
    published = read_table(tables.warehouse, handle, [*key.names, *_OF_PANES], ~pc.field("stale"))
    if hash_ is not None:
        published = published.filter(pc.equal(key_hashes(published, key.names), hash_))
    published = _standing(published, key.names, windows)
    if windows.assigner.forms_sessions:
        stretches = _stretches(tables, bound, head, reopening, found, meant, published, margin)
        wanted = stretches.wanted
        reopening = reopening.model_copy(update={"also": _beside(key, found, meant, stretches)})
        meant = late.is_meant(found, key.names, reopening)
        places = islands(key, wanted, spans_of(published, key.names))
        inside = np.isin(places.of_span[len(wanted) :], places.of_span[: len(wanted)])
    else:
        wanted = _windows(windows, bound, reopening, found.filter(meant), rows, published)
        standing = pa.concat_tables([spans_of(published, key.names), _open(tables, key, head, reopening)])
        check_shape(bound.pipeline.name, windows, key, wanted, standing)
        inside = _are_in(spans_of(published, key.names), wanted, key.names)
    if reopening.key is not None or reopening.also:
        _check_told(bound, arrow_schema(late_handle))
    ids = published.filter(pa.array(inside))["window_id"].unique()
    touched = read_table(tables.warehouse, handle, where=~pc.field("stale") & pc.field("window_id").isin(ids))
    standing = _standing(touched, key.names, windows)
    return ReopenPlan(epoch, wanted, standing, reopening, _by_shard(epoch, found.filter(meant)), margin)


def _beside(
    key: KeySchema, found: pa.Table, meant: pa.ChunkedArray, stretches: Stretches
) -> tuple[tuple[int, int, int], ...]:
    """The stretches that hold late rows which are not meant: a session is computed whole, with them."""
    bounded = found["window_start"].is_valid()
    left = pc.and_(pc.invert(meant.filter(bounded)), pa.array(stretches.late))
    spans = spans_of(found, key.names).filter(left)
    places = islands(key, stretches.wanted, spans)
    held = np.isin(places.of_span[: len(stretches.wanted)], places.of_span[len(stretches.wanted) :])
    holding = stretches.wanted.filter(pa.array(held))
    columns = (key_hashes(holding, key.names), holding[START], holding[END])
    return tuple(zip(*(column.to_pylist() for column in columns), strict=True))


def _check_told(bound: BoundPipeline, schema: pa.Schema) -> None:
    """Refuse to choose among late rows by a key that their table does not have."""
    pipeline = bound.pipeline
    derived = set(pipeline.key) & set(pipeline.columns)
    if derived or (pipeline.key and not key_columns(late.NAME, schema, pipeline.key)):
        raise Refused(
            f"late rows of pipeline {pipeline.name!r} can't be chosen by key, nor by a span of time that cuts a "
            "session, for their table lacks the key's columns. Reopen all of them"
        )


def _by_shard(epoch: EpochPlan, rows: pa.Table) -> tuple[int, ...]:
    """How many rows belong to each shard."""
    groups = key_groups(rows, epoch.bound.key.names, epoch.bound.pipeline.max_parallelism).to_numpy()
    return tuple(int(((groups >= shard.first) & (groups <= shard.last)).sum()) for shard in epoch.shards)


def _epoch(tables: PipelineTables, bound: BoundPipeline, head: Snapshot, now: Millis) -> EpochPlan:
    manifest = head.manifest
    order = EventOrder.of(check_reopenable(bound.pipeline))
    return EpochPlan(
        tables=tables,
        bound=bound,
        parent=head,
        head=head,
        kind="reopen",
        order=order,
        positions=dict(manifest.positions),
        frames=SliceFrames(None, None, None),
        counts=SliceCounts(),
        steps=(CommitStep(clock_of(head), manifest.watermark),),
        partitions=EventTimes.of(bound.pipeline, manifest).partitions,
        watermark_before=MIN_TIMESTAMP,
        # Those of the head: its files are cut as they are.
        shards=tuple(Shard(first=shard.first, last=shard.last) for shard in manifest.shards),
        stale=manifest.stale,
        started_at=now,
    )


def _windows(
    windows: Windows, bound: BoundPipeline, reopening: Reopening, meant: pa.Table, rows: ReadRows, published: pa.Table
) -> pa.Table:
    """The windows of late rows, and of sliding ones those that a row missed that others took."""
    judged_at = pc.fill_null(epoch_millis(meant["watermark"]), MAX_TIMESTAMP)
    times = pc.subtract(judged_at, meant["lateness_ms"]).to_numpy()
    wanted = windows_at(windows, bound.key, meant, times)
    if overlap(windows):
        lateness = min(windows.lateness, _least_lateness(published))
        missed = rows.passed(replace(windows, allowed_lateness=lateness), _times_of(windows, reopening))
        if reopening.key is not None:
            missed = missed.filter(pc.equal(key_hashes(missed, bound.key.names), reopening.key))
        if reopening.start is not None:
            missed = missed.filter(pc.greater_equal(missed[START], reopening.start))
        if reopening.end is not None:
            missed = missed.filter(pc.less(missed[START], reopening.end))
        names = [*bound.key.names, START, END]
        wanted = pa.concat_tables([wanted.select(names), missed.select(names)])
        wanted = wanted.group_by(names, use_threads=False).aggregate([])
    return wanted


def _times_of(windows: Windows, reopening: Reopening) -> Interval:
    """Where the event times of rows lie that have a window which is to be reopened."""
    start = FIRST_TIME if reopening.start is None else max(FIRST_TIME, reopening.start)
    # A row lies before the end of its windows, and these begin before the end that is meant.
    end = LAST_TIME if reopening.end is None else reopening.end + getattr(windows.assigner, "size", 0)
    return Interval(start=start, end=min(LAST_TIME, end))


def _least_lateness(published: pa.Table) -> Millis:
    """The least lateness that a published window was given: the code may have allowed less than today."""
    given = pc.subtract(epoch_millis(published["final_at"]), pc.subtract(epoch_millis(published["window_end"]), 1))
    least = pc.min(given).as_py()
    return MAX_TIMESTAMP if least is None else max(0, least)


def overlap(windows: Windows) -> bool:
    """Whether an element has several windows, of which it may miss some."""
    grid = windows.assigner.window_grid
    return grid is not None and grid.slide < grid.size


def _stretches(
    tables: PipelineTables,
    bound: BoundPipeline,
    head: Snapshot,
    reopening: Reopening,
    found: pa.Table,
    meant: pa.ChunkedArray,
    published: pa.Table,
    margin: Millis,
) -> Stretches:
    key = bound.key
    spans, selected = spans_of(found, key.names), meant.filter(found["window_start"].is_valid())
    rows = _open_rows(tables, key, head, reopening)
    opened, closed = spans_of(rows, key.names), spans_of(published, key.names)
    # A pane of a session that grew since belongs to that session: they are one.
    closed = closed.filter(pa.array(~_are_in(closed, _emitted(rows, key.names), key.names)))
    bounds = (
        MIN_TIMESTAMP if reopening.start is None else reopening.start,
        MAX_TIMESTAMP if reopening.end is None else reopening.end - 1,
    )
    return session_stretches(key, spans, selected.to_numpy().astype(np.bool_), [opened, closed], bounds, margin)


def _open_rows(tables: PipelineTables, key: KeySchema, head: Snapshot, reopening: Reopening) -> pa.Table:
    """The state rows of open windows, of one key where one is asked for."""
    rows = state_rows(tables.warehouse, head, (pc.field("namespace") == WINDOW) & pc.field("in_flight"))
    return rows if reopening.key is None else rows.filter(pc.equal(key_hashes(rows, key.names), reopening.key))


def _open(tables: PipelineTables, key: KeySchema, head: Snapshot, reopening: Reopening) -> pa.Table:
    """The open windows as spans."""
    return spans_of(_open_rows(tables, key, head, reopening), key.names)


def _emitted(rows: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """The panes that open sessions put out, as spans."""
    emitted = rows["emitted"].combine_chunks()
    owners = rows.take(pc.list_parent_indices(emitted))
    panes = pc.list_flatten(emitted)
    bounds = {START: pc.struct_field(panes, "window_start"), END: pc.struct_field(panes, "window_end")}
    return pa.table({**{name: owners[name] for name in key}, **bounds})


def _standing(rows: pa.Table, key: tuple[str, ...], windows: Windows) -> pa.Table:
    """What a correction takes back: the newest pane stands for those before it, unless each holds a part."""
    if windows.accumulation is Accumulation.DISCARDING:
        return results.standing(rows, key)
    return results.latest(rows, key)


def _are_in(spans: pa.Table, others: pa.Table, key: tuple[str, ...]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which spans are among others."""
    names = (*key, START, END)
    schema = KeySchema(names, tuple(spans.schema.field(name).type for name in names))
    codes = encode_keys(schema, *(({name: part[name] for name in names}, len(part)) for part in (spans, others))).codes
    return np.isin(codes[0], codes[1])

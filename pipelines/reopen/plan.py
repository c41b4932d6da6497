"""Plan of an epoch that reopens late rows: the stretches to compute again, and the panes published in them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.event_columns import FIRST_TIME, LAST_TIME
from tidegate.pipelines.epoch.event_times import EventTimes
from tidegate.pipelines.epoch.plan import EpochPlan, SliceCounts, clock_of
from tidegate.pipelines.epoch.shard import ShardOutcome
from tidegate.pipelines.epoch.steps import CommitStep, EventOrder
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import Interval, Kind, Reopening, Shard
from tidegate.pipelines.reopen.panes import (
    OF_PANES,
    are_among,
    emitted_spans,
    newest_panes,
    open_rows,
    open_spans,
    to_retract,
)
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
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.snapshots.publish import key_columns
from tidegate.pipelines.storage import arrow_schema, read_table
from tidegate.pipelines.tables import late, results
from tidegate.pipelines.tables.groups import distinct
from tidegate.pipelines.tables.key_groups import key_groups
from tidegate.pipelines.tables.keys import Key, are_in, are_of_key, digest_of, digests, key_of_texts
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.compute import Windows
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis
from tidegate.windowing.timestamps import epoch_millis


@dataclass(frozen=True)
class ReopenPlan:
    """The plan of an epoch that reopens late rows.

    Args:
        epoch: number, shards and clocks; it reads in event order up to the watermark of the head.
        wanted: the stretches to compute again, with the key columns.
        published: published panes in the stretches that were not retracted.
        reopening: the late rows to reopen.
        late_rows: number of late rows to reopen, for each shard of the epoch.
        margin: longest time by which a session may reach beyond its stretch, milliseconds.
        newest_panes: number of the newest pane of each window, also of retracted ones, of the keys of the stretches.
        may_come_again: published sessions of these keys that late elements may bring back; see `panes.may_come_again`.
    """

    epoch: EpochPlan
    wanted: pa.Table
    published: pa.Table
    reopening: Reopening
    late_rows: tuple[int, ...]
    margin: Millis = 0
    newest_panes: pa.Table | None = None
    may_come_again: pa.Table | None = None

    @property
    def key(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return self.epoch.bound.key.names

    @property
    def windows(self) -> Windows:
        """Windows that are computed again."""
        windows = self.epoch.compute
        assert isinstance(windows, Windows), windows
        return windows

    @property
    def spans(self) -> pa.Table:
        """Spans of time of each key whose source rows are needed."""
        return islands(self.epoch.bound.key, self.wanted).table()


class ReadRows(Protocol):
    """Access to the source rows that a snapshot has read."""

    def keyed(self, late_rows: pa.Table) -> pa.Table:
        """Return rows of table late with the key columns of the pipeline added.

        A key takes the place of another column of its name.
        """

    def passed(self, windows: Windows, within: Interval) -> pa.Table:
        """Return the windows that missed a row because they had passed, while another window accepted the row.

        Args:
            windows: the windows with their assigner.
            within: interval of the event times of the rows to look at.
        """

    def correct(self, plan: ReopenPlan) -> list[ShardOutcome]:
        """Compute the stretches of a plan again, in the shards that have stretches."""


def plan_reopen(
    tables: PipelineTables,
    bound: BoundPipeline,
    head: Snapshot,
    selection: Selection,
    rows: ReadRows,
    now: Millis,
    margin: Millis = 0,
) -> ReopenPlan:
    """Plan an epoch that reopens late rows. The plan may be empty.

    Args:
        tables: the pipeline's tables, published up to the head.
        bound: the bound pipeline.
        head: the snapshot to start from.
        selection: the late rows that the user selects.
        rows: the source rows that the head has read.
        now: the driver's clock, int64 epoch milliseconds.
        margin: largest distance of sessions that may be one, milliseconds. It is above 0 if the gap was shorter when
            they were made.

    Raises:
        Refused: late rows of this pipeline can't be reopened, or were late for windows of another size.
    """
    epoch = correcting_epoch(tables, bound, head, now)
    windows, key = epoch.compute, bound.key
    assert isinstance(windows, Windows)
    only = None if selection.key is None else key_of_texts(key, selection.key)
    digest = None if only is None else digest_of(only)
    reopening = Reopening(epoch=epoch.epoch, digest=digest, start=selection.start, end=selection.end)
    late_handle = tables.look(late.NAME)
    late_rows = read_table(tables.warehouse, late_handle)
    late_rows = late_rows.filter(late.is_open(late_rows))
    times = late.event_times(late_rows)
    late_rows = rows.keyed(late_rows)
    meant = late.is_chosen(late_rows, key.names, reopening)
    handle = tables.look(results.NAME)
    published = read_table(tables.warehouse, handle, [*key.names, *OF_PANES], ~pc.field("stale"))
    if only is not None:
        published = published.filter(are_of_key(published, key.names, only))
    everything, published = published, to_retract(published, key.names, windows)
    if windows.assigner.forms_sessions:
        stretches = _stretches(tables, bound, head, reopening, only, late_rows, meant, published, margin)
        wanted = stretches.wanted
        reopening = reopening.model_copy(update={"spans": late_beside(key, late_rows, meant, stretches)})
        meant = late.is_chosen(late_rows, key.names, reopening)
        places = islands(key, wanted, spans_of(published, key.names))
        inside = np.isin(places.of_span[len(wanted) :], places.of_span[: len(wanted)])
    else:
        of_meant = windows_at(windows, key, late_rows.filter(meant), times[meant.to_numpy()])
        wanted = _windows(windows, bound, reopening, only, of_meant, rows, published)
        existing = pa.concat_tables([spans_of(published, key.names), open_spans(tables, key, head, only)])
        check_shape(bound.pipeline.name, windows, key, wanted, existing)
        inside = are_among(spans_of(published, key.names), wanted, key.names)
    if reopening.by_key:
        check_key_columns(bound, arrow_schema(late_handle))
    published = published.filter(pa.array(inside))
    ids = published["window_id"].unique()
    # Other keys may have windows with these ids, and these are left as they are.
    same_ids = read_table(tables.warehouse, handle, where=~pc.field("stale") & pc.field("window_id").isin(ids))
    touched = same_ids.filter(are_in(same_ids, published, (*key.names, "window_id")))
    panes = to_retract(touched, key.names, windows)
    panes = panes.filter(are_in(panes, published, (*key.names, "window_id", "window_start", "window_end")))
    return ReopenPlan(
        epoch,
        wanted,
        panes,
        reopening,
        by_shard(epoch, late_rows.filter(meant)),
        margin,
        newest_panes(everything, key, wanted),
    )


def late_beside(
    key: KeySchema, late_rows: pa.Table, meant: pa.ChunkedArray, stretches: Stretches
) -> tuple[tuple[str, int, int], ...]:
    """Return digest of the key, start and end of the stretches with late rows that were not selected.

    These rows are reopened too, because a session is always computed as a whole.
    """
    bounded = late_rows["window_start"].is_valid()
    left = pc.and_(pc.invert(meant.filter(bounded)), pa.array(stretches.late))
    spans = spans_of(late_rows, key.names).filter(left)
    places = islands(key, stretches.wanted, spans)
    held = np.isin(places.of_span[: len(stretches.wanted)], places.of_span[len(stretches.wanted) :])
    holding = stretches.wanted.filter(pa.array(held))
    columns = (digests(holding, key.names), holding[START], holding[END])
    return tuple(zip(*(column.to_pylist() for column in columns), strict=True))


def check_key_columns(bound: BoundPipeline, schema: pa.Schema) -> None:
    """Refuse to choose late rows by key if table late does not have the key columns."""
    pipeline = bound.pipeline
    derived = set(pipeline.key) & set(pipeline.columns)
    if derived or (pipeline.key and not key_columns(late.NAME, schema, pipeline.key)):
        raise Refused(
            f"late rows of pipeline {pipeline.name!r} can't be chosen by key, or by a span of time that cuts a "
            "session: the late table has no key columns. Reopen all of them"
        )


def by_shard(epoch: EpochPlan, rows: pa.Table) -> tuple[int, ...]:
    """Return the number of rows in each shard."""
    groups = key_groups(rows, epoch.bound.key.names, epoch.bound.pipeline.max_parallelism).to_numpy()
    return tuple(int(((groups >= shard.first) & (groups <= shard.last)).sum()) for shard in epoch.shards)


def correcting_epoch(
    tables: PipelineTables, bound: BoundPipeline, head: Snapshot, now: Millis, kind: Kind = "reopen"
) -> EpochPlan:
    """Return the plan of an epoch that computes windows again, up to the watermark of the head."""
    manifest = head.manifest
    order = EventOrder.of(check_reopenable(bound.pipeline))
    return EpochPlan(
        tables=tables,
        bound=bound,
        parent=head,
        head=head,
        kind=kind,
        order=order,
        positions=dict(manifest.positions),
        counts=SliceCounts(),
        steps=(CommitStep(clock_of(head), manifest.watermark),),
        partitions=EventTimes.of(bound.pipeline, manifest).partitions,
        watermark_before=MIN_TIMESTAMP,
        # The shards are those of the head, because its state files have their key groups.
        shards=tuple(Shard(first=shard.first, last=shard.last) for shard in manifest.shards),
        stale=manifest.stale,
        started_at=now,
    )


def _windows(
    windows: Windows,
    bound: BoundPipeline,
    reopening: Reopening,
    only: Key | None,
    wanted: pa.Table,
    rows: ReadRows,
    published: pa.Table,
) -> pa.Table:
    """Return the windows of late rows, and overlapping windows that missed a row which another window accepted."""
    if overlap(windows):
        lateness = min(windows.lateness, _least_lateness(published))
        missed = rows.passed(replace(windows, allowed_lateness=lateness), _times_of(windows, reopening))
        if only is not None:
            missed = missed.filter(are_of_key(missed, bound.key.names, only))
        if reopening.start is not None:
            missed = missed.filter(pc.greater_equal(missed[START], reopening.start))
        if reopening.end is not None:
            missed = missed.filter(pc.less(missed[START], reopening.end))
        names = [*bound.key.names, START, END]
        wanted = distinct(pa.concat_tables([wanted.select(names), missed.select(names)]))
    return wanted


def _times_of(windows: Windows, reopening: Reopening) -> Interval:
    """Return the interval of the event times of rows that may belong to windows to reopen."""
    start = FIRST_TIME if reopening.start is None else max(FIRST_TIME, reopening.start)
    # A row's time is before the end of its windows, and these windows start before `reopening.end`.
    end = LAST_TIME if reopening.end is None else reopening.end + getattr(windows.assigner, "size", 0)
    return Interval(start=start, end=min(LAST_TIME, end))


def _least_lateness(published: pa.Table) -> Millis:
    """Return the least lateness of the published windows. Earlier code may have allowed less lateness than today's."""
    given = pc.subtract(epoch_millis(published["final_at"]), pc.subtract(epoch_millis(published["window_end"]), 1))
    least = pc.min(given).as_py()
    return MAX_TIMESTAMP if least is None else max(0, least)


def overlap(windows: Windows) -> bool:
    """Return True if an element has several windows, so that it may miss some of them."""
    grid = windows.assigner.window_grid
    return grid is not None and grid.slide < grid.size


def _stretches(
    tables: PipelineTables,
    bound: BoundPipeline,
    head: Snapshot,
    reopening: Reopening,
    only: Key | None,
    late_rows: pa.Table,
    meant: pa.ChunkedArray,
    published: pa.Table,
    margin: Millis,
) -> Stretches:
    key = bound.key
    spans, selected = spans_of(late_rows, key.names), meant.filter(late_rows["window_start"].is_valid())
    rows = open_rows(tables, key, head, only)
    opened, closed = spans_of(rows, key.names), spans_of(published, key.names)
    # Leave out the panes of open sessions, which may have grown since: such a pane is not a session of its own.
    closed = closed.filter(pa.array(~are_among(closed, emitted_spans(rows, key.names), key.names)))
    bounds = (
        MIN_TIMESTAMP if reopening.start is None else reopening.start,
        MAX_TIMESTAMP if reopening.end is None else reopening.end - 1,
    )
    return session_stretches(key, spans, selected.to_numpy().astype(np.bool_), [opened, closed], bounds, margin)

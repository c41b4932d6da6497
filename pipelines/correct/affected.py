"""The spans of keys that a recompute affects, and the panes that are published in them.

Two callers ask for a recompute. They provide different rows, which touch different spans:

    late rows       those that a user selects; their windows, and windows that missed a row that other windows accepted
    changed rows    those that were deleted from the source or added to it; their windows, and the late rows of these
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.correct.changed_rows import ChangedRows
from tidegate.pipelines.correct.request import (
    Asked,
    RecomputePlan,
    Selection,
    Work,
    check_reopenable,
    windows_of,
)
from tidegate.pipelines.correct.source_rows import SourceRows
from tidegate.pipelines.correct.spans import (
    END,
    START,
    NearPanes,
    affected_sessions,
    are_among,
    check_shape,
    emitted_spans,
    have_window,
    islands,
    light_panes,
    of_keys,
    open_rows,
    open_spans,
    spans_of,
    to_retract,
    whole_panes,
    windows_at,
)
from tidegate.pipelines.definition import late
from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.event_columns import FIRST_TIME, KEY_PREFIX, LAST_TIME, TIME, VALUE_PREFIX
from tidegate.pipelines.definition.row_sets import distinct
from tidegate.pipelines.epoch.event_times import CommitStep, EventOrder, partitions_of, times_of
from tidegate.pipelines.epoch.file_measure import SliceCounts
from tidegate.pipelines.epoch.plan import EpochPlan, clock_of
from tidegate.pipelines.errors import KeyNotRecorded
from tidegate.pipelines.ledger.manifest import Interval, Reopening, Shard
from tidegate.pipelines.ledger.snapshots.erased import forgotten_marks
from tidegate.pipelines.ledger.snapshots.head import Snapshot
from tidegate.pipelines.ledger.tables.keys import (
    Key,
    are_forgotten,
    are_of_key,
    digest_of,
    digests,
    key_columns,
    key_groups,
    key_of_texts,
)
from tidegate.pipelines.ledger.tables.late_rows import Deletions, is_chosen
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.storage.warehouse import arrow_schema, read_table
from tidegate.windowing.aggregates.vectorised import Int64s
from tidegate.windowing.assigners.base import NO_CLOCK, WindowAssigner
from tidegate.windowing.compute import Windows
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.time import LONGEST_DURATION, MAX_TIMESTAMP, MIN_TIMESTAMP, Millis
from tidegate.windowing.timestamps import as_type, epoch_millis
from tidegate.windowing.windows import TimeWindow

_NUMBER = "\0number"
_WAITING = pc.field(late.REOPENED).is_null() & ~pc.field("stale")
"""Late rows that are in no window."""


def plan_recompute(
    tables: PipelineTables,
    bound: BoundPipeline,
    head: Snapshot,
    asked: Asked,
    rows: SourceRows,
    now: Millis,
    margin: Millis = 0,
) -> RecomputePlan:
    """Plan an epoch that recomputes windows. The plan may be empty.

    Sessions up to `margin` milliseconds apart may be one session; `margin` is above 0 if they were computed with a
    shorter gap.

    Raises:
        Refused: late rows of this pipeline can't be reopened, or elements of these windows are also in windows of
        another size.
    """
    manifest = head.manifest
    order = EventOrder.of(check_reopenable(bound.pipeline, manifest))
    epoch = EpochPlan(
        tables=tables,
        bound=bound,
        parent=head,
        head=head,
        kind="reopen" if isinstance(asked, Selection) else "change",
        order=order,
        positions=dict(manifest.positions),
        counts=SliceCounts(),
        steps=(CommitStep(clock_of(head), manifest.watermark),),
        partitions=partitions_of(times_of(bound.pipeline, manifest)),
        watermark_before=MIN_TIMESTAMP,
        # The shards are those of the head, because that is how its state files are divided by key group.
        shards=tuple(Shard(first=shard.first, last=shard.last) for shard in manifest.shards),
        stale=manifest.stale,
        started_at=now,
    )
    late_rows = read_table(tables.warehouse, tables.newest(late.NAME), where=_WAITING)
    if isinstance(asked, ChangedRows) and (deleted := asked.deleted_by_table.get(late.NAME)) is not None:
        late_rows = late_rows.filter(pa.array(Deletions(late.NAME, deleted).stay(late_rows)))
    times = late.event_times(late_rows)
    return _Planner(epoch, head, asked, rows, rows.keyed(late_rows), times, margin).plan()


@dataclass(frozen=True)
class _Affected:
    """The spans that a recompute affects, the late rows to add, and the panes in the spans that were not retracted."""

    wanted: pa.Table
    reopening: Reopening
    published: pa.Table


@dataclass(frozen=True)
class _Planner:
    epoch: EpochPlan
    head: Snapshot
    asked: Asked
    rows: SourceRows
    late_rows: pa.Table
    times: Int64s
    margin: Millis

    def plan(self) -> RecomputePlan:
        """Return the plan."""
        asked, epoch, key, windows = self.asked, self.epoch, self.key, windows_of(self.epoch)
        affected = self._sessions(windows) if windows.assigner.forms_sessions else self._windows(windows)
        if affected.reopening.by_key:
            _check_key_columns(epoch.bound, arrow_schema(epoch.tables.newest(late.NAME)))
        meant, wanted = is_chosen(self.late_rows, key.names, affected.reopening, self.times), affected.wanted
        return RecomputePlan(
            asked=asked,
            epoch=epoch,
            work=Work(
                wanted=wanted,
                published=affected.published
                if isinstance(asked, ChangedRows)
                else whole_panes(epoch.tables, key, affected.published, windows),
                margin=self.margin,
            ),
            reopening=affected.reopening,
            late_rows=self._by_shard(self.late_rows.filter(meant)),
            counts=self._counted(windows, asked) if isinstance(asked, ChangedRows) else {},
        )

    @property
    def key(self) -> KeySchema:
        """The key columns."""
        return self.epoch.bound.key

    @property
    def only(self) -> Key | None:
        """The selected key; None for all keys."""
        if isinstance(self.asked, ChangedRows) or self.asked.key is None:
            return None
        return key_of_texts(self.key, self.asked.key)

    def _reopening(self) -> Reopening:
        """Return the selection of late rows; changed rows alone select none."""
        if isinstance(self.asked, ChangedRows):
            return Reopening(epoch=self.epoch.epoch, start=0, end=0)
        digest = None if self.only is None else digest_of(self.only)
        return Reopening(epoch=self.epoch.epoch, digest=digest, start=self.asked.start, end=self.asked.end)

    def _sessions(self, windows: Windows) -> _Affected:
        """Return whole sessions, including those that touch."""
        key, tables, asked, names = self.key, self.epoch.tables, self.asked, self.key.names
        kinds = pa.schema([*zip(names, self.key.types, strict=True), (START, pa.int64()), (END, pa.int64())])
        reopening = self._reopening()
        meant = is_chosen(self.late_rows, names, reopening)
        late_spans = spans_of(self.late_rows, names).cast(kinds)
        changed = kinds.empty_table()
        may_begin = (1, 0)
        if isinstance(asked, ChangedRows):
            sides = (asked.deleted, asked.added)
            changed = pa.concat_tables([_session_spans(side, self.epoch.bound, windows) for side in sides])
            # The rows of a key touch only sessions of that key.
            groups = key_groups(changed, names, self.epoch.bound.pipeline.max_parallelism).unique()
            state = of_keys(open_rows(tables, key, self.head, groups=groups), changed, key)
            # Most sessions are only a few gaps long.
            ahead = 3 * (windows.assigner.gap_of_every_element or 0)
            others = [late_spans, spans_of(state, names)]
            seen = NearPanes.of_sessions(tables, key, changed, others, self.margin, ahead)
        else:
            may_begin = (
                MIN_TIMESTAMP if asked.start is None else asked.start,
                MAX_TIMESTAMP if asked.end is None else asked.end - 1,
            )
            state, seen = open_rows(tables, key, self.head, self.only), light_panes(tables, key, self.only)
        published = to_retract(seen, names, windows)
        closed = spans_of(published, names)
        # Leave out the panes of open sessions, which may have grown since: such a pane is not a session of its own.
        closed = closed.filter(pa.array(~are_among(closed, emitted_spans(state, names), names)))
        is_meant = meant.filter(self.late_rows["window_start"].is_valid()).to_numpy().astype(np.bool_)
        touched = pa.concat_tables([late_spans, changed])
        is_asked = np.concatenate([is_meant, np.ones(len(changed), np.bool_)])
        wanted, inside = affected_sessions(
            key, touched, is_asked, [spans_of(state, names), closed], may_begin, self.margin
        )
        left = late_spans.filter(pa.array(~is_meant & inside[: len(late_spans)]))
        reopening = reopening.model_copy(update={"spans": _spans_with(key, wanted, left)})
        places = islands(key, wanted, spans_of(published, names))
        touching = np.isin(places.of_span[len(wanted) :], places.of_span[: len(wanted)])
        return _Affected(wanted, reopening, published.filter(pa.array(touching)))

    def _windows(self, windows: Windows) -> _Affected:
        """Return windows that don't merge."""
        key, tables, asked, names = self.key, self.epoch.tables, self.asked, self.key.names
        reopening = self._reopening()
        meant = is_chosen(self.late_rows, names, reopening)
        if isinstance(asked, ChangedRows):
            sides = [_keyed(side, key) for side in (asked.deleted, asked.added)]
            wanted = pa.concat_tables([windows_at(windows, key, side, _times(side)) for side in sides])
        else:
            wanted = windows_at(windows, key, self.late_rows.filter(meant), self.times[meant.to_numpy()])
            seen, opened = light_panes(tables, key, self.only), open_spans(tables, key, self.head, self.only)
            wanted = self._with_missed(windows, asked, wanted, to_retract(seen, names, windows))
        wanted, left = self._with_windows_of_late_rows(windows, wanted, pc.invert(meant))
        reopening = reopening.model_copy(update={"spans": left})
        chosen = is_chosen(self.late_rows, names, reopening).to_numpy()
        without = np.unique(self.times[chosen & ~have_window(windows, self.times)])
        reopening = reopening.model_copy(update={"without": tuple(without.tolist())})
        if isinstance(asked, ChangedRows):
            near = NearPanes.of_windows(tables, key, wanted)
            seen, opened = near.read(), open_spans(tables, key, self.head, near=near)
        published = to_retract(seen, names, windows)
        spans = spans_of(published, names)
        existing = pa.concat_tables([spans, opened])
        check_shape(self.epoch.bound.pipeline.name, windows, key, wanted, existing, isinstance(asked, ChangedRows))
        return _Affected(wanted, reopening, published.filter(pa.array(are_among(spans, wanted, names))))

    def _with_missed(self, windows: Windows, asked: Selection, wanted: pa.Table, published: pa.Table) -> pa.Table:
        """Return windows of late rows, and overlapping windows that missed a row which another window accepted."""
        grid = windows.assigner.window_grid
        if grid is None or grid.windows_of_an_element == 1:
            return wanted
        # The source may still have the rows of a forgotten key. If the key is no longer known, skip this.
        marks = forgotten_marks(self.epoch.tables).values()
        known = [mark for of_epoch in marks if of_epoch is not None for mark in of_epoch]
        if None in marks:
            return wanted
        lateness = min(windows.lateness, _least_lateness(published))
        start = FIRST_TIME if asked.start is None else max(FIRST_TIME, asked.start)
        # A row's time is before the end of its windows, and the selected windows start before the end of the selection.
        end = LAST_TIME if asked.end is None else min(LAST_TIME, asked.end + grid.size)
        missed = self.rows.passed(replace(windows, allowed_lateness=lateness), Interval(start=start, end=end))
        missed = missed.filter(pc.invert(are_forgotten(missed, self.key.names, known)))
        if self.only is not None:
            missed = missed.filter(are_of_key(missed, self.key.names, self.only))
        if asked.start is not None:
            missed = missed.filter(pc.greater_equal(missed[START], asked.start))
        if asked.end is not None:
            missed = missed.filter(pc.less(missed[START], asked.end))
        names = [*self.key.names, START, END]
        return distinct(pa.concat_tables([wanted.select(names), missed.select(names)]))

    def _with_windows_of_late_rows(
        self, windows: Windows, wanted: pa.Table, may_be: pa.ChunkedArray
    ) -> tuple[pa.Table, tuple[tuple[str, int, int], ...]]:
        """Return the windows and those of the late rows in them, and spans that select these late rows.

        A late row in one of these windows is added to all windows that it belongs to. `may_be` flags the late rows to
        consider. A span has the key's digest, and the start of the window in table late with a length of a millisecond.
        It selects all rows with that start, even those from before the windows changed, so they are added together.
        """
        names = [*self.key.names, START, END]
        wanted = distinct(wanted.select(names))
        # No span selects rows without a window.
        may_be = pc.and_(may_be, self.late_rows["window_start"].is_valid())
        late_rows, times = self.late_rows.filter(may_be), self.times[may_be.to_numpy()]
        starts = np.asarray(epoch_millis(late_rows["window_start"]).to_numpy(), np.int64)
        owners = digests(late_rows, self.key.names).dictionary_encode()
        places, numbers = np.unique(np.column_stack([owners.indices, starts]), axis=0, return_inverse=True)
        numbered = late_rows.select(self.key.names).append_column(_NUMBER, pa.array(numbers.reshape(-1)))
        of_late = windows_at(windows, self.key, numbered, times, also=(_NUMBER,))
        numbers, of_late = np.asarray(of_late[_NUMBER].to_numpy()), of_late.select(names)
        taken = np.zeros(len(places), np.bool_)
        while True:
            taken[numbers[are_among(of_late, wanted, self.key.names)]] = True
            of_taken = of_late.filter(pa.array(taken[numbers])).cast(wanted.schema)
            more = distinct(pa.concat_tables([wanted, of_taken]))
            if len(more) == len(wanted):
                break
            wanted = more
        chosen = ((owners.dictionary[owner].as_py(), start) for owner, start in places[taken].tolist())
        return wanted, tuple((owner, start, start + 1) for owner, start in sorted(chosen))

    def _counted(self, windows: Windows, changed: ChangedRows) -> dict[str, tuple[int, ...]]:
        """Return, by shard, how many changed rows were added to windows, removed from them, or belong to none."""
        deleted, added = (_keyed(side, self.key) for side in (changed.deleted, changed.added))
        before = added.slice(0, 0) if changed.before is None else _keyed(changed.before, self.key)
        has_window, had_window = (pa.array(have_window(windows, _times(side))) for side in (added, deleted))
        without = pa.concat_tables([added.filter(pc.invert(has_window)), before])
        return {
            "on_time": self._by_shard(added.filter(has_window)),
            "no_window": self._by_shard(without),
            "deleted_in_windows": self._by_shard(deleted.filter(had_window)),
        }

    def _by_shard(self, rows: pa.Table) -> tuple[int, ...]:
        groups = key_groups(rows, self.key.names, self.epoch.bound.pipeline.max_parallelism).to_numpy()
        return tuple(int(((groups >= shard.first) & (groups <= shard.last)).sum()) for shard in self.epoch.shards)


def _check_key_columns(bound: BoundPipeline, schema: pa.Schema) -> None:
    pipeline = bound.pipeline
    if pipeline.key and not key_columns(late.NAME, schema, pipeline.key, pipeline.derived_key):
        raise KeyNotRecorded(
            f"late rows of pipeline {pipeline.name!r} can't be selected by key, or by a span of time that cuts through "
            "a session or overlapping windows: the late table has no key columns. Reopen all of them"
        )


def _spans_with(key: KeySchema, wanted: pa.Table, left: pa.Table) -> tuple[tuple[str, int, int], ...]:
    """Return the digest of the key, start and end of the sessions with late rows that were not selected.

    These rows are reopened too, because a session is always recomputed as a whole.
    """
    places = islands(key, wanted, left)
    holding = wanted.filter(pa.array(np.isin(places.of_span[: len(wanted)], places.of_span[len(wanted) :])))
    columns = (digests(holding, key.names), holding[START], holding[END])
    return tuple(zip(*(column.to_pylist() for column in columns), strict=True))


def _keyed(events: pa.Table, key: KeySchema) -> pa.Table:
    keys = {name: events[f"{KEY_PREFIX}{name}"].cast(kind) for name, kind in zip(key.names, key.types, strict=True)}
    return pa.table({**keys, TIME: events[TIME]})


def _times(rows: pa.Table) -> Int64s:
    return np.asarray(rows[TIME].to_numpy(), np.int64)


def _session_spans(events: pa.Table, bound: BoundPipeline, windows: Windows) -> pa.Table:
    """Return the windows that events open before they merge."""
    rows, assigner = _keyed(events, bound.key), windows.assigner
    if assigner.column_of_gaps is not None:
        # A row that other code counted may have a gap that this code rejects.
        gaps = pc.fill_null(events[f"{VALUE_PREFIX}{assigner.column_of_gaps}"].cast(pa.int64()), 1)
        gaps = pc.min_element_wise(pc.max_element_wise(gaps, 1), LONGEST_DURATION)
    elif assigner.gap_of_every_element is not None:
        gaps = pa.scalar(assigner.gap_of_every_element, pa.int64())
    else:
        gaps = _own_gaps(events, bound, assigner)
    return rows.drop_columns([TIME]).append_column(START, rows[TIME]).append_column(END, pc.add(rows[TIME], gaps))


def _own_gaps(events: pa.Table, bound: BoundPipeline, assigner: WindowAssigner) -> pa.Array:
    """Return the gap of each event by the user's function, which gets elements as the operator would pass them."""
    columns = {}
    for name, kind in zip(bound.used, bound.value_types, strict=True):
        columns[name] = as_type(events[f"{VALUE_PREFIX}{name}"], kind).to_pylist(maps_as_pydicts="lossy")
    elements = ({name: values[place] for name, values in columns.items()} for place in range(len(events)))
    opened = (assigner.assign_windows(element, 0, NO_CLOCK) for element in elements)
    ends = [window.end for windows in opened for window in windows if isinstance(window, TimeWindow)]
    return pa.array(ends, pa.int64())


def _least_lateness(published: pa.Table) -> Millis:
    """Return the shortest lateness of the published windows. Earlier code may have allowed less than current code."""
    given = pc.subtract(epoch_millis(published["final_at"]), pc.subtract(epoch_millis(published["window_end"]), 1))
    least = pc.min(given).as_py()
    return MAX_TIMESTAMP if least is None else max(0, least)

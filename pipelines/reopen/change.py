"""Plan of an epoch of kind `change`: the windows that rows touch which went from the source, or came for past times.

These windows are computed again from the newer version of the source, as a reopening computes windows of late rows. So
they also take the late rows that they missed, which count as reopened.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.binding import BoundPipeline
from tidegate.pipelines.definition.event_columns import KEY_PREFIX, TIME, VALUE_PREFIX
from tidegate.pipelines.epoch.changed_rows import ChangedRows
from tidegate.pipelines.epoch.plan import EpochPlan
from tidegate.pipelines.manifest import Reopening
from tidegate.pipelines.reopen.panes import (
    NearPanes,
    are_among,
    emitted_spans,
    may_come_again,
    newest_panes,
    of_keys,
    open_rows,
    open_spans,
    to_retract,
)
from tidegate.pipelines.reopen.plan import ReadRows, ReopenPlan, by_shard, correcting_epoch, late_beside
from tidegate.pipelines.reopen.shape import check_shape
from tidegate.pipelines.reopen.stretches import END, START, islands, session_stretches, spans_of, windows_at
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.storage import read_table
from tidegate.pipelines.tables import late, results
from tidegate.pipelines.tables.departed import Departing
from tidegate.pipelines.tables.groups import distinct
from tidegate.pipelines.tables.key_groups import key_groups
from tidegate.pipelines.tables.keys import digests
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.aggregates.vectorised import Bools, Int64s
from tidegate.windowing.compute import Windows
from tidegate.windowing.keys import KeySchema
from tidegate.windowing.time import Millis
from tidegate.windowing.timestamps import epoch_millis

_NONE = Reopening(epoch=0, start=0, end=0)
"""Selection of no late row."""
_NUMBER, _GAP = "\0number", "\0gap"


@dataclass(frozen=True)
class ChangePlan:
    """The plan of an epoch of kind `change`.

    Args:
        windows: the windows to compute again.
        counts: for each shard of the epoch, numbers of rows by counter.
    """

    windows: ReopenPlan
    counts: dict[str, tuple[int, ...]]


def plan_change(
    tables: PipelineTables,
    bound: BoundPipeline,
    head: Snapshot,
    changed: ChangedRows,
    rows: ReadRows,
    now: Millis,
    margin: Millis = 0,
) -> ChangePlan:
    """Plan an epoch that corrects the windows of rows that went and came.

    Args:
        tables: the pipeline's tables, published up to the head.
        bound: the bound pipeline.
        head: the snapshot to start from.
        changed: the rows.
        rows: the source rows of the newer version.
        now: the driver's clock, int64 epoch milliseconds.
        margin: largest distance of sessions that may be one, milliseconds; see `plan_reopen`.

    Raises:
        Refused: windows of another size hold elements of the windows to correct.
    """
    epoch, key = correcting_epoch(tables, bound, head, now, "change"), bound.key
    windows = epoch.compute
    assert isinstance(windows, Windows)
    gap = windows.assigner.column_of_gaps
    gone, came = (_keyed(side, key, gap) for side in (changed.gone, changed.came))
    is_open = pc.field(late.REOPENED).is_null() & ~pc.field("stale")
    late_rows = read_table(tables.warehouse, tables.look(late.NAME), where=is_open)
    if (departed := changed.departed.get(late.NAME)) is not None:
        late_rows = late_rows.filter(pa.array(Departing(late.NAME, departed).stay(late_rows)))
    times_of_late = late.event_times(late_rows)
    late_rows = rows.keyed(late_rows)
    handle = tables.look(results.NAME)
    reopening = _NONE.model_copy(update={"epoch": epoch.epoch})
    if windows.assigner.forms_sessions:
        touched = pa.concat_tables([_session_spans(side, windows, key) for side in (gone, came)])
        late_spans = spans_of(late_rows, key.names).select(touched.column_names).cast(touched.schema)
        # What a key's rows touch depends on the sessions of that key alone.
        groups = key_groups(touched, key.names, bound.pipeline.max_parallelism).unique()
        state = of_keys(open_rows(tables, key, head, groups=groups), touched, key)
        others = [late_spans, spans_of(state, key.names)]
        # Most sessions end within a few gaps.
        ahead = 3 * (windows.assigner.gap_of_every_element or 0)
        near, everything = NearPanes.of_sessions(tables.warehouse, handle, key, touched, others, margin, ahead)
        published = to_retract(everything, key.names, windows)
        closed = spans_of(published, key.names)
        # Leave out the panes of open sessions, which may have grown since: such a pane is not a session of its own.
        closed = closed.filter(pa.array(~are_among(closed, emitted_spans(state, key.names), key.names)))
        asked = np.repeat([False, True], [len(late_spans), len(touched)])
        stretches = session_stretches(
            key, pa.concat_tables([late_spans, touched]), asked, [spans_of(state, key.names), closed], (1, 0), margin
        )
        wanted = stretches.wanted
        none = pa.chunked_array([pa.repeat(pa.scalar(False), len(late_rows))])
        of_late = type(stretches)(wanted, stretches.late[: len(late_spans)])
        reopening = reopening.model_copy(update={"spans": late_beside(key, late_rows, none, of_late)})
        places = islands(key, wanted, spans_of(published, key.names))
        inside = np.isin(places.of_span[len(wanted) :], places.of_span[: len(wanted)])
    else:
        touched = pa.concat_tables([windows_at(windows, key, side, _times(side)) for side in (gone, came)])
        wanted, with_late = _with_windows_of_late_rows(windows, key, late_rows, times_of_late, touched)
        reopening = reopening.model_copy(update={"spans": _starts_of(late_rows.filter(pa.array(with_late)), key)})
        near = NearPanes.of_windows(tables.warehouse, handle, key, wanted)
        everything = near.read()
        published = to_retract(everything, key.names, windows)
        existing = pa.concat_tables([spans_of(published, key.names), open_spans(tables, key, head, near=near)])
        check_shape(bound.pipeline.name, windows, key, wanted, existing, is_change=True)
        inside = are_among(spans_of(published, key.names), wanted, key.names)
    meant = late.is_chosen(late_rows, key.names, reopening)
    plan = ReopenPlan(
        epoch,
        wanted,
        published.filter(pa.array(inside)),
        reopening,
        by_shard(epoch, late_rows.filter(meant)),
        margin,
        newest_panes(everything, key, wanted),
        may_come_again(everything, key, wanted, windows, head.manifest.watermark),
    )
    before = came.slice(0, 0) if changed.before is None else _keyed(changed.before, key, gap)
    return ChangePlan(plan, _counted(epoch, windows, gone, came, before))


def _keyed(events: pa.Table, key: KeySchema, gap: str | None) -> pa.Table:
    """Return the times of events, and their gaps if a column has them, with the columns of the key by their names."""
    keys = {name: events[f"{KEY_PREFIX}{name}"].cast(kind) for name, kind in zip(key.names, key.types, strict=True)}
    gaps = {} if gap is None else {_GAP: events[f"{VALUE_PREFIX}{gap}"].cast(pa.int64())}
    return pa.table({**keys, TIME: events[TIME], **gaps})


def _times(rows: pa.Table) -> Int64s:
    return np.asarray(rows[TIME].to_numpy(), np.int64)


def _session_spans(rows: pa.Table, windows: Windows, key: KeySchema) -> pa.Table:
    """Return the windows that elements open before they merge."""
    gap = windows.assigner.gap_of_every_element
    gaps = rows[_GAP] if _GAP in rows.column_names else pa.scalar(gap, pa.int64())
    keys = {name: rows[name] for name in key.names}
    return pa.table({**keys, START: rows[TIME], END: pc.add(rows[TIME], gaps)})


def _with_windows_of_late_rows(
    windows: Windows, key: KeySchema, late_rows: pa.Table, times: Int64s, touched: pa.Table
) -> tuple[pa.Table, Bools]:
    """Return windows to compute again, and True for each late row that they take.

    A late row that is in one of the windows is taken into all of its windows.

    Args:
        windows: the windows with their assigner.
        key: the key columns.
        late_rows: late rows that no window holds, with the key columns.
        times: their event times, int64 epoch milliseconds.
        touched: windows that rows went from or came to.
    """
    names = [*key.names, START, END]
    wanted = distinct(touched.select(names))
    taken = np.zeros(len(late_rows), np.bool_)
    if not len(late_rows):
        return wanted, taken
    numbered = late_rows.select(list(key.names)).append_column(_NUMBER, pa.array(np.arange(len(late_rows))))
    of_late = windows_at(windows, key, numbered, times, also=(_NUMBER,))
    numbers = np.asarray(of_late[_NUMBER].to_numpy())
    while True:
        taken[numbers[are_among(of_late.select(names), wanted, key.names)]] = True
        of_taken = of_late.filter(pa.array(taken[numbers])).select(names).cast(wanted.schema)
        more = distinct(pa.concat_tables([wanted, of_taken]))
        if len(more) == len(wanted):
            return wanted, taken
        wanted = more


def _starts_of(late_rows: pa.Table, key: KeySchema) -> tuple[tuple[str, int, int], ...]:
    """Return digest of the key and start, as a span of a millisecond, of the windows in which table late has rows."""
    starts = epoch_millis(late_rows["window_start"])
    owners = digests(late_rows, key.names)
    places = {(owner, start) for owner, start in zip(owners.to_pylist(), starts.to_pylist(), strict=True)}
    return tuple((owner, start, start + 1) for owner, start in sorted(places))


def _counted(
    epoch: EpochPlan, windows: Windows, gone: pa.Table, came: pa.Table, before: pa.Table
) -> dict[str, tuple[int, ...]]:
    """Return the numbers of rows that windows took, gave back and did not take, for each shard."""
    in_window = [_has_window(windows, side) for side in (gone, came)]
    return {
        "on_time": by_shard(epoch, came.filter(pa.array(in_window[1]))),
        "no_window": by_shard(epoch, pa.concat_tables([came.filter(pa.array(~in_window[1])), before])),
        "taken_back": by_shard(epoch, gone.filter(pa.array(in_window[0]))),
    }


def _has_window(windows: Windows, rows: pa.Table) -> Bools:
    flags = np.ones(len(rows), np.bool_)
    if (assign := windows.assigner.array_assignment) is not None and not windows.assigner.forms_sessions:
        flags[:] = False
        flags[assign(_times(rows)).rows] = True
    return flags

"""Firing and cleanup of the sessions that no other element or window of the epoch can touch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Bools, Int64s
from tidegate.windowing.columnar.contents import Contents
from tidegate.windowing.columnar.kernel import KernelOutput, Rules, count
from tidegate.windowing.columnar.panes import LATE, ON_TIME, PaneRows
from tidegate.windowing.columnar.state import FIRE, FIRE_AND_PURGE, CodedRows, timer_lists
from tidegate.windowing.epochs.arrays import ParallelArrays, taken
from tidegate.windowing.epochs.timeline import Timeline
from tidegate.windowing.panes import Accumulation, Timing
from tidegate.windowing.time import MIN_TIMESTAMP


@dataclass(frozen=True, kw_only=True)
class Sessions(ParallelArrays):
    """Sessions that have never fired, and that nothing else in this epoch can touch.

    Args:
        codes: code of the key.
        starts: start, int64 epoch milliseconds.
        ends: end, not included, int64 epoch milliseconds.
        contents: accumulators.
        late: true if the watermark had passed the end when the elements came.
        commits: commit of the elements, used only if `late`.
        watermarks: watermark before the elements, used only if `late`.
    """

    codes: Int64s
    starts: Int64s
    ends: Int64s
    contents: Contents
    late: Bools
    commits: Int64s
    watermarks: Int64s


def fire_sessions(sessions: Sessions, rules: Rules, timeline: Timeline, output: KernelOutput) -> None:
    """Put out the panes of sessions that fire, and the state rows of sessions that stay."""
    last, cleanups = sessions.ends - 1, rules.cleanups(sessions.ends)
    ended, cleaned = ~sessions.late & timeline.reaches(last), timeline.reaches(cleanups)
    fires = ended.copy()
    if sessions.late.any():
        fires[sessions.late] = timeline.complete[sessions.commits[sessions.late]]
    # In a long epoch all sessions fire in time, and copying arrays costs more than looking at them.
    fired = sessions if fires.all() else sessions.take(np.flatnonzero(fires))
    late = fired.late
    watermarks = timeline.firings(np.where(late, MIN_TIMESTAMP, fired.ends - 1))
    if late.any():
        watermarks = np.where(late, fired.watermarks, watermarks)
    rows = PaneRows(
        codes=fired.codes,
        starts=fired.starts,
        ends=fired.ends,
        identity_starts=fired.starts,
        identity_ends=fired.ends,
        panes=np.zeros(len(fired), np.int64),
        timings=np.where(late, LATE, ON_TIME),
        is_retraction=np.zeros(len(fired), np.int64),
        watermarks=watermarks,
        results=rules.contents.results(fired.contents),
    )
    output.panes.append(rows)
    output.counters.fired[Timing.LATE] += count(late)
    output.counters.fired[Timing.ON_TIME] += count(~late)
    output.counters.timers_fired += count(ended) + (count(cleaned) if rules.lateness else 0)
    stays = np.flatnonzero(~cleaned)
    output.counters.open_windows += len(stays)
    if len(stays):
        emitted = rows.take(np.flatnonzero(~cleaned[fires])) if rules.retracts or rules.retract_merged else None
        output.state.append(_state_rows(sessions, rules, stays, fires, ended, cleanups, emitted))
        if rules.accumulation is Accumulation.DISCARDING and rules.retract_merged:
            gone_out = stays[fires[stays]]
            bounds = sessions.starts[gone_out], sessions.ends[gone_out]
            discarded = rules.state.discarded(*bounds, taken(sessions.contents, gone_out))
            output.state.append(CodedRows(sessions.codes[gone_out], discarded))


def _state_rows(
    sessions: Sessions,
    rules: Rules,
    stays: Int64s,
    fires: Bools,
    ended: Bools,
    cleanups: Int64s,
    emitted: PaneRows | None,
) -> CodedRows:
    fired = fires[stays]
    starts, ends = sessions.starts[stays], sessions.ends[stays]
    waits_for_end = ~sessions.late[stays] & ~ended[stays]
    waits_for_commit = sessions.late[stays] & ~fired
    has_cleanup = np.full(len(stays), True) if rules.lateness else ~waits_for_end
    return CodedRows(
        sessions.codes[stays],
        rules.state.rows(
            starts,
            ends,
            (starts, ends),
            timer_lists((ends - 1, waits_for_end), (cleanups[stays], has_cleanup)),
            taken(sessions.contents, stays),
            ~fired if rules.empties else np.ones(len(stays), np.bool_),
            fired.astype(np.int64),
            pa.array(np.where(waits_for_commit, FIRE_AND_PURGE if rules.purging else FIRE, ""), mask=~waits_for_commit),
            None if emitted is None else emitted.emitted(rules.contents.result, fired),
        ),
    )

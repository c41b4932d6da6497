"""Sessions that are complete as far as this epoch goes: they fire or wait, and stay or go."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Bools, Int64s
from tidegate.windowing.columnar.contents import Contents
from tidegate.windowing.columnar.kernel import Made, Rules, count
from tidegate.windowing.columnar.panes import LATE, ON_TIME, PaneRows
from tidegate.windowing.columnar.state import FIRE, FIRE_AND_PURGE, CodedRows, timer_lists
from tidegate.windowing.epochs.arrays import ParallelArrays, taken
from tidegate.windowing.epochs.timeline import Timeline
from tidegate.windowing.panes import Accumulation, Timing


@dataclass(frozen=True, kw_only=True)
class Sessions(ParallelArrays):
    """Sessions that never fired before, each of which nothing more can touch in this epoch.

    Args:
        codes: the key of each, as a code.
        starts: int64 epoch milliseconds.
        ends: not included.
        contents: accumulators.
        late: whether its end had passed when its elements came.
        commits: the commit of a late one's elements.
        watermarks: what they were judged against.
    """

    codes: Int64s
    starts: Int64s
    ends: Int64s
    contents: Contents
    late: Bools
    commits: Int64s
    watermarks: Int64s


def fire_sessions(sessions: Sessions, rules: Rules, timeline: Timeline, made: Made) -> None:
    """Put out the panes of sessions that fire, and the state rows of those that stay."""
    last, cleanups = sessions.ends - 1, rules.cleanups(sessions.ends)
    ended, cleaned = ~sessions.late & timeline.reaches(last), timeline.reaches(cleanups)
    fires = ended.copy()
    if sessions.late.any():
        fires[sessions.late] = timeline.complete[sessions.commits[sessions.late]]
    fired = np.flatnonzero(fires)
    late = sessions.late[fired]
    watermarks = sessions.watermarks[fired]
    watermarks[~late] = timeline.firings(last[fired][~late])
    starts, ends = sessions.starts[fired], sessions.ends[fired]
    rows = PaneRows(
        codes=sessions.codes[fired],
        starts=starts,
        ends=ends,
        identity_starts=starts,
        identity_ends=ends,
        panes=np.zeros(len(fired), np.int64),
        timings=np.where(late, LATE, ON_TIME),
        withdrawn=np.zeros(len(fired), np.int64),
        watermarks=watermarks,
        results=rules.contents.results(taken(sessions.contents, fired)),
    )
    made.panes.append(rows)
    made.counters.fired[Timing.LATE] += count(late)
    made.counters.fired[Timing.ON_TIME] += count(~late)
    made.counters.timers_fired += count(ended) + (count(cleaned) if rules.lateness else 0)
    stays = np.flatnonzero(~cleaned)
    made.counters.open_windows += len(stays)
    if len(stays):
        emitted = rows.take(np.flatnonzero(~cleaned[fired])) if rules.retracts or rules.withdraw_merged else None
        made.state.append(_state_rows(sessions, rules, stays, fires, ended, cleanups, emitted))
        if rules.accumulation is Accumulation.DISCARDING and rules.withdraw_merged:
            gone_out = stays[fires[stays]]
            bounds = sessions.starts[gone_out], sessions.ends[gone_out]
            discarded = rules.state.discarded(*bounds, taken(sessions.contents, gone_out))
            made.state.append(CodedRows(sessions.codes[gone_out], discarded))


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

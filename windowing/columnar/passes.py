"""An epoch in several passes, which bounds memory: each pass processes its elements before the next one begins.

The operator processes elements by commit and then by time, so a pass may end between any two elements of different
times without changing the order. A single hot key needs no more memory than many keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from tidegate.windowing.aggregates.vectorised import Int64s
from tidegate.windowing.columnar.operator import ColumnarOperator
from tidegate.windowing.columnar.order import sort_order
from tidegate.windowing.epochs.elements import Elements
from tidegate.windowing.epochs.outcome import Outcome
from tidegate.windowing.epochs.timeline import Timeline
from tidegate.windowing.operators.counters import Counters

ROWS_AT_A_TIME = 4_000_000
"""Elements of a pass, counted once for each of their windows. Each takes about 250 bytes of memory."""


def run_in_passes(
    operator: ColumnarOperator,
    elements: Elements,
    state: pa.Table,
    timeline: Timeline,
    rows: int = ROWS_AT_A_TIME,
) -> Outcome:
    """Return the outcome of `operator.run`, computed on about `rows` elements at a time.

    Args:
        operator: the columnar operator.
        elements: all elements of a set of keys.
        state: all state rows of these keys, and of any others.
        timeline: watermarks and clocks of the epoch.
        rows: elements of a pass, counted once for each of their windows. Elements of the same commit and time
            always share a pass.
    """
    rows = max(1, rows // operator.windows_of_an_element)
    if len(elements) <= rows:
        return operator.run(elements, state, timeline)
    outcomes = []
    for pass_rows, commit, part in _passes(elements, timeline, rows):
        taken = elements.take(pass_rows)
        outcome = operator.run(replace(taken, commits=taken.commits - commit), state, part)
        state = outcome.state
        outcomes.append(outcome.with_late_rows(pass_rows))
    return _joined(outcomes)


def _passes(elements: Elements, timeline: Timeline, rows: int) -> Iterator[tuple[Int64s, int, Timeline]]:
    """Yield for each pass the indices of its elements, the number of its first commit, and its timeline."""
    times = elements.timestamps
    order = sort_order(elements.commits, times)
    differs = np.ones(len(order), np.bool_)
    differs[1:] = (np.diff(times[order]) != 0) | (np.diff(elements.commits[order]) != 0)
    if timeline.lag is not None:
        # Elements that don't move the watermark belong to the first commit, whose late panes are emitted together.
        differs[1:] &= times[order[1:]] - timeline.lag > timeline.initial
    may_begin = np.append(np.flatnonzero(differs), len(order))
    wanted = np.append(np.arange(0, len(order), rows), len(order))
    begins = np.unique(may_begin[np.searchsorted(may_begin, wanted)])
    watermark, commit = timeline.initial, 0
    for begin, end in pairwise(begins.tolist()):
        pass_rows, final = order[begin:end], end == len(order)
        if timeline.lag is not None:
            newest = max(watermark, timeline.following(int(times[pass_rows[-1]])))
            after = timeline.final if final else newest
            part = Timeline.in_event_order(watermark, after, timeline.lag, clock=int(timeline.clocks[0]))
            yield pass_rows, 0, part
        else:
            last = len(timeline.complete) - 1 if final else int(elements.commits[pass_rows[-1]])
            ended = bool(timeline.complete[last]) and (final or int(elements.commits[order[end]]) > last)
            part = timeline.part(watermark, commit, last, ended)
            yield pass_rows, commit, part
            commit = last + ended
        watermark = part.final


def _joined(outcomes: list[Outcome]) -> Outcome:
    """Return the outcomes of all passes as one; its state is that of the last pass."""
    counters = Counters.total(outcome.counters for outcome in outcomes)
    counters.open_windows = outcomes[-1].counters.open_windows
    return replace(
        outcomes[-1],
        panes=pa.concat_tables([outcome.panes for outcome in outcomes]),
        late=pa.concat_tables([outcome.late for outcome in outcomes]),
        counters=counters,
        rows_by_row=sum(outcome.rows_by_row for outcome in outcomes),
    )

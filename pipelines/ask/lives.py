"""The life of the windows of one key, derived row by row from the plain rules in docs/semantics.md.

It shares no code with the operators. It covers windows of event time that fire once at their end, and then once for
each commit with late rows. It does not cover the early panes of other triggers.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tidegate.pipelines.sources.commits import FilePart
from tidegate.windowing.lateness import is_late
from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP, Millis, saturating_add

Bounds = tuple[Millis, Millis]
"""Start and end of a window."""

BASE = "base"
"""Kind of the step with the rows that were read before the history begins, whose order of arrival is unknown."""

Identity = tuple[Millis, tuple[str, ...]]
"""Event time of a row, and its values as text, because rows with the same time may differ."""

STEP, TIME, PART, PLACE = "tidegate:step", "tidegate:time", "tidegate:part", "tidegate:place"
"""A row's step number, event time, file number, and position in the file."""


EMITTING = ("fired", "fired late", "reopened")
"""Events that publish a pane."""


@dataclass(frozen=True, slots=True)
class LifeStep:
    """A step in time: a source commit that an epoch read, an interval of a backfill, or only the clock.

    Args:
        epoch: number of the epoch.
        kind: its kind, or `BASE`.
        version: version of the source whose rows it reads; None if it reads none.
        clock: processing time, int64 epoch milliseconds.
        before: watermark before it, which decides which of its rows are late.
        after: watermark after it.
        lag: in event order, how far the watermark is behind the rows; otherwise None.
        parts: the rows that it reads.
        lateness: allowed lateness of the code that ran, milliseconds; None for that of the current code.
        closed_through: for a `BASE`, the time up to which code with less allowed lateness had closed windows.
    """

    epoch: int
    kind: str
    version: int | None
    clock: Millis
    before: Millis
    after: Millis
    lag: Millis | None = None
    parts: tuple[FilePart, ...] = ()
    lateness: Millis | None = None
    closed_through: Millis = MIN_TIMESTAMP


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a key. Times are int64 epoch milliseconds.

    Args:
        what: `in`, `late` or `no window` (a row), `opened`, `merged`, `fired`, `fired late`, `reopened`, or `cleaned`
            (a window).
        step: number of the step.
        watermark: event time when it happened.
        start: start of the window; None for a row without a window.
        end: its end, exclusive.
        rows: numbers of the row that arrived, or of the rows of a pane.
        merged: the windows that became this one.
    """

    what: str
    step: int
    watermark: Millis
    start: Millis | None
    end: Millis | None
    rows: tuple[int, ...] = ()
    merged: tuple[Bounds, ...] = ()


@dataclass
class Life:
    """The windows of a key, as they pass through the steps.

    Args:
        steps: the steps.
        windows_of: returns the windows of a row.
        merges: True if windows that touch merge.
        lateness: allowed lateness of the current code, milliseconds.
        identity: returns the identity of a row.
        reopened: for each epoch, the late rows that it reopened.
        late_before: the late rows that are in no window when the history starts.
        published: the newest epoch that published each window. No table records which windows a reopening gave rows
            that they had missed while another window accepted them. The windows that the reopening published have these
            rows.
        final_at: for each published window, the watermark after which it can no longer change.
    """

    steps: Sequence[LifeStep]
    windows_of: Callable[[Mapping[str, Any]], Sequence[Bounds]]
    merges: bool
    lateness: Millis
    identity: Callable[[Mapping[str, Any]], Identity]
    reopened: Mapping[int, Sequence[Identity]] = field(default_factory=dict)
    late_before: Sequence[Identity] = ()
    published: Mapping[Bounds, int] = field(default_factory=dict)
    final_at: Mapping[Bounds, Millis] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    panes: dict[Bounds, tuple[int, ...]] = field(default_factory=dict)
    """The newest pane of each window: the numbers of its rows."""
    reopened_in: dict[int, int] = field(default_factory=dict)
    """By number of a late row, the epoch that reopened it."""
    _open: dict[Bounds, list[int]] = field(default_factory=dict)
    _closed: dict[Bounds, list[int]] = field(default_factory=dict)
    _merged: dict[Bounds, list[Bounds]] = field(default_factory=dict)
    """The windows from which each open window was merged since it last fired."""
    _late: list[int] = field(default_factory=list)
    _missed: dict[Bounds, list[int]] = field(default_factory=dict)
    _watermark: Millis | None = None
    _allowed: Millis = 0
    _closed_through: Millis = MIN_TIMESTAMP
    """Time up to which windows stay closed, whatever lateness later steps allow, unless they are in `_recomputed`."""
    _recomputed: set[Bounds] = field(default_factory=set)
    """Windows that were closed, and accept rows again: recomputed by code with more allowed lateness."""

    def live(self, rows: Sequence[Mapping[str, Any]]) -> Life:
        """Take rows through the steps. The rows are ordered by step, then by time."""
        at = 0
        in_base = [number for number, row in enumerate(rows) if self.steps[row[STEP]].kind == BASE]
        late_before = self._chosen(in_base, rows, self.late_before)
        for number, step in enumerate(self.steps):
            self._allowed = self.lateness if step.lateness is None else step.lateness
            self._advance(number, step.before)
            touched: dict[Bounds, None] = {}
            while at < len(rows) and rows[at][STEP] == number:
                if at in late_before:
                    self._leave(number, at, rows[at])
                    at += 1
                    continue
                if step.lag is not None:
                    self._advance(number, max(step.before, min(rows[at][TIME] - step.lag, step.after)))
                self._take(number, at, rows[at], touched)
                at += 1
            for window in touched:
                if window in self._open:
                    self._fire("fired late", number, window)
            self._reopen(number, step, rows)
            if step.kind == BASE:
                self._closed_through = step.closed_through
                self._recomputed = {each for each in self._open if self.final_at.get(each, step.after) > step.after}
            self._advance(number, step.after)
        return self

    @property
    def open_windows(self) -> dict[Bounds, tuple[int, ...]]:
        """The windows with state after the steps, with the numbers of their rows."""
        return {window: tuple(rows) for window, rows in self._open.items()}

    @property
    def late(self) -> tuple[int, ...]:
        """The numbers of the rows that are still late."""
        return tuple(self._late)

    @property
    def emitted(self) -> set[Bounds]:
        """The windows with a pane emitted after the start of the history."""
        emitting = [event for event in self.events if event.what in EMITTING and self.steps[event.step].kind != BASE]
        return {(event.start, event.end) for event in emitting if event.start is not None and event.end is not None}

    def _is_closed(self, window: Bounds, met: Sequence[Bounds] = ()) -> bool:
        stays_closed = window[1] - 1 <= self._closed_through and self._recomputed.isdisjoint((window, *met))
        return stays_closed or self._is_final(window)

    def _is_final(self, window: Bounds) -> bool:
        assert self._watermark is not None
        return is_late(window[1] - 1, self._allowed, self._watermark)

    def _take(self, step: int, number: int, row: Mapping[str, Any], touched: dict[Bounds, None]) -> None:
        assert self._watermark is not None
        watermark, windows, accepted = self._watermark, self.windows_of(row), False
        missed = []
        for window in windows:
            met = self._met(window, self._open)
            target = _cover(window, met)
            if self._is_closed(target, met):
                missed.append(window)
                continue
            accepted = True
            self._join(step, target, met, number)
            if target[1] - 1 <= watermark:
                touched[target] = None
        for window in missed if accepted else ():
            self._missed.setdefault(window, []).append(number)
        first = windows[0] if windows else (None, None)
        what = "in" if accepted else "no window"
        if not accepted and (windows or is_late(row[TIME], self._allowed, watermark)):
            what = "late"
            self._late.append(number)
        self.events.append(Event(what, step, watermark, first[0], first[1], (number,)))

    def _leave(self, step: int, number: int, row: Mapping[str, Any]) -> None:
        """Record a row as late, because table `late` has it."""
        assert self._watermark is not None
        start, end = next(iter(self.windows_of(row)), (None, None))
        self._late.append(number)
        self.events.append(Event("late", step, self._watermark, start, end, (number,)))

    def _chosen(
        self, numbers: Sequence[int], rows: Sequence[Mapping[str, Any]], wanted: Sequence[Identity]
    ) -> set[int]:
        """Return the numbers of wanted rows, preferring rows with the same values to rows with only the same time."""
        chosen, left = set[int](), list(wanted)
        times = {time for time, _ in wanted}
        identities = {number: self.identity(rows[number]) for number in numbers if rows[number][TIME] in times}
        for is_same in (operator.eq, lambda one, other: one[0] == other[0]):
            for number, identity in identities.items():
                found = next((each for each in left if number not in chosen and is_same(identity, each)), None)
                if found is not None:
                    left.remove(found)
                    chosen.add(number)
        return chosen

    def _met(self, window: Bounds, others: Mapping[Bounds, list[int]]) -> list[Bounds]:
        if not self.merges:
            return [window] if window in others else []
        return sorted(other for other in others if other[0] <= window[1] and window[0] <= other[1])

    def _join(self, step: int, target: Bounds, met: list[Bounds], number: int) -> None:
        assert self._watermark is not None
        # Lists are extended, not copied: a session of a busy key merges with each of its rows.
        rows, *others = [self._open.pop(window) for window in met] or [[]]
        if not met:
            self.events.append(Event("opened", step, self._watermark, *target))
        elif met != [target]:
            # When the merged window fires, it retracts the panes of the windows that it was merged from; those that
            # would look final before it ends are retracted immediately.
            self.events.append(Event("merged", step, self._watermark, *target, (), tuple(met)))
            origins, *more = [self._merged.pop(window, []) for window in met]
            self._merged[target] = origins
            origins += [*(origin for each in more for origin in each), *met]
            for origin in origins:
                if saturating_add(origin[1], self._allowed) < target[1]:
                    self.panes.pop(origin, None)
        self._open[target] = rows
        rows += [*(row for other in others for row in other), number]
        if not self._recomputed.isdisjoint(met):
            self._recomputed.add(target)

    def _fire(self, what: str, step: int, window: Bounds) -> None:
        assert self._watermark is not None
        rows = tuple(self._open[window])
        for merged in self._merged.pop(window, ()):
            self.panes.pop(merged, None)
        self.panes[window] = rows
        self.events.append(Event(what, step, self._watermark, *window, rows))

    def _advance(self, step: int, watermark: Millis) -> None:
        before = self._watermark
        if before is not None and watermark <= before:
            return
        self._watermark = watermark
        for window in sorted(self._open, key=lambda window: (window[1], window[0])):
            if (before is None or window[1] - 1 > before) and window[1] - 1 <= watermark:
                self._fire("fired", step, window)
            if watermark == MAX_TIMESTAMP or self._is_closed(window):
                self.events.append(Event("cleaned", step, watermark, *window))
                self._closed[window] = self._open.pop(window)
        self._closed_through = max(self._closed_through, watermark - self._allowed)

    def _reopen(self, step: int, reopening: LifeStep, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add the late rows that an epoch reopened. Their windows are recomputed as a whole."""
        wanted = self.reopened.get(reopening.epoch, ()) if reopening.kind == "reopen" else ()
        changed: dict[Bounds, None] = {}
        for number in sorted(self._chosen(self._late, rows, wanted)):
            self._late.remove(number)
            self.reopened_in[number] = reopening.epoch
            for window in self.windows_of(rows[number]):
                self._rejoin(*self._connected(window), [number], changed)
        if reopening.kind == "reopen":
            self._join_touching(reopening.epoch, changed)
            self._take_missed(reopening.epoch, changed)
        for window in changed:
            assert self._watermark is not None
            held = tuple({**self._closed, **self._open}[window])
            if window[1] - 1 <= self._watermark:
                self.panes[window] = held
            self.events.append(Event("reopened", step, self._watermark, *window, held))

    def _join_touching(self, epoch: int, changed: dict[Bounds, None]) -> None:
        """Join sessions that touch even without a late row. Then only their union is still published, if any."""
        for window in sorted(self._closed) if self.merges else ():
            if window in self._closed and window not in self.published:
                target, met = self._connected(window)
                newest = {each: self.published[each] for each in met if each in self.published}
                if len(met) > 1 and (not newest or (newest.keys() == {target} and newest[target] >= epoch)):
                    self._rejoin(target, met, [], changed)

    def _take_missed(self, epoch: int, changed: dict[Bounds, None]) -> None:
        """Add the rows that windows missed, if an epoch recomputed these windows."""
        for window in list(self._missed):
            if window in changed or self.published.get(window, 0) >= epoch:
                is_open = window in self._open
                joined = (self._open if is_open else self._closed).pop(window, [])
                self._hold(window, sorted([*joined, *self._missed.pop(window)]), is_open)
                changed[window] = None

    def _connected(self, window: Bounds) -> tuple[Bounds, list[Bounds]]:
        """Return the span that a window forms with all windows that touch it or each other, and these windows."""
        both, cover = {**self._closed, **self._open}, None
        while window != cover:
            met = self._met(window, both)
            cover, window = window, _cover(window, met)
        return window, met

    def _rejoin(self, target: Bounds, met: list[Bounds], rows: list[int], changed: dict[Bounds, None]) -> None:
        """Recompute connected windows as one window, with the added rows."""
        both = {**self._closed, **self._open}
        is_open = any(each in self._open for each in met)
        joined = [row for each in met for row in both[each]]
        for each in met:
            self._open.pop(each, None)
            self._closed.pop(each, None)
            for retracted in (each, *self._merged.pop(each, ())):
                self.panes.pop(retracted, None)
            changed.pop(each, None)
        self._hold(target, sorted([*joined, *rows]), is_open)
        changed[target] = None

    def _hold(self, window: Bounds, rows: list[int], is_open: bool) -> None:
        """Keep a recomputed window, which is open again if the current code still accepts late rows for it."""
        if not is_open and not self._is_final(window):
            self._recomputed.add(window)
        (self._open if is_open or window in self._recomputed else self._closed)[window] = rows


def _cover(window: Bounds, met: Sequence[Bounds]) -> Bounds:
    return min([window[0], *(start for start, _ in met)]), max([window[1], *(end for _, end in met)])

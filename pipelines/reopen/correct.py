"""Inside a task: stretches of keys computed again, held against what was published, and the panes that correct it.

A correction takes back every pane that stands in its stretch, then puts out the new one as a late pane:
what a late firing would have given. A stretch that reaches into an open session changes the state instead.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition.event_columns import LAST_TIME
from tidegate.pipelines.epoch.job import ShardJob
from tidegate.pipelines.epoch.shard import run_operator
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.reopen.stretches import END, START
from tidegate.pipelines.tables import results, state
from tidegate.windowing.keys import window_identity
from tidegate.windowing.panes import EmittedPane, Timing
from tidegate.windowing.state.rows import StateRow
from tidegate.windowing.time import MIN_TIMESTAMP, Millis, from_millis, show_millis, to_millis
from tidegate.windowing.timestamps import epoch_millis
from tidegate.windowing.windows import TimeWindow

Row = dict[str, Any]

TOLERANCE = 1e-9
"""How far two doubles may lie apart, relatively, and still be one result."""


@dataclass
class _Stretch:
    """A stretch of a key, or the part of it that one window takes: what stands there, and what should."""

    key: Any
    start: Millis
    end: Millis
    standing: list[Row] = field(default_factory=list)
    made: list[Row] = field(default_factory=list)
    open_before: list[StateRow] = field(default_factory=list)
    open_now: list[StateRow] = field(default_factory=list)


@dataclass(frozen=True)
class Corrections:
    """What a shard has to put out.

    Args:
        results: rows of table results.
        state: all state rows of the shard where they changed, else None.
        fired: panes among the results.
        withdrawn: panes taken back.
    """

    results: pa.Table
    state: pa.Table | None
    fired: int
    withdrawn: int


def correct(
    job: ShardJob,
    events: pa.Table,
    rows: pa.Table,
    wanted: pa.Table,
    standing: pa.Table,
    margin: Millis = 0,
) -> Corrections:
    """Compute the stretches of a shard again.

    Args:
        job: what every task of the epoch knows; its order is that of events, up to the watermark of the snapshot.
        events: every row that was read and lies in one of the stretches.
        rows: the shard's state rows.
        wanted: the stretches: of windows that merge, spans that hold whole sessions; else the windows.
        standing: published panes in these stretches that were not withdrawn.
        margin: how far a session may reach beyond its stretch: no other stretch of its key lies as near.

    Raises:
        ReachesBeyond: a session reaches further, so it may be one with what lies there.
    """
    stretches = _Stretches(job, wanted, margin)
    for row in standing.to_pylist():
        stretches.at(row).standing.append(row)
    again = run_operator(job, events, rows.slice(0, 0))
    for row in again.results().to_pylist():
        if (stretch := stretches.find(row)) is not None:
            stretch.made.append(row)
    now = again.state().drop_columns([state.MANIFEST.name])
    kept: list[StateRow] = []
    if stretches.may_hold(rows) or stretches.may_hold(now):
        for known in job.state.from_table(rows):
            stretch = stretches.of_state(known)
            (kept if stretch is None else stretch.open_before).append(known)
        for known in job.state.from_table(now):
            if (stretch := stretches.of_state(known)) is not None:
                stretch.open_now.append(known)
    out: list[Row] = []
    changed = False
    for part in (part for stretch in stretches for part in _parts(stretch)):
        if _is_right(job, part):
            kept += part.open_before
            continue
        out += _corrected(job, part)
        kept += part.open_now
        changed |= bool(part.open_before or part.open_now)
    table = None
    if changed:
        table = state.to_delta_rows(job.state.to_table(kept, job.max_parallelism), job.schemas[state.NAME])
    withdrawn = sum(row["op"] == "-" for row in out)
    made = pa.Table.from_pylist(out, schema=job.schemas[results.NAME])
    return Corrections(made, table, len(out) - withdrawn, withdrawn)


class ReachesBeyond(TidegateError):
    """A session is longer than the stretch that was to hold it.

    Args:
        by: milliseconds.
    """

    def __init__(self, message: str, by: Millis) -> None:
        super().__init__(message)
        self.by = by


class _Stretches:
    """The stretches of a shard, found by key and time."""

    def __init__(self, job: ShardJob, wanted: pa.Table, margin: Millis = 0) -> None:
        self.merging = job.order is not None and job.order.lag > 1
        self._job = job
        self._margin = margin
        self._of: dict[Any, list[_Stretch]] = defaultdict(list)
        names = [*job.key.names, START, END]
        for row in wanted.select(names).sort_by([(START, "ascending")]).to_pylist():
            key = job.key.key_of([row[name] for name in job.key.names])
            self._of[key].append(_Stretch(key, row[START], row[END]))
        self._exact = {(own.key, own.start, own.end): own for own in self}

    def __iter__(self) -> Iterator[_Stretch]:
        return (stretch for own in self._of.values() for stretch in own)

    def may_hold(self, rows: pa.Table) -> bool:
        """Whether a window among state rows may lie in a stretch; of windows that don't merge hardly any does."""
        starts, ends = epoch_millis(rows["window_start"]), epoch_millis(rows["window_end"])
        first = min((own.start for own in self), default=0)
        last = max((own.end for own in self), default=0)
        return self.merging or bool(
            pc.any(pc.and_(pc.less(starts, last), pc.greater(ends, first)), min_count=0).as_py()
        )

    def find(self, row: Row) -> _Stretch | None:
        """The stretch of a result row; None where it is a window beside those that are wanted."""
        key = self._job.key.key_of([row[name] for name in self._job.key.names])
        return self._within(key, to_millis(row["window_start"]), to_millis(row["window_end"]))

    def at(self, row: Row) -> _Stretch:
        """The stretch of a result row that must have one."""
        found = self.find(row)
        assert found is not None, row
        return found

    def of_state(self, row: StateRow) -> _Stretch | None:
        """The stretch of a state row, if its window lies in one."""
        window = row.window
        return self._within(row.key, *window) if isinstance(window, TimeWindow) else None

    def _within(self, key: Any, start: Millis, end: Millis) -> _Stretch | None:
        if not self.merging:
            return self._exact.get((key, start, end))
        own = self._of.get(key, [])
        place = bisect_right(own, start, key=lambda stretch: stretch.start) - 1
        if place < 0 or start >= own[place].end:
            return None
        if end > own[place].end + self._margin:
            raise ReachesBeyond(
                f"key {key!r}: the source has a session from {show_millis(start)} to {show_millis(end)} that reaches "
                f"beyond all windows and late rows that are known, which end at {show_millis(own[place].end)}. Nothing "
                "was committed",
                end - own[place].end,
            )
        return own[place]


def _parts(stretch: _Stretch) -> Iterator[_Stretch]:
    """A stretch window by window: each with what stood where it is; and apart what has no window any more.

    While the code is the same a stretch is one session. After a shorter gap it may be several.
    """
    windows = {(to_millis(row["window_start"]), to_millis(row["window_end"])) for row in stretch.made}
    windows |= {(_window(row).start, _window(row).end) for row in stretch.open_now}
    parts = [_Stretch(stretch.key, *window) for window in sorted(windows)]

    def part_of(start: Millis, end: Millis) -> _Stretch:
        for part in parts:
            if start <= part.end and part.start <= end:
                return part
        parts.append(_Stretch(stretch.key, start, end))
        return parts[-1]

    for row in stretch.made:
        part_of(*_bounds(row)).made.append(row)
    for known in stretch.open_now:
        part_of(*_window(known)).open_now.append(known)
    for row in _in_order(stretch.standing):
        part_of(*_bounds(row)).standing.append(row)
    for known in stretch.open_before:
        part_of(*_window(known)).open_before.append(known)
    yield from parts


def _bounds(row: Row) -> tuple[Millis, Millis]:
    return to_millis(row["window_start"]), to_millis(row["window_end"])


def _window(row: StateRow) -> TimeWindow:
    assert isinstance(row.window, TimeWindow), row
    return row.window


def _is_right(job: ShardJob, part: _Stretch) -> bool:
    """Whether what stands is what should, in the state as well."""
    if not _same(job, part.standing, part.made) or len(part.open_before) != len(part.open_now):
        return False
    pairs = zip(*(sorted(rows, key=_window) for rows in (part.open_before, part.open_now)), strict=True)
    return all(one.window == other.window and _equal(one.contents, other.contents) for one, other in pairs)


def _corrected(job: ShardJob, part: _Stretch) -> Iterator[Row]:
    """The rows that make what stands what it should be."""
    for row in _in_order(part.standing):
        yield {**row, "op": "-", **_of_epoch(job)}
    identity, pane = _goes_on_from(job, part)
    for row in part.made:
        changes: Row = {"pane": pane, "timing": Timing.LATE.value, **_of_epoch(job)}
        if identity is not None:
            changes["window_id"] = identity
        yield {**row, **changes}
    part.open_now = [_numbered(row, part, pane) for row in part.open_now]


def _goes_on_from(job: ShardJob, part: _Stretch) -> tuple[int | None, int]:
    """The window id that a corrected window keeps, None for its own, and the number of its pane."""
    hashed = job.key.hash_of(part.key)
    before = _fired_before(part)
    if before is not None and isinstance(before.state_window, TimeWindow):
        identity = window_identity(hashed, *before.state_window)
        return identity, max(_next_pane(part, identity), before.pane)
    if part.open_now:
        # What stays in the state is known by its own bounds: the id of a window that is gone does not tell them.
        return None, _next_pane(part, window_identity(hashed, *_window(part.open_now[0])))
    if part.standing:
        identity = _in_order(part.standing)[0]["window_id"]
        return identity, _next_pane(part, identity)
    return None, 0


def _next_pane(part: _Stretch, identity: int) -> int:
    return max((row["pane"] + 1 for row in part.standing if row["window_id"] == identity), default=0)


def _fired_before(part: _Stretch) -> StateRow | None:
    """Of the open sessions before, the first that had fired: its identity stays."""
    fired = [row for row in part.open_before if row.pane and isinstance(row.state_window, TimeWindow)]
    return min(fired, key=lambda row: tuple(row.state_window or ()), default=None)


def _numbered(row: StateRow, part: _Stretch, pane: int) -> StateRow:
    """An open window as it goes on: under the identity and with the pane numbers that it had."""
    before = _fired_before(part)
    identity = row.state_window if before is None else before.state_window
    assert identity is not None
    emitted = row.emitted and [EmittedPane(identity, one.window, pane, Timing.LATE, one.value) for one in row.emitted]
    return replace(row, state_window=identity, pane=pane + (row.pane > 0), emitted=emitted)


def _same(job: ShardJob, standing: Sequence[Row], made: Sequence[Row]) -> bool:
    """Whether what stands is what was made: the same windows with the same results."""
    names = [name for name in job.schemas[results.NAME].names if name not in results.RESERVED]
    names += ["window_start", "window_end"]
    if len(standing) != len(made):
        return False
    return all(
        _equal(one[name], other[name])
        for one, other in zip(_in_order(standing), _in_order(made), strict=True)
        for name in names
    )


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=TOLERANCE) or (math.isnan(one) and math.isnan(other))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[name], other[name]) for name in one)
    return bool(one == other)


def _in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["window_start"], row["window_end"], row["pane"]))


def _of_epoch(job: ShardJob) -> Row:
    """What a row of this epoch has, whatever it says."""
    watermark = job.steps[-1].watermark
    return {
        "timeline": job.timeline,
        "epoch": job.epoch,
        "watermark": from_millis(watermark) if MIN_TIMESTAMP < watermark < LAST_TIME else None,
        "emitted_at": from_millis(job.now),
        "stale": False,
    }

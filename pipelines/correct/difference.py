"""The job of a shard in an epoch that recomputes windows: spans are recomputed, and published panes are corrected.

A correction retracts every published pane in its span, then emits the new pane as late, as a late firing would have
done. For a span with an open session, it changes the state.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from time import perf_counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.correct.request import RecomputePlan, Work
from tidegate.pipelines.correct.spans import END, START
from tidegate.pipelines.definition import results, state
from tidegate.pipelines.definition.event_columns import COMMIT, LAST_TIME, TIME
from tidegate.pipelines.epoch.exchange import joined
from tidegate.pipelines.epoch.job import ShardJob
from tidegate.pipelines.epoch.operate import job_of
from tidegate.pipelines.epoch.plan import files_of
from tidegate.pipelines.epoch.shard import Receive, ShardOutcome, raise_named, run_operator
from tidegate.pipelines.ledger.tables.files import read_state, write_rows
from tidegate.pipelines.ledger.tables.keys import are_in, key_groups
from tidegate.windowing.columnar.slices import open_windows
from tidegate.windowing.keys import window_identity
from tidegate.windowing.operators.window.snapshot import without_slices
from tidegate.windowing.panes import EmittedPane, Timing
from tidegate.windowing.state.rows import WINDOW, StateRow
from tidegate.windowing.time import MIN_TIMESTAMP, Millis, from_millis, to_millis
from tidegate.windowing.timestamps import epoch_millis, in_schema
from tidegate.windowing.windows import TimeWindow

Row = dict[str, Any]

BEYOND = "beyond"
"""Counter of a shard that could not be corrected: the milliseconds by which a session reaches beyond its span."""

TOLERANCE = 1e-9
"""Relative difference up to which two doubles count as the same result."""


@dataclass(frozen=True)
class RecomputeJob:
    """The input, except events, of every task of an epoch that recomputes windows. It is sent to the executors.

    `files` are the state files of each shard that has affected spans.
    """

    shards: ShardJob
    files: dict[int, tuple[str, ...]]
    work: Work

    @classmethod
    def of(cls, plan: RecomputePlan) -> RecomputeJob:
        """Return the job of a plan."""
        epoch = plan.epoch
        assert epoch.head is not None
        groups = key_groups(plan.work.wanted, epoch.bound.key.names, epoch.bound.pipeline.max_parallelism)
        files = {
            number: files_of(epoch.head.files, shard)
            for number, shard in enumerate(epoch.shards)
            if any(shard.first <= group <= shard.last for group in groups.unique().to_pylist())
        }
        return cls(job_of(epoch), files, plan.work)

    def run(self, number: int, events: pa.Table) -> ShardOutcome:
        """Recompute the spans of one shard, and write the files with the corrections.

        The events are all rows in these spans that have been read from the source.
        """
        began = perf_counter()
        job, shard = self.shards, self.shards.shards[number]
        work, group, schema = self.work.of_shard(job, number), pc.field("key_group"), job.schemas[state.NAME]
        where = (group >= shard.first) & (group <= shard.last)
        files = self.files[number]
        rows = read_state(job.warehouse, job.paths[state.NAME], files, files, schema, where=where)
        # State rows are decoded to Python objects, so only those whose windows may change are passed.
        concerned = are_in(rows, work.wanted, job.key.names)
        corrected = _correct(job, events, rows.filter(concerned), work)
        if isinstance(corrected, Millis):
            return ShardOutcome(number, False, counters={BEYOND: corrected})
        panes, kept = corrected
        retracted = sum(row["op"] == "-" for row in panes)
        outcome = ShardOutcome(number, kept is not None)
        outcome.counters = {"fired_late": len(panes) - retracted, "retracted": retracted}
        tables = {results.NAME: pa.Table.from_pylist(panes, schema=job.schemas[results.NAME])}
        if kept is not None:
            rest, own = rows.filter(pc.invert(concerned)), job.state.to_table(kept, job.max_parallelism)
            whole = pa.concat_tables([in_schema(part, schema) for part in (rest, own)]).sort_by("key_group")
            tables[state.NAME] = whole
            outcome.rows = len(whole)
            outcome.counters["open_windows"] = len(open_windows(whole, job.key.names))
            outcome.next_event_time_timer = pc.min(pc.list_flatten(whole["event_time_timers"])).as_py()
        for table, out in tables.items():
            for file in write_rows(job.warehouse, job.paths[table], f"{table}-{job.epoch:06d}-{number:05d}", out):
                outcome.files[table] = file
        outcome.seconds = {"correct": perf_counter() - began}
        return outcome

    def report(self, marker: str, receive: Receive) -> pa.RecordBatch:
        """Run as a task for the shard whose number is given as text."""
        events = joined(list(receive()))
        return self.run(int(marker), pa.table({COMMIT: [], TIME: []}) if events is None else events).report()


@dataclass
class _Span:
    """A span of a key, or the part of it in one window: published and computed panes, old and new state."""

    key: Any
    start: Millis
    end: Millis
    published: list[Row] = field(default_factory=list)
    computed: list[Row] = field(default_factory=list)
    open_before: list[StateRow] = field(default_factory=list)
    open_now: list[StateRow] = field(default_factory=list)

    def contains(self, start: Millis, end: Millis) -> bool:
        """Return True if a window is within the bounds, so that its id can be kept.

        The id names the bounds of the window's first pane. A session that no longer contains these must not keep it,
        because another session may have exactly these bounds.
        """
        return self.start <= start and end <= self.end


def _correct(
    job: ShardJob, events: pa.Table, rows: pa.Table, work: Work
) -> tuple[list[Row], list[StateRow] | None] | Millis:
    """Recompute the spans of a shard, and return the corrections of what was published: two lists.

    They are the rows for table results; and all of the given state rows as they are afterwards, None if none changed.

    If a session reaches beyond its span by more than the margin, it may be connected to a session outside the span.
    Then return the milliseconds from the end of the span to the end of the session instead. The job computes in event
    order, up to the watermark of the snapshot.
    """
    spans = _Spans(job, work.wanted)
    for row in work.published.to_pylist():
        spans.at(row).published.append(row)
    nothing = rows.slice(0, 0)
    try:
        outcome = run_operator(job, events, nothing)
    except Exception as error:
        raise_named(job, events, nothing, error)
    for row in outcome.results().to_pylist():
        if (span := spans.find(row)) is not None:
            span.computed.append(row)
    now = state.operators(outcome.state())
    kept: list[StateRow] = []
    if spans.may_hold(rows) or spans.may_hold(now):
        for state_row in without_slices(job.state.from_table(rows), job.windows):
            span = spans.of_state(state_row)
            (kept if span is None else span.open_before).append(state_row)
        for state_row in without_slices(job.state.from_table(now), job.windows):
            if (span := spans.of_state(state_row)) is not None:
                span.open_now.append(state_row)
    if spans.beyond > work.margin:
        return spans.beyond
    out: list[Row] = []
    changed = False
    for span in spans:
        numbers = _Numbers.of(job.key.hash_of(span.key), span.published)
        for part in _parts(span):
            if _is_right(job, part):
                kept += part.open_before
                continue
            out += _corrected(job, part, numbers)
            kept += part.open_now
            changed |= bool(part.open_before or part.open_now)
    return out, kept if changed else None


class _Spans:
    """The affected spans of a shard, indexed by key and time.

    `beyond` is the largest number of milliseconds by which a window found for a span has ended after it.
    """

    def __init__(self, job: ShardJob, wanted: pa.Table) -> None:
        self.merging = job.order is not None and job.order.lag > 1
        self._job = job
        self.beyond: Millis = 0
        self._of: dict[Any, list[_Span]] = defaultdict(list)
        names = [*job.key.names, START, END]
        for row in wanted.select(names).sort_by([(START, "ascending")]).to_pylist():
            key = job.key.key_of([row[name] for name in job.key.names])
            self._of[key].append(_Span(key, row[START], row[END]))
        self._exact = {(span.key, span.start, span.end): span for span in self}

    def __iter__(self) -> Iterator[_Span]:
        return (span for of_key in self._of.values() for span in of_key)

    def may_hold(self, rows: pa.Table) -> bool:
        """Return True if a window among state rows may be in a span.

        Windows that don't merge rarely are, so this avoids decoding the state rows.
        """
        starts, ends = epoch_millis(rows["window_start"]), epoch_millis(rows["window_end"])
        first = min((span.start for span in self), default=0)
        last = max((span.end for span in self), default=0)
        return self.merging or bool(
            pc.any(pc.and_(pc.less(starts, last), pc.greater(ends, first)), min_count=0).as_py()
        )

    def find(self, row: Row) -> _Span | None:
        """Return the span of a result row, or None if its window is not wanted."""
        return self._within(self._job.key.key_of([row[name] for name in self._job.key.names]), *_bounds(row))

    def at(self, row: Row) -> _Span:
        """Return the span of a result row that must have one."""
        span = self.find(row)
        assert span is not None, row
        return span

    def of_state(self, row: StateRow) -> _Span | None:
        """Return the span of a state row, or None if its window is in no span."""
        window = row.window
        return self._within(row.key, *window) if isinstance(window, TimeWindow) else None

    def _within(self, key: Any, start: Millis, end: Millis) -> _Span | None:
        if not self.merging:
            return self._exact.get((key, start, end))
        spans = self._of.get(key, [])
        index = bisect_right(spans, start, key=lambda span: span.start) - 1
        if index < 0 or start >= (span := spans[index]).end:
            return None
        self.beyond = max(self.beyond, end - span.end)
        return span


def _parts(span: _Span) -> Iterator[_Span]:
    """Yield the parts of a span: one for each computed window, and one for published windows that were not computed.

    A span is one session, or several if the code's gap is now shorter.
    """
    bounds = {_bounds(row) for row in span.computed}
    bounds |= {(_window(row).start, _window(row).end) for row in span.open_now}
    parts = [_Span(span.key, *window) for window in sorted(bounds)]

    def part_of(start: Millis, end: Millis) -> _Span:
        for part in parts:
            if start <= part.end and part.start <= end:
                return part
        parts.append(_Span(span.key, start, end))
        return parts[-1]

    for row in span.computed:
        part_of(*_bounds(row)).computed.append(row)
    for state_row in span.open_now:
        part_of(*_window(state_row)).open_now.append(state_row)
    for row in _in_order(span.published):
        part_of(*_bounds(row)).published.append(row)
    for state_row in span.open_before:
        part_of(*_window(state_row)).open_before.append(state_row)
    yield from parts


def _bounds(row: Row) -> tuple[Millis, Millis]:
    return to_millis(row["window_start"]), to_millis(row["window_end"])


def _window(row: StateRow) -> TimeWindow:
    assert isinstance(row.window, TimeWindow), row
    return row.window


def _is_right(job: ShardJob, part: _Span) -> bool:
    """Return True if the published panes and the old state of a part equal the computed ones."""
    sides = (part.open_before, part.open_now)
    if not _same(job, part.published, part.computed) or len(part.open_before) != len(part.open_now):
        return False
    pairs = zip(*(sorted(rows, key=attrgetter("window", "namespace")) for rows in sides), strict=True)
    return all(was.window == now.window and are_equal(was.contents, now.contents) for was, now in pairs)


@dataclass(frozen=True)
class _Numbers:
    """Window ids of a key, and the newest pane of each window that may be retracted, by window id.

    A new pane of the same epoch must be newer than the retraction. The pane of a window that an earlier epoch retracted
    has number 0 again.
    """

    hashed: int
    newest: Mapping[int, int]

    @classmethod
    def of(cls, hashed: int, published: Iterable[Row]) -> _Numbers:
        """Return the numbers of a key, given its hash and the panes in one of its spans."""
        newest: dict[int, int] = {}
        for row in published:
            newest[row["window_id"]] = max(row["pane"], newest.get(row["window_id"], -1))
        return cls(hashed, newest)

    def id_of(self, row: StateRow) -> int:
        """Return the id of the window of a state row."""
        window = row.state_window if isinstance(row.state_window, TimeWindow) else _window(row)
        return window_identity(self.hashed, *window)

    def next_pane(self, identity: int) -> int:
        """Return the number of the next pane of a window."""
        return self.newest.get(identity, -1) + 1


def _corrected(job: ShardJob, part: _Span, numbers: _Numbers) -> Iterator[Row]:
    """Yield the retractions and the new panes of a part, and set the identity and pane numbers of its open windows."""
    for row in _in_order(part.published):
        yield {**row, "op": "-", **_of_epoch(job)}
    identity, pane = _continued_window(part, numbers)
    for row in part.computed:
        changes: Row = {"pane": pane, "timing": Timing.LATE.value, **_of_epoch(job)}
        if identity is not None:
            changes["window_id"] = identity
        yield {**row, **changes}
    part.open_now = [_numbered(row, part, pane) for row in part.open_now]


def _continued_window(part: _Span, numbers: _Numbers) -> tuple[int | None, int]:
    """Return the id that a corrected window keeps, or None for a new one, and the number of its next pane."""
    before = _fired_before(part)
    if before is not None:
        identity = numbers.id_of(before)
        return identity, max(numbers.next_pane(identity), before.pane)
    if part.open_now:
        # An open window in the state is identified by its own bounds, not by the id of a removed window.
        return None, numbers.next_pane(window_identity(numbers.hashed, *_window(part.open_now[0])))
    for row in _in_order(part.published):
        if part.contains(*_bounds(row)):
            return row["window_id"], numbers.next_pane(row["window_id"])
    return None, numbers.next_pane(part.computed[0]["window_id"]) if part.computed else 0


def _fired_before(part: _Span) -> StateRow | None:
    """Return the first of the old open sessions that have fired and are within a part, or None. Its id is kept."""
    fired = [
        row
        for row in part.open_before
        if row.pane and isinstance(row.state_window, TimeWindow) and part.contains(*_window(row))
    ]
    return min(fired, key=lambda row: tuple(row.state_window or ()), default=None)


def _numbered(row: StateRow, part: _Span, pane: int) -> StateRow:
    """Return the state row of an open window with its earlier identity and pane numbers."""
    if row.namespace != WINDOW:
        return row  # A discarding window that has emitted its contents has no identity.
    before = _fired_before(part)
    identity = row.state_window if before is None else before.state_window
    assert identity is not None
    emitted = row.emitted and [
        EmittedPane(identity, shown.window, pane, Timing.LATE, shown.value) for shown in row.emitted
    ]
    return replace(row, state_window=identity, pane=pane + (row.pane > 0), emitted=emitted)


def _same(job: ShardJob, published: Sequence[Row], computed: Sequence[Row]) -> bool:
    names = [name for name in job.schemas[results.NAME].names if name not in results.RESERVED]
    names += ["window_start", "window_end"]
    if len(published) != len(computed):
        return False
    return all(
        are_equal(before[name], now[name])
        for before, now in zip(_in_order(published), _in_order(computed), strict=True)
        for name in names
    )


def are_equal(left: Any, right: Any) -> bool:
    """Return True if two values of results are the same, up to the tolerance."""
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=TOLERANCE) or (math.isnan(left) and math.isnan(right))
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(are_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(are_equal(left[name], right[name]) for name in left)
    return bool(left == right)


def _in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (row["window_start"], row["window_end"], row["pane"]))


def _of_epoch(job: ShardJob) -> Row:
    watermark = job.steps[-1].watermark
    return {
        "timeline": job.timeline,
        "epoch": job.epoch,
        "watermark": from_millis(watermark) if MIN_TIMESTAMP < watermark < LAST_TIME else None,
        "emitted_at": from_millis(job.now),
        "stale": False,
    }

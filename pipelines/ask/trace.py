"""The trace of a key: its rows, windows, panes and late rows through the whole history. Starts no JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tidegate.extras import require
from tidegate.pipelines.ask.faults import differing
from tidegate.pipelines.ask.history import History, Rows, late_rows_of, read_history
from tidegate.pipelines.ask.lives import BASE, EMITTING, PART, PLACE, STEP, TIME, Event, Life
from tidegate.pipelines.definition import late, results
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.names import count_of
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.snapshots.head import read_snapshot, state_rows
from tidegate.pipelines.ledger.tables.keys import are_in, key_columns, key_of_texts, named_key, rows_of_key
from tidegate.pipelines.observe.report.answer import Facts
from tidegate.pipelines.observe.report.columns import INSTANT, NUMBER, OBJECT, TEXT, YES_NO, Column, Columns, Table
from tidegate.pipelines.observe.report.values import cell
from tidegate.pipelines.storage.artifacts import page_name
from tidegate.pipelines.storage.warehouse import arrow_schema, read_table
from tidegate.windowing.aggregates.bound import AggregateColumns
from tidegate.windowing.aggregates.vectorised import Bools
from tidegate.windowing.lateness import cleanup_time
from tidegate.windowing.time import MIN_TIMESTAMP, Millis, show_millis, to_millis
from tidegate.windowing.timestamps import epoch_millis

_ARRIVING = ("in", "late", "no window")
_RANGES = 12
"""Largest number of ranges of row numbers in a cell."""
LAST = 100
"""Number of the newest lines of a table that are shown by default, and largest number of events in a picture."""


@dataclass(frozen=True, slots=True)
class Traced:
    """A row of the source as it arrived. Times are int64 epoch milliseconds.

    Args:
        row: its number in the trace.
        version: version of the source that it was read from.
        file: its file.
        place: its position in the file.
        epoch: the epoch that read it.
        time: its event time.
        watermark: the watermark that decided whether it was late.
        late: True if no window accepted it.
        reopened: the epoch that later added it to its window; None if none did.
        value: the columns that the pipeline reads.
    """

    row: int
    version: int | None
    file: str
    place: int
    epoch: int
    time: Millis
    watermark: Millis
    late: bool
    reopened: int | None
    value: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Happened:
    """An event in the life of a key's windows. Times are int64 epoch milliseconds.

    Args:
        what: `in`, `late`, `no window`, `opened`, `merged`, `fired`, `fired late`, `reopened` or `cleaned`.
        epoch: the epoch.
        kind: its kind.
        version: the version of the source that was read at that point; None if only time advanced.
        clock: processing time.
        watermark: the watermark at that point.
        start: start of the window.
        end: its end, exclusive.
        rows: numbers of the row that arrived, or of the rows of a pane.
        merged: bounds of the windows that merged into this one.
        timers: times of the set timers: the end of the window, and its cleanup.
        why: the reason, as text.
    """

    what: str
    epoch: int
    kind: str
    version: int | None
    clock: Millis
    watermark: Millis
    start: Millis | None
    end: Millis | None
    rows: tuple[int, ...]
    merged: tuple[tuple[Millis, Millis], ...]
    timers: tuple[Millis, ...]
    why: str


@dataclass(frozen=True, slots=True)
class TracedPane:
    """A published pane.

    Args:
        pane: the row of table `results`.
        rows: numbers of the rows behind its value; None if the plain implementation does not cover this pane, such as
            an early one.
    """

    pane: dict[str, Any]
    rows: tuple[int, ...] | None


_OF_PANE = {"epoch": NUMBER, "timing": TEXT, "op": TEXT}


def _of_pane(name: str) -> Callable[[TracedPane], object]:
    return lambda traced: traced.pane[name]


def _result(hidden: set[str]) -> Callable[[TracedPane], object]:
    return lambda traced: cell({name: value for name, value in traced.pane.items() if name not in hidden})


@dataclass(frozen=True, slots=True)
class Trace(Facts):
    """The history of a key.

    Args:
        key: the key, by column.
        epoch: the newest epoch.
        elements: its rows, as they arrived.
        events: what happened to its windows, in order.
        panes: its published panes, with their rows.
        begins: the epoch at which the history begins; None if it begins with the first row. For earlier rows, the
            arrival is unknown, and panes that were replaced before it are not explained.
        limit: number of the newest lines of each table that are shown; 0 for all.
        remark: a note if there is no history; otherwise None.
        file: path or URI of the page; None if none was written.
    """

    pipeline: str
    key: dict[str, Any]
    epoch: int
    elements: tuple[Traced, ...]
    events: tuple[Happened, ...]
    panes: tuple[TracedPane, ...]
    remark: str | None = None
    file: str | None = None
    begins: int | None = None
    limit: int = LAST

    facts: ClassVar[Columns] = (
        Column("pipeline", TEXT),
        Column("key", OBJECT),
        Column("epoch", NUMBER),
        Column("begins", NUMBER),
        Column("remark", TEXT),
        Column("file", TEXT),
    )
    holds: ClassVar[Mapping[str, Columns]] = {
        "events": (
            Column("epoch", NUMBER),
            Column("version", NUMBER),
            Column("watermark", INSTANT),
            Column("what", TEXT),
            Column("start", INSTANT, "window", text=lambda event: _span(event.start, event.end)),
            Column("rows", OBJECT, text=lambda event: _numbers(event.rows)),
            Column("why", TEXT),
            Column("kind", TEXT, ""),
            Column("clock", INSTANT, ""),
            Column("end", INSTANT, ""),
            Column("merged", OBJECT, ""),
            Column("timers", OBJECT, ""),
        ),
        "elements": (
            Column("row", NUMBER),
            Column("time", INSTANT, "event time"),
            Column("version", NUMBER),
            Column("file", TEXT),
            Column("place", NUMBER),
            Column("value", OBJECT, text=lambda element: cell(element.value)),
            Column("epoch", NUMBER, ""),
            Column("watermark", INSTANT, ""),
            Column("late", YES_NO, ""),
            Column("reopened", NUMBER, ""),
        ),
        "panes": (
            *(Column(name, unit, value=_of_pane(name)) for name, unit in _OF_PANE.items()),
            Column("number", NUMBER, "pane", value=_of_pane("pane")),
            Column("rows", OBJECT, text=lambda traced: "-" if traced.rows is None else _numbers(traced.rows)),
            Column("pane", OBJECT, "result"),
        ),
    }

    def tables(self) -> Iterator[Table]:
        """Yield the tables. Of a long history, only the newest lines of each table are shown."""
        named = ", ".join(filter(None, (self.pipeline, named_key(self.key))))
        titles = {
            "events": f"{named}: what happened up to epoch {self.epoch}",
            "elements": "rows",
            "panes": "panes",
        }
        for name, columns in self.holds.items():
            rows, title = getattr(self, name), titles[name]
            result = _result({*results.RESERVED, *self.key})
            columns = tuple(replace(each, text=result) if each.head == "result" else each for each in columns)
            if 0 < self.limit < len(rows):
                title = f"{title}, the last {self.limit} of {len(rows)}"
            most, is_shown = self.limit or None, self.remark is None
            yield Table(name, columns, rows, title, most, is_newest=True, is_shown=is_shown)

    def lines(self) -> Iterator[str]:
        if self.remark is not None:
            yield self.remark
        if self.begins is not None:
            yield (
                f"the history begins with epoch {self.begins}: it corrected changed rows of the source, or older "
                f"files of the source no longer exist"
            )

    def remarks(self) -> Iterator[str]:
        if 0 < self.limit < max(map(len, (self.events, self.elements, self.panes))):
            yield "`--limit 0` shows all lines"
        if self.file is not None:
            yield f"page: {self.file}"


def _numbers(rows: Sequence[int]) -> str:
    """Return numbers as ascending ranges, such as `0-5 7`; if there are many ranges, the first ones and the count."""
    ranges = []
    for _, run in groupby(enumerate(sorted(rows)), lambda numbered: numbered[1] - numbered[0]):
        numbers = [number for _, number in run]
        ranges.append(f"{numbers[0]}-{numbers[-1]}" if len(numbers) > 1 else str(numbers[0]))
    return " ".join(ranges) if len(ranges) <= _RANGES else f"{' '.join(ranges[:_RANGES])} ... ({len(rows)} rows)"


def _span(start: Millis | None, end: Millis | None) -> str:
    return "" if start is None else f"{show_millis(start)} to {show_millis(end)}"


def trace(
    config: Config,
    pipeline: str,
    key: tuple[str, ...],
    window: Millis | None,
    page: bool,
    to: Path | None,
    limit: int | None = LAST,
) -> Trace:
    traced = replace(_trace(config, pipeline, key, window), limit=limit or 0)
    if traced.remark is not None or not (page or to is not None):
        return traced
    require("the page of a trace", "jinja2", "matplotlib")
    from tidegate.pipelines.observe.report.page import write_answer
    from tidegate.pipelines.observe.report.plots import time_line

    digest = blake2b(repr((key, window)).encode(), digest_size=8).hexdigest()
    meaning = "Blue: on time; red: late; red line: watermark; grey: windows; triangles: panes"
    if (count := len(traced.events)) > LAST:
        meaning += f"; the last {LAST} of {count} events"
    plots = {meaning: time_line(traced.elements, traced.events, max(0, count - LAST))}
    name = page_name(pipeline, f"trace-{digest}.html")
    title = f"{pipeline}: trace of {' / '.join(key) if key else 'all rows'}"
    file = write_answer(config, name, traced, title, plots, to)
    return replace(traced, file=file)


def _trace(config: Config, pipeline: str, key: tuple[str, ...], window: Millis | None) -> Trace:
    history = read_history(config, pipeline)
    names, schema = history.manifest.schemas.key, history.source.bound.key
    if len(key) != len(names):
        raise UsageError(f"KEY: the key has {count_of(len(names), 'column')}, {', '.join(names)}")
    value = key_of_texts(schema, key) if names else ()
    named = {name: part.as_py() for name, part in zip(schema.names, value, strict=True)}
    panes, late_rows = _published(history, key), _late(history, key)
    forgotten = _forgotten(history, key, panes, late_rows)
    if forgotten is None:
        remark = f"{pipeline}: the key was forgotten, so it has no trace"
        return Trace(pipeline, named, history.manifest.epoch, (), (), (), remark)
    columns = {
        name: pa.array([part.as_py()], kind) for name, part, kind in zip(names, value, schema.types, strict=True)
    }
    wanted = pa.table(columns)

    def of_key(table: pa.Table) -> Bools:
        if not names:
            return np.ones(len(table), np.bool_)
        return np.asarray(are_in(table, wanted, schema.names).to_numpy(zero_copy_only=False))

    history, rows = history.read(of_key, after=forgotten)
    life = history.lives(rows, late_rows_of(late_rows), panes.to_pylist())
    whole = Trace(
        pipeline,
        named,
        history.manifest.epoch,
        _elements(history, rows, life),
        tuple(_happened(history, event) for event in life.events),
        _with_rows(panes, life.events, history, rows),
        None if rows.rows else f"{pipeline}: the source has no row of this key that the pipeline has read",
        begins=history.begins,
    )
    return whole if window is None else _of_window(whole, window)


def _published(history: History, key: tuple[str, ...]) -> pa.Table:
    rows = read_table(
        history.tables.warehouse, history.tables.open(results.NAME), where=results.current(history.manifest.epoch)
    )
    rows = rows_of_key(rows, history.source.bound.key.names, key)
    return rows.sort_by([("epoch", "ascending"), ("pane", "ascending"), ("op", "ascending")])


def _late(history: History, key: tuple[str, ...]) -> pa.Table:
    handle = history.tables.open(late.NAME)
    bound = history.source.bound
    names = key_columns(late.NAME, arrow_schema(handle), bound.key.names, bound.pipeline.derived_key)
    rows = read_table(history.tables.warehouse, handle, where=results.current(history.manifest.epoch))
    return rows_of_key(rows, names, key) if names or not bound.key.names else rows.slice(0, 0)


def _forgotten(history: History, key: tuple[str, ...], panes: pa.Table, late_rows: pa.Table) -> int | None:
    """Return the epoch after which a key's rows may be shown (0, or that of its `forget`), or None if none may be."""
    if not key:
        return 0
    newest = history.forgotten(key_of_texts(history.source.bound.key, key)) or 0
    if not any(step.kind == "forget" for step in history.steps) and not newest:
        return 0
    head = read_snapshot(history.tables)
    held = (
        0
        if head is None
        else len(rows_of_key(state_rows(history.tables.warehouse, head), history.source.bound.key.names, key))
    )
    # The mark is removed with its snapshot, but if tables still have rows of the key, it was not forgotten.
    return newest if len(panes) or len(late_rows) or held else None


def _elements(history: History, rows: Rows, life: Life) -> tuple[Traced, ...]:
    judged = {event.rows[0]: event for event in life.events if event.what in _ARRIVING}
    hidden = {STEP, TIME, PART, PLACE}
    elements = []
    for number, row in enumerate(rows.rows):
        step, event = history.steps[row[STEP]], judged[number]
        elements.append(
            Traced(
                number,
                step.version,
                rows.parts[row[PART]].path,
                row[PLACE],
                step.epoch,
                row[TIME],
                event.watermark,
                event.what == "late",
                life.reopened_in.get(number),
                {name: value for name, value in row.items() if name not in hidden},
            )
        )
    return tuple(elements)


def _happened(history: History, event: Event) -> Happened:
    step, lateness = history.steps[event.step], history.windows.lateness
    timers: tuple[Millis, ...] = ()
    if event.end is not None and event.what in ("opened", "merged"):
        ends = event.end - 1, cleanup_time(event.end - 1, lateness)
        timers = tuple(sorted({time for time in ends if time > event.watermark}))
    return Happened(
        event.what,
        step.epoch,
        step.kind,
        step.version,
        step.clock,
        event.watermark,
        event.start,
        event.end,
        event.rows,
        event.merged,
        timers,
        _reason(event, step.kind, lateness, timers),
    )


def _reason(event: Event, kind: str, lateness: Millis, timers: tuple[Millis, ...]) -> str:
    watermark = show_millis(event.watermark)
    if kind == BASE:
        return "read before the history begins" if event.what in _ARRIVING else "up to where the history begins"
    if event.what == "late" and event.end is not None:
        return f"the watermark {watermark} had passed {show_millis(cleanup_time(event.end - 1, lateness))}"
    if event.what == "late":
        return "no window accepts it, and the watermark had passed its time"
    if event.what == "no window":
        return "its time is between two windows"
    if event.what == "in":
        return "on time" if event.end is None or event.end - 1 > event.watermark else "its window was still open"
    if event.what == "merged":
        return f"it touches {count_of(len(event.merged), 'window')}" + _set(timers)
    if event.what == "fired":
        return f"the watermark reached {watermark}"
    if event.what == "fired late":
        return "rows arrived within the allowed lateness"
    if event.what == "reopened":
        return "late rows were added"
    return "a row opened it" + _set(timers) if event.what == "opened" else "its state is no longer needed"


def _set(timers: tuple[Millis, ...]) -> str:
    return f"; timers at {', '.join(map(show_millis, timers))}" if timers else ""


def _with_rows(panes: pa.Table, events: list[Event], history: History, arrived: Rows) -> tuple[TracedPane, ...]:
    """Return panes with the rows behind them. Panes of a window are emitted in the order of the events.

    Of the panes up to the epoch at which the history begins, only the newest one of a window has its rows, if they give
    its result: a row may have missed a window that had closed, and the order of arrival is not known.
    """
    begins = history.begins
    emitted: dict[tuple[Millis | None, Millis | None], list[tuple[int, ...]]] = {}
    known: dict[tuple[Millis | None, Millis | None], tuple[int, ...]] = {}
    for event in events:
        if event.what in EMITTING and event.rows:
            if history.steps[event.step].kind == BASE:
                known[event.start, event.end] = event.rows
            else:
                emitted.setdefault((event.start, event.end), []).append(event.rows)
    starts, ends = (epoch_millis(panes[name]).to_pylist() for name in ("window_start", "window_end"))
    traced: list[TracedPane] = []
    for row, start, end in reversed([*zip(panes.to_pylist(), starts, ends, strict=True)]):
        rows: tuple[int, ...] | None = None
        if begins is not None and row["epoch"] <= begins:
            # The newest row of a window shows whether it is retracted.
            newest = known.pop((start, end), None)
            rows = newest if newest and row["op"] == "+" and _give(history, arrived, newest, row) else None
        elif row["op"] == "+" and row["timing"] != "early" and (left := emitted.get((start, end))):
            rows = left.pop()
        traced.append(TracedPane(row, rows))
    return tuple(reversed(traced))


def _give(history: History, arrived: Rows, numbers: Sequence[int], pane: dict[str, Any]) -> bool:
    """Return False if rows don't give the result of a pane; a result that older code didn't compute is null."""
    windows = history.windows
    if not isinstance(windows.aggregate, AggregateColumns) or windows.process is not None:
        return True
    found = {name: pane.get(name) for name in windows.aggregate.names}
    wrong = differing(history, history.result_of(arrived, numbers), found)
    return all(found[name] is None for name in wrong)


def _of_window(whole: Trace, start: Millis) -> Trace:
    """Return the part of a trace about windows that start at a time, and about windows that merged into them."""
    wanted = _with_merged(whole, start)
    if not wanted:
        near = _near(whole, start)
        remark = f"{whole.pipeline}: this key never had a window that starts at {show_millis(start)}{near}"
        return Trace(whole.pipeline, whole.key, whole.epoch, (), (), (), remark)
    rows = _rows_in(whole, wanted)

    def is_of_window(event: Happened) -> bool:
        return (event.start, event.end) in wanted or (event.what in _ARRIVING and event.rows[0] in rows)

    return Trace(
        whole.pipeline,
        whole.key,
        whole.epoch,
        tuple(element for element in whole.elements if element.row in rows),
        tuple(filter(is_of_window, whole.events)),
        tuple(
            traced
            for traced in whole.panes
            if (traced.rows is not None and set(traced.rows) <= rows) or _bounds_of(traced.pane) in wanted
        ),
        begins=whole.begins,
    )


def _with_merged(whole: Trace, start: Millis) -> set[tuple[Millis | None, Millis | None]]:
    """Return the bounds of the windows that start at a time, and of those that merged into them."""
    wanted: set[tuple[Millis | None, Millis | None]] = {
        (event.start, event.end) for event in whole.events if event.start == start and event.what != "late"
    }
    for event in reversed(whole.events):
        if (event.start, event.end) in wanted:
            wanted |= set(event.merged)
    return wanted


def _rows_in(whole: Trace, wanted: set[tuple[Millis | None, Millis | None]]) -> set[int]:
    """Return the numbers of the rows that arrived in windows, or were late for their time."""
    first, last = min(bounds[0] or 0 for bounds in wanted), max(bounds[1] or MIN_TIMESTAMP for bounds in wanted)
    # A row that joined a session has the bounds of its own window, which are within the session's.
    rows = {
        row
        for event in whole.events
        if event.start is not None and event.end is not None and first <= event.start and event.end <= last
        for row in event.rows
    }
    return rows | {element.row for element in whole.elements if element.late and first <= element.time < last}


def _near(whole: Trace, start: Millis) -> str:
    """Return a note about the windows around a time at which none starts: those that have it, or the nearest one."""
    bounds = {
        (event.start, event.end)
        for event in whole.events
        if event.start is not None and event.end is not None and event.what in ("opened", "merged", "fired")
    }
    if not bounds:
        return ""
    low, high = min(bounds, key=lambda each: (not each[0] <= start < each[1], abs(each[0] - start), -each[1]))
    relation = "has that time" if low <= start < high else "is the nearest"
    return f"; the window from {_span(low, high)} {relation}: --window {show_millis(low)}"


def _bounds_of(pane: dict[str, Any]) -> tuple[Millis | None, Millis | None]:
    return _millis_of(pane, "window_start"), _millis_of(pane, "window_end")


def _millis_of(pane: dict[str, Any], name: str) -> Millis | None:
    return None if pane[name] is None else to_millis(pane[name])

"""In which windows two pipelines differ, by how much, and why. Starts no JVM.

Rows of process functions and joins are compared as multisets: each row that only one side has is shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.correct.difference import are_equal
from tidegate.pipelines.definition import epochs, late, results
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.names import count_of
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.definition.row_sets import distinct, surplus
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.published import require_settled
from tidegate.pipelines.ledger.tables.keys import key_columns, text_of_value
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.answer import Facts
from tidegate.pipelines.observe.report.columns import COUNT, KEY, NUMBER, OBJECT, TEXT, VALUE, Column, Columns, Table
from tidegate.pipelines.observe.report.values import cell, cells_apart, rows_of, span
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.rendering import spelled
from tidegate.pipelines.storage.warehouse import arrow_schema, read_table
from tidegate.windowing.assigners import EventTimeSessionWindows
from tidegate.windowing.compute import Windows
from tidegate.windowing.time import Millis, from_millis, show_duration, show_watermark, to_millis

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DifferentWindow:
    """A window in which two pipelines differ, or a row of a function or join that only one of them has.

    Args:
        key: values of the key columns.
        window_start: start of the window, None for the global window; or event time of a row of a function or join.
        window_end: end of the window, exclusive; None for a row of a function or join.
        before: the result of the first pipeline; None if it has no such window.
        after: the result of the other pipeline; None if it has no such window.
        by: for each result column that is a number in both, the other pipeline's value minus the first's.
        late: late rows of the first pipeline in this window, minus those of the other; above 0, the other one accepted
            more rows.
        why: the reason, as text.
    """

    key: Row
    window_start: datetime | str | None
    window_end: datetime | str | None
    before: Row | None
    after: Row | None
    by: dict[str, float | Decimal]
    late: int
    why: str


@dataclass(frozen=True, slots=True)
class Comparison(Facts):
    """The current windows of two pipelines, compared since the newest epoch that both share.

    Args:
        other: name of the other pipeline.
        since: the newest epoch that both share, because one was restored from the other; 0 if they share none.
        settings: the time settings that differ, by name: the value of each pipeline, milliseconds, or None.
        equal: number of windows with the same results.
        changed: number of windows with different results.
        added: number of windows that only the other pipeline has.
        missing: number of windows that only the first pipeline has.
        read: for each table of the source, the versions that the two pipelines have read.
        watermarks: watermark of each pipeline, int64 epoch milliseconds.
        windows: the first windows that differ, by start and key.
        of_rows: True for a function or join, whose rows are compared instead of windows.
    """

    pipeline: str
    other: str
    since: int
    settings: dict[str, tuple[Millis | None, Millis | None]]
    equal: int
    changed: int
    added: int
    missing: int
    read: dict[str, tuple[int, int]]
    watermarks: tuple[Millis, Millis]
    windows: tuple[DifferentWindow, ...]
    of_rows: bool = False

    facts: ClassVar[Columns] = (
        Column("pipeline", TEXT),
        Column("other", TEXT),
        Column("since", NUMBER),
        Column("settings", OBJECT),
        Column("equal", COUNT),
        Column("changed", COUNT),
        Column("added", COUNT),
        Column("missing", COUNT),
        Column("read", OBJECT),
        Column("watermarks", OBJECT),
    )
    holds: ClassVar[Mapping[str, Columns]] = {
        "windows": (
            Column("key", KEY, is_spread=True),
            Column("window_start", VALUE, "window", text=lambda window: span(_bounds(window))),
            Column("window_end", VALUE, ""),
            Column("results", TEXT, value=lambda window: _changes(window), is_spread=True),
            Column("before", OBJECT, ""),
            Column("after", OBJECT, ""),
            Column("by", OBJECT, ""),
            Column("late", COUNT, ""),
            Column("why", TEXT),
        )
    }

    def tables(self) -> Iterator[Table]:
        total = self.changed + self.added + self.missing
        title = f"{_noun(self)} that differ ({len(self.windows)} of {total})"
        start = "event time" if self.of_rows else "window"
        columns = (replace(each, head=start) if each.name == "window_start" else each for each in self.holds["windows"])
        yield Table("windows", tuple(columns), self.windows, title, is_shown=bool(self.windows))

    def lines(self) -> Iterator[str]:
        total = self.changed + self.added + self.missing
        ours, theirs = (show_watermark(watermark) for watermark in self.watermarks)
        since = f" since epoch {self.since}, which both share" if self.since else ""
        yield (
            f"{self.other} differs from {self.pipeline} in {total} of {total + self.equal} {_noun(self)}{since}: "
            f"{self.changed} changed, {self.added} only in {self.other}, {self.missing} only in {self.pipeline}; "
            f"watermarks {theirs} and {ours}"
        )
        for name, values in self.settings.items():
            first, second = ("none" if value is None else show_duration(value) for value in values)
            yield f"{name} is {second} in {self.other}, and {first} in {self.pipeline}"
        for table, (read, read_by_other) in self.read.items():
            if read != read_by_other:
                behind = self.other if read_by_other < read else self.pipeline
                yield (
                    f"{self.pipeline} has read version {read} of {table}, and {self.other} version {read_by_other}: "
                    f"{spelled(Remedy(Act.CATCH_UP, behind))} makes them comparable"
                )


def compare(config: Config, pipeline: str, other: str, rows: int | None) -> Comparison:
    if pipeline == other:
        raise UsageError(f"compare: both pipelines are {pipeline!r}; give two names")
    values = [load_pipeline(config, name) for name in (pipeline, other)]
    tables = [PipelineTables.of(config, name) for name in (pipeline, other)]
    since = _shared_epoch(*tables)
    ours, theirs = (_Side.of(each, since) for each in tables)
    _check_comparable(ours, theirs)
    compared = _Compared(ours, theirs, since, _differing(*values))
    if not results.has_panes(ours.columns):
        return _compared_rows(compared, rows)
    by = [*ours.key, "window_start", "window_end"]
    columns = [name for name in ours.columns.names if name not in {*results.RESERVED, *ours.key}]
    names = [*by, *(name for name in columns if ours.shares(theirs, name))]
    before, after, equal = _differing_windows(ours, theirs, by, names)
    windows = [window for window in {**before, **after} if not _same(before.get(window), after.get(window), names)]
    equal += len({**before, **after}) - len(windows)
    windows.sort(key=lambda window: tuple(map(str, (*window[-2:], *window))))
    late_rows = [
        _late_by_key(side, value.derived_key, _merges(value))
        for side, value in zip((ours, theirs), values, strict=True)
    ]
    reasons = _Reasons(ours, theirs, *late_rows)
    shown = windows if rows is None else windows[:rows]
    return _comparison(
        compared,
        equal,
        (
            sum(window in before and window in after for window in windows),
            sum(window not in before for window in windows),
            sum(window not in after for window in windows),
        ),
        [_different(window, before.get(window), after.get(window), ours.key, by[-2:], reasons) for window in shown],
    )


def _differing_windows(
    ours: _Side, theirs: _Side, by: Sequence[str], names: Sequence[str]
) -> tuple[dict[tuple[Any, ...], Row], dict[tuple[Any, ...], Row], int]:
    """Return the windows of each side that the other one does not have in the same way, and the number of the others.

    `by` names the columns that identify a window, and `names` those that are compared.
    """
    spans = distinct(pa.concat_tables([ours.touched, theirs.touched.cast(ours.touched.schema)]))
    current_panes = [side.current_panes(spans) for side in (ours, theirs)]
    differ = surplus(current_panes[0], current_panes[1], names)
    before, after = (
        {_window(row, by): row for row in rows_of(each.filter(pa.array(one)).select(names))}
        for each, one in zip(current_panes, differ, strict=True)
    )
    return before, after, int(len(current_panes[0]) - differ[0].sum())


def _shared_epoch(tables: PipelineTables, other: PipelineTables) -> int:
    """Return the newest epoch that both pipelines have from the same run, because one was restored from the other."""
    rows = [
        read_table(each.warehouse, each.newest(epochs.NAME), ["epoch", "run_id"]).to_pylist()
        for each in (tables, other)
    ]
    runs = [{(row["epoch"], row["run_id"]) for row in each} for each in rows]
    return max((epoch for epoch, _ in runs[0] & runs[1]), default=0)


def _check_comparable(ours: _Side, theirs: _Side) -> None:
    first, second = ours.manifest.pipeline, theirs.manifest.pipeline
    if [ours.columns.field(name) for name in ours.key] != [theirs.columns.field(name) for name in theirs.key]:
        raise Refused(
            f"{first} has the key ({ours.shown_key}), and {second} ({theirs.shown_key}): only pipelines "
            "with the same key columns can be compared"
        )
    if results.has_panes(ours.columns) != results.has_panes(theirs.columns):
        raise Refused(f"one of {first} and {second} has windows and the other has not: compare pipelines of one kind")


def _merges(value: Pipeline) -> bool:
    return isinstance(value.compute, Windows) and value.compute.assigner.merges


def _settings(value: Pipeline) -> dict[str, Millis | None]:
    """Return the time settings of a pipeline that a user may want to compare, milliseconds."""
    windows = value.compute if isinstance(value.compute, Windows) else None
    sessions = windows is not None and type(windows.assigner) is EventTimeSessionWindows
    return {
        "allowed_lateness": None if windows is None or not windows.assigner.is_event_time else windows.lateness,
        "gap": windows.assigner.gap_of_every_element if windows is not None and sessions else None,
        "out_of_orderness": value.watermark.out_of_orderness,
        "idleness": value.watermark.idle_timeout,
        "max_ahead": value.max_ahead_millis,
    }


def _differing(value: Pipeline, other: Pipeline) -> dict[str, tuple[Millis | None, Millis | None]]:
    ours, theirs = _settings(value), _settings(other)
    return {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]}


@dataclass(frozen=True, slots=True)
class _Compared:
    """The two pipelines, the newest epoch that they share, and the settings that differ."""

    ours: _Side
    theirs: _Side
    since: int
    settings: dict[str, tuple[Millis | None, Millis | None]]


def _compared_rows(compared: _Compared, rows: int | None) -> Comparison:
    """Compare the rows that functions or joins have emitted since the shared epoch."""
    ours, theirs = compared.ours, compared.theirs
    emitted = [side.emitted for side in (ours, theirs)]
    made = results.ELEMENT_RESERVED - {"event_time", "output"}
    names = [name for name in ours.columns.names if name not in made and ours.shares(theirs, name)]
    differ = surplus(emitted[0], emitted[1], names)
    before, after = (
        rows_of(each.filter(pa.array(one)).select(names)) for each, one in zip(emitted, differ, strict=True)
    )
    times, reasons = ["event_time"], _Reasons(ours, theirs, {}, {})
    found = [(row, None) for row in before] + [(None, row) for row in after]
    found.sort(key=lambda each: tuple(str((each[0] or each[1] or {}).get(name)) for name in ("event_time", *names)))
    shown = [
        _different(
            tuple((was or now or {})[name] for name in [*ours.key, *times, *times]), was, now, ours.key, times, reasons
        )
        for was, now in (found if rows is None else found[:rows])
    ]
    equal = int(len(emitted[0]) - differ[0].sum())
    return _comparison(compared, equal, (0, len(after), len(before)), shown)


def _comparison(
    compared: _Compared,
    equal: int,
    changed_added_missing: tuple[int, int, int],
    windows: Sequence[DifferentWindow],
) -> Comparison:
    ours, theirs = compared.ours.manifest, compared.theirs.manifest
    return Comparison(
        ours.pipeline,
        theirs.pipeline,
        compared.since,
        compared.settings,
        equal,
        *changed_added_missing,
        _read(ours, theirs),
        (ours.watermark, theirs.watermark),
        tuple(windows),
        not results.has_panes(compared.ours.columns),
    )


def _read(ours: Manifest, theirs: Manifest) -> dict[str, tuple[int, int]]:
    """Return the versions that both have read of the source tables that both read."""
    shared = ours.positions.keys() & theirs.positions.keys()
    return {table: (ours.positions[table].version, theirs.positions[table].version) for table in sorted(shared)}


def _noun(comparison: Comparison) -> str:
    return "rows" if comparison.of_rows else "windows"


@dataclass(frozen=True, slots=True)
class _Side:
    """The published windows of one pipeline; `since` is the newest epoch that both share."""

    tables: PipelineTables
    manifest: Manifest
    since: int
    columns: pa.Schema

    @classmethod
    def of(cls, tables: PipelineTables, since: int) -> _Side:
        return cls(tables, require_settled(tables).manifest, since, arrow_schema(tables.newest(results.NAME)))

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(self.manifest.schemas.key)

    @property
    def shown_key(self) -> str:
        """The key columns with their types, for a message."""
        return ", ".join(f"{name} {self.columns.field(name).type}" for name in self.key)

    def shares(self, other: _Side, name: str) -> bool:
        """Return True if both have a column of this name and type."""
        return name in other.columns.names and other.columns.field(name).type == self.columns.field(name).type

    @property
    def touched(self) -> pa.Table:
        """Ids of the windows that have rows since the shared epoch, with their starts."""
        where = (pc.field("epoch") > self.since) & (pc.field("epoch") <= self.manifest.epoch)
        rows = read_table(self.tables.warehouse, self.tables.newest(results.NAME), ["window_id", "window_start"], where)
        return distinct(rows)

    @property
    def emitted(self) -> pa.Table:
        """The rows since the shared epoch that are not stale."""
        where = (pc.field("epoch") > self.since) & results.current(self.manifest.epoch)
        return read_table(self.tables.warehouse, self.tables.newest(results.NAME), where=where)

    def current_panes(self, touched: pa.Table) -> pa.Table:
        """Return the newest panes of current windows."""
        starts = touched["window_start"]
        first, last = (function(starts) for function in (pc.min, pc.max))
        where = pc.field("epoch") <= self.manifest.epoch
        if first.is_valid:
            begins = pc.field("window_start")
            where &= begins.is_null() | ((begins >= first) & (begins <= last))
        rows = read_table(self.tables.warehouse, self.tables.newest(results.NAME), where=where)
        rows = rows.filter(pc.is_in(rows["window_id"], value_set=touched["window_id"].combine_chunks()))
        return results.latest(rows, self.key)

    def has_passed(self, end: datetime | str | None) -> bool:
        """Return True if the watermark has reached the end of a window."""
        return not isinstance(end, datetime) or to_millis(end) - 1 <= self.manifest.watermark


def _late_by_key(
    side: _Side, derived: Sequence[str], merges: bool
) -> Mapping[tuple[Any, ...], Sequence[tuple[Any, Any]]]:
    """Return, by key, the spans of late rows since the shared epoch; nothing if rows have no key.

    The span of a row is its time, or that of its own window if windows merge.
    """
    handle = side.tables.newest(late.NAME)
    key = key_columns(late.NAME, arrow_schema(handle), side.key, derived)
    found: dict[tuple[Any, ...], list[tuple[Any, Any]]] = defaultdict(list)
    if not key:
        return found
    where = (pc.field("epoch") > side.since) & (pc.field("epoch") <= side.manifest.epoch)
    names = [*key, "window_start", "window_end", "watermark", "lateness_ms", late.REOPENED, "stale"]
    rows = read_table(side.tables.warehouse, handle, names, where)
    rows = rows.filter(late.is_open(rows))
    for row, time in zip(rows_of(rows), late.event_times(rows).tolist(), strict=True):
        span = (row["window_start"], row["window_end"]) if merges else (from_millis(time), from_millis(time + 1))
        found[tuple(text_of_value(row[name]) for name in key)].append(span)
    return found


@dataclass(frozen=True, slots=True)
class _Reasons:
    """Explains why windows differ: by the late rows of both sides, how far they have read, and their watermarks."""

    ours: _Side
    theirs: _Side
    late: Mapping[tuple[Any, ...], Sequence[tuple[Any, Any]]]
    late_in_other: Mapping[tuple[Any, ...], Sequence[tuple[Any, Any]]]

    def number_late(self, window: tuple[Any, ...]) -> int:
        """Return the number of the first pipeline's late rows in a window minus that of the other."""
        *key, start, end = window
        name = tuple(map(text_of_value, key))
        return sum(
            sign * sum(_meet((start, end), bounds) for bounds in rows.get(name, ()))
            for sign, rows in ((1, self.late), (-1, self.late_in_other))
        )

    def why(self, window: tuple[Any, ...], in_first: bool, in_other: bool, number: int) -> str:
        """Return the reason why a window differs."""
        first, other = self.ours.manifest.pipeline, self.theirs.manifest.pipeline
        if number > 0:
            return f"{count_of(number, 'row')} late in {first} but not in {other}"
        if number < 0:
            return f"{count_of(-number, 'row')} late in {other} but not in {first}"
        end = window[-1]
        if in_first and not in_other and not self.theirs.has_passed(end):
            return f"not fired yet in {other}, whose watermark is before its end"
        if in_other and not in_first and not self.ours.has_passed(end):
            return f"not fired yet in {first}, whose watermark is before its end"
        if any(first != other for first, other in _read(self.ours.manifest, self.theirs.manifest).values()):
            return "they have read different versions of the source"
        return "other settings or other code put its rows into other windows, or make other rows late or rejected"


def _meet(window: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    """Return True if two windows overlap."""
    if None in window or None in other:
        return window == other
    return bool(str(window[0]) < str(other[1]) and str(other[0]) < str(window[1]))


def _window(row: Row, by: Sequence[str]) -> tuple[Any, ...]:
    return tuple(row[name] if not isinstance(row[name], list | dict) else str(row[name]) for name in by)


def _same(before: Row | None, after: Row | None, names: Sequence[str]) -> bool:
    return before is not None and after is not None and all(are_equal(before[name], after[name]) for name in names)


def _different(
    window: tuple[Any, ...],
    before: Row | None,
    after: Row | None,
    key: Sequence[str],
    times: Sequence[str],
    reasons: _Reasons,
) -> DifferentWindow:
    row = before or after
    assert row is not None
    number = reasons.number_late(window)
    values = [
        None if each is None else {name: each[name] for name in each if name not in {*key, *times}}
        for each in (before, after)
    ]
    return DifferentWindow(
        {name: row[name] for name in key},
        row[times[0]],
        row[times[1]] if len(times) > 1 else None,
        values[0],
        values[1],
        _by(values[0] or {}, values[1] or {}),
        number,
        reasons.why(window, before is not None, after is not None, number),
    )


def _by(before: Row, after: Row) -> dict[str, float | Decimal]:
    kinds = int | float | Decimal
    return {
        name: after[name] - value
        for name, value in before.items()
        if isinstance(value, kinds) and isinstance(after.get(name), kinds) and not isinstance(value, bool)
    }


def _bounds(window: DifferentWindow) -> Row:
    return {"window_start": window.window_start, "window_end": window.window_end}


def _changes(window: DifferentWindow) -> dict[str, str]:
    """Return each result column of a window as text: its value, or both values if they differ."""
    return {name: _change(window, name) for name in window.before or window.after or {}}


def _change(window: DifferentWindow, name: str) -> str:
    before, after = ("-" if each is None else each[name] for each in (window.before, window.after))
    shown = (cell(before),) if are_equal(before, after) else cells_apart(before, after)
    return " -> ".join("null" if each is None else str(each) for each in shown)

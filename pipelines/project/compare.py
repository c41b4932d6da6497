"""In which windows a branch differs from its pipeline, by how much, and why. Starts no JVM.

Rows of process functions and joins are compared as multisets: each row that only one side has is shown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import late, results
from tidegate.pipelines.definition.branches import BranchNote
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.row_sets import distinct, surplus
from tidegate.pipelines.epoch.correct import are_equal
from tidegate.pipelines.ledger.manifest import Manifest, fork_of
from tidegate.pipelines.ledger.snapshots.published import require_settled
from tidegate.pipelines.ledger.tables.keys import key_columns, text_of_value
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.answer import Answer, Grid, Shown, cell, cells_apart, rows_of, span
from tidegate.pipelines.project.branches import found_branch, said
from tidegate.pipelines.storage.warehouse import arrow_schema, read_table
from tidegate.windowing.compute import Windows
from tidegate.windowing.time import Millis, from_millis, show_millis, to_millis

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DifferentWindow:
    """A window in which a branch differs from its pipeline, or a row of a function or join that only one side has.

    Args:
        key: values of the key columns.
        window_start: start of the window, None for the global window; or event time of a row of a function or join.
        window_end: end of the window, exclusive; None for a row of a function or join.
        before: the result of the pipeline; None if it has no such window.
        after: the result of the branch; None if it has no such window.
        by: for each result column that is a number in both, the branch's value minus the pipeline's.
        late: late rows of the pipeline in this window, minus those of the branch; above 0, the branch accepted more
            rows.
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
class Comparison(Answer):
    """The current windows of a pipeline and of a branch of it, compared since the branch was created.

    Args:
        branch: name of the branch, `PIPELINE@BRANCH`.
        settings: the changed settings of the branch, milliseconds.
        equal: number of windows with the same results.
        changed: number of windows with different results.
        added: number of windows that only the branch has.
        missing: number of windows that only the pipeline has.
        read: for each table of the source, the versions that the pipeline and the branch have read.
        watermarks: watermark of the pipeline and of the branch, int64 epoch milliseconds.
        windows: the first windows that differ, by start and key.
        of_rows: True for a function or join, whose rows are compared instead of windows.
    """

    pipeline: str
    branch: str
    settings: dict[str, Millis]
    equal: int
    changed: int
    added: int
    missing: int
    read: dict[str, tuple[int, int]]
    watermarks: tuple[Millis, Millis]
    windows: tuple[DifferentWindow, ...]
    of_rows: bool = False

    main: ClassVar[str] = "windows"
    for_people = ("of_rows",)

    def shown(self) -> Iterator[Shown]:
        total = self.changed + self.added + self.missing
        ours, theirs = (show_millis(watermark) for watermark in self.watermarks)
        yield (
            f"{self.branch} ({said(self.settings)}) differs from {self.pipeline} in {total} of {total + self.equal} "
            f"{_noun(self)} since it was created: {self.changed} changed, {self.added} only in the branch, "
            f"{self.missing} only in {self.pipeline}; watermarks {theirs} and {ours}"
        )
        for table, (pipeline, branch) in self.read.items():
            if pipeline != branch:
                behind = self.branch if branch < pipeline else self.pipeline
                yield (
                    f"{self.pipeline} has read version {pipeline} of {table}, and the branch version {branch}: "
                    f"`tidegate stream {behind} --available-now` makes them comparable"
                )
        if self.windows:
            yield _grid(self)


def compare(config: Config, pipeline: str, branch: str, rows: int | None) -> Comparison:
    tables, other, note = found_branch(config, pipeline, branch)
    sides = [_Side.of(each, note) for each in (tables, other)]
    ours, theirs = sides
    if not results.has_panes(ours.columns):
        return _compared_rows(ours, theirs, note, rows)
    spans = distinct(pa.concat_tables([ours.touched, theirs.touched.cast(ours.touched.schema)]))
    current_panes = [side.current_panes(spans) for side in sides]
    by = [*ours.key, "window_start", "window_end"]
    values = [name for name in ours.columns.names if name not in {*results.RESERVED, *ours.key}]
    names = [*by, *(name for name in values if name in theirs.columns.names)]
    differ = surplus(current_panes[0], current_panes[1], names)
    before, after = (
        {_window(row, by): row for row in rows_of(each.filter(pa.array(one)).select(names))}
        for each, one in zip(current_panes, differ, strict=True)
    )
    windows = [window for window in {**before, **after} if not _same(before.get(window), after.get(window), names)]
    close = len({**before, **after}) - len(windows)
    windows.sort(key=lambda window: tuple(map(str, (*window[-2:], *window))))
    value = load_pipeline(config, pipeline)
    merges = isinstance(value.compute, Windows) and value.compute.assigner.merges
    reasons = _Reasons(ours, theirs, *(_late_by_key(side, value.derived_key, merges) for side in sides))
    shown = windows if rows is None else windows[:rows]
    return _comparison(
        reasons,
        note,
        int(len(current_panes[0]) - differ[0].sum()) + close,
        (
            sum(window in before and window in after for window in windows),
            sum(window not in before for window in windows),
            sum(window not in after for window in windows),
        ),
        [_different(window, before.get(window), after.get(window), ours.key, by[-2:], reasons) for window in shown],
    )


def _compared_rows(ours: _Side, theirs: _Side, note: BranchNote, rows: int | None) -> Comparison:
    """Compare the rows that a function or a join has emitted since the branch began."""
    emitted = [side.emitted for side in (ours, theirs)]
    made = results.ELEMENT_RESERVED - {"event_time", "output"}
    names = [name for name in ours.columns.names if name not in made and name in theirs.columns.names]
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
    return _comparison(reasons, note, equal, (0, len(after), len(before)), shown)


def _comparison(
    reasons: _Reasons,
    note: BranchNote,
    equal: int,
    changed_added_missing: tuple[int, int, int],
    windows: Sequence[DifferentWindow],
) -> Comparison:
    ours, theirs = reasons.ours.manifest, reasons.theirs.manifest
    return Comparison(
        ours.pipeline,
        theirs.pipeline,
        note.settings,
        equal,
        *changed_added_missing,
        {table: (position.version, theirs.position_in(table).version) for table, position in ours.positions.items()},
        (ours.watermark, theirs.watermark),
        tuple(windows),
        not results.has_panes(reasons.ours.columns),
    )


def _noun(comparison: Comparison) -> str:
    return "rows" if comparison.of_rows else "windows"


@dataclass(frozen=True, slots=True)
class _Side:
    """The published windows of the pipeline, or of the branch; `since` is the newest epoch that both share."""

    tables: PipelineTables
    manifest: Manifest
    since: int
    columns: pa.Schema

    @classmethod
    def of(cls, tables: PipelineTables, note: BranchNote) -> _Side:
        manifest = require_settled(tables).manifest
        columns = arrow_schema(tables.newest(results.NAME))
        return cls(tables, manifest, fork_of(manifest.line, note.line), columns)

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(self.manifest.schemas.key)

    @property
    def touched(self) -> pa.Table:
        """Ids of the windows that have rows since the branch was created, with their starts."""
        where = (pc.field("epoch") > self.since) & (pc.field("epoch") <= self.manifest.epoch)
        rows = read_table(self.tables.warehouse, self.tables.newest(results.NAME), ["window_id", "window_start"], where)
        return distinct(rows)

    @property
    def emitted(self) -> pa.Table:
        """The rows since the branch was created that are not stale."""
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
    """Return, by key, the spans of late rows since the branch was created; nothing if rows have no key.

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
    late_in_branch: Mapping[tuple[Any, ...], Sequence[tuple[Any, Any]]]

    def number_late(self, window: tuple[Any, ...]) -> int:
        """Return the number of the pipeline's late rows in a window minus that of the branch."""
        *key, start, end = window
        name = tuple(map(text_of_value, key))
        return sum(
            sign * sum(_meet((start, end), bounds) for bounds in rows.get(name, ()))
            for sign, rows in ((1, self.late), (-1, self.late_in_branch))
        )

    def why(self, window: tuple[Any, ...], in_pipeline: bool, in_branch: bool, number: int) -> str:
        """Return the reason why a window differs."""
        if number > 0:
            return f"{number} row(s) that were late, and are not in the branch"
        if number < 0:
            return f"{-number} row(s) that are late in the branch"
        end = window[-1]
        if in_pipeline and not in_branch and not self.theirs.has_passed(end):
            return "not fired yet in the branch, whose watermark is before its end"
        if in_branch and not in_pipeline and not self.ours.has_passed(end):
            return "not fired yet in the pipeline, whose watermark is before its end"
        if any(
            position.version != self.theirs.manifest.position_in(table).version
            for table, position in self.ours.manifest.positions.items()
        ):
            return "they have read different versions of the source"
        return "the changed settings put its rows into other windows, or make other rows late or rejected"


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


def _grid(comparison: Comparison) -> Grid:
    windows = comparison.windows
    key = list(windows[0].key)
    values = list(windows[0].before or windows[0].after or {})
    rows = [
        [
            *(text_of_value(each.key[name]) for name in key),
            span({"window_start": each.window_start, "window_end": each.window_end}),
            *(_change(each, name) for name in values),
            each.why,
        ]
        for each in windows
    ]
    total = comparison.changed + comparison.added + comparison.missing
    title = f"{_noun(comparison)} that differ ({len(windows)} of {total})"
    times = "event time" if comparison.of_rows else "window (UTC)"
    return Grid(title, [*key, times, *values, "why"], rows)


def _change(window: DifferentWindow, name: str) -> str:
    before, after = ("-" if each is None else each[name] for each in (window.before, window.after))
    shown = (cell(before),) if are_equal(before, after) else cells_apart(before, after)
    return " -> ".join("null" if each is None else str(each) for each in shown)

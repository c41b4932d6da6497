"""Late rows: counting them, reprocessing them into their windows, and pruning them. Only reopening runs an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.correct.correct import ReopenedRows, check_windows_exist, reopen, reopen_possible
from tidegate.pipelines.correct.request import Selection, check_reopenable
from tidegate.pipelines.definition import late as late_table
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.counters import RETRACTED
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.names import count_of, listed
from tidegate.pipelines.definition.pipeline import has_history
from tidegate.pipelines.definition.row_sets import comparable, distinct
from tidegate.pipelines.engine.choose import require_engine
from tidegate.pipelines.errors import LeaseHeld, UsageError
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.head import no_snapshot_yet, require_snapshot
from tidegate.pipelines.ledger.snapshots.published import published_epoch
from tidegate.pipelines.ledger.snapshots.retention import prune
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables.keys import key_columns, key_of_texts, text_of_value
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.metrics.open import measured
from tidegate.pipelines.observe.report.answer import Facts
from tidegate.pipelines.observe.report.columns import (
    COUNT,
    DURATION,
    INSTANT,
    NUMBER,
    TEXT,
    VALUE,
    Column,
    Columns,
    Table,
)
from tidegate.pipelines.observe.report.values import rows_of
from tidegate.pipelines.project.progress import Teller
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.rendering import spelled
from tidegate.pipelines.run.drive import Patience, drive
from tidegate.pipelines.run.stream import ENDS_BY_ITSELF
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.windowing.time import MAX_TIMESTAMP, show_duration

_DAY = 86_400_000
_QUANTILES = {"median": 0.5, "p95": 0.95, "p99": 0.99}
_MEASURES = ("rows", "open", "windows", *_QUANTILES, "largest", "first epoch", "last epoch")
_AFTER_ALL = MAX_TIMESTAMP // 2


def _of_group(name: str) -> Callable[[dict[str, Any]], object]:
    """Return what prints a value by which rows are counted: a text as on the command line, so that a null differs."""

    def text(group: dict[str, Any]) -> object:
        value = group[name]
        return text_of_value(value) if value is None or isinstance(value, str) else value

    return text


def _lateness(name: str) -> Callable[[dict[str, Any]], object]:
    """Return what prints a lateness. After the end of input the watermark is not a time, so it is not a duration."""

    def text(group: dict[str, Any]) -> object:
        value = group[name]
        return "after the end of input" if value is not None and value >= _AFTER_ALL else show_duration(value)

    return text


@dataclass(frozen=True, slots=True)
class LateSummary(Facts):
    """Counts of late rows.

    Args:
        rows: number of late rows.
        open: number of late rows that are not yet in a window.
        groups: the counts of each group, with its values of `keys`; lateness is in milliseconds. `windows` counts the
            windows of each key, of overlapping windows only the last one of each row; it is None if the rows have no
            key because it is derived.
        keys: names of the columns by which rows are counted.
        trace: what shows why they are late; None if nothing can.
        never_run: a note if the pipeline has never run; otherwise None.
    """

    pipeline: str
    rows: int
    open: int
    groups: tuple[dict[str, Any], ...]
    keys: tuple[str, ...]
    trace: Remedy | None = None
    never_run: str | None = None

    facts: ClassVar[Columns] = (Column("pipeline", TEXT), Column("rows", COUNT), Column("open", COUNT))
    holds: ClassVar[Mapping[str, Columns]] = {
        "groups": (
            Column("rows", COUNT),
            Column("open", COUNT),
            Column("windows", COUNT),
            *(Column(name, DURATION, text=_lateness(name)) for name in (*_QUANTILES, "largest")),
            Column("first epoch", NUMBER),
            Column("last epoch", NUMBER),
        )
    }

    def tables(self) -> Iterator[Table]:
        by = tuple(Column(name, VALUE, text=_of_group(name)) for name in self.keys)
        title = f"late rows of {self.pipeline}: {self.rows}, {self.rows - self.open} of them reopened"
        yield Table("groups", (*by, *self.holds["groups"]), self.groups, title)

    def remarks(self) -> Iterator[str]:
        if self.trace is not None:
            yield f"{spelled(self.trace)} shows why rows are late"


@dataclass(frozen=True, slots=True)
class Reopened(Facts):
    """The outcome of a reopening.

    Args:
        epoch: newest epoch that reopened rows; None if there were none.
        rows: number of late rows that were added to their windows.
        panes: number of panes that were emitted.
        retracted: number of panes that were retracted.
        left: the late rows that can't be reopened: `kind` (the reason's name), `rows`, `window_start` and `reason`.
    """

    pipeline: str
    epoch: int | None
    rows: int
    panes: int = 0
    retracted: int = 0
    left: tuple[dict[str, Any], ...] = ()

    facts: ClassVar[Columns] = (
        Column("pipeline", TEXT),
        Column("epoch", NUMBER),
        Column("rows", COUNT),
        Column("panes", COUNT),
        Column("retracted", COUNT),
    )
    holds: ClassVar[Mapping[str, Columns]] = {
        "left": (
            Column("window_start", INSTANT),
            Column("rows", COUNT),
            Column("kind", TEXT),
            Column("reason", TEXT, ""),
        )
    }

    def lines(self) -> Iterator[str]:
        if self.epoch is not None:
            yield (
                f"{self.pipeline}: epoch {self.epoch} reopened late rows: {self.rows}; panes retracted: "
                f"{self.retracted}, emitted: {self.panes}"
            )
        elif not self.left:
            yield f"{self.pipeline} has no such late rows: nothing to do"

    def tables(self) -> Iterator[Table]:
        title = f"late rows of {self.pipeline} that can't be reopened; they stay in table late"
        yield Table("left", self.holds["left"], self.left, title, is_shown=any(each["rows"] for each in self.left))

    def remarks(self) -> Iterator[str]:
        if kinds := dict.fromkeys(each["kind"] for each in self.left if not each["rows"]):
            yield f"windows of {self.pipeline} that miss a row, and can't be corrected: {', '.join(kinds)}"
        yield from dict.fromkeys(each["reason"] for each in self.left)


@dataclass(frozen=True, slots=True)
class Pruned(Facts):
    """Late and rejected rows that were removed.

    Args:
        removed: number of removed rows by table.
    """

    pipeline: str
    removed: dict[str, int]

    facts: ClassVar[Columns] = (Column("pipeline", TEXT),)
    holds: ClassVar[Mapping[str, Columns]] = {"removed": (Column("table", TEXT), Column("rows", COUNT))}

    def tables(self) -> Iterator[Table]:
        rows = [{"table": name, "rows": count} for name, count in self.removed.items()]
        yield Table(
            "removed", self.holds["removed"], rows, f"late and rejected rows of {self.pipeline} that were removed"
        )


def late_summary(config: Config, pipeline: str, by: str | None) -> LateSummary:
    tables = PipelineTables.of(config, pipeline)
    rows = pa.table({})
    if tables.exist:
        # As in `runs`, rows of an epoch that is not published to every table don't count yet.
        published = results.current(published_epoch(tables))
        rows = read_table(tables.warehouse, tables.open(late_table.NAME), where=published)
    if by is not None and len(rows) and by not in rows.column_names:
        raise UsageError(f"--by: no column {by!r}; the columns are {listed(rows.column_names, 30)}")
    names = ["reason", *([by] if by not in (None, "reason") else [])]
    # A column of the input may have the same name as one of the counts.
    keys = tuple(f"input_{name}" if name in _MEASURES else name for name in names)
    if not len(rows):
        return LateSummary(pipeline, 0, 0, (), keys, never_run=None if tables.exist else str(no_snapshot_yet(tables)))
    value = load_pipeline(config, pipeline)
    bounds = ["window_start", "window_end", *key_columns(late_table.NAME, rows.schema, value.key, value.derived_key)]
    groups = tuple(
        _measured(group, part, keys, None if value.derived_key else bounds) for group, part in _groups(rows, names)
    )
    trace = Remedy(Act.TRACE, pipeline, key=None if value.key else ()) if has_history(value) else None
    return LateSummary(pipeline, len(rows), sum(group["open"] for group in groups), groups, keys, trace)


def late_reopen(
    config: Config, pipeline: str, selection: Selection, patience: float, strict: bool, teller: Teller
) -> Reopened:
    value = load_pipeline(config, pipeline)
    if selection.key and len(selection.key) != len(value.key):
        raise UsageError(f"--key: the key has {count_of(len(value.key), 'column')}, {', '.join(value.key)}")
    check_reopenable(value)
    head = require_snapshot(PipelineTables.of(config, pipeline))
    if selection.key:
        key_of_texts(head.key, selection.key)
    require_engine(config, "a reopening of late rows")
    wait = Patience(patience, ENDS_BY_ITSELF, teller.say)
    try:
        with drive(config, value, "late reopen", wait=wait, observe=measured) as driver:
            driver.tell = teller.step
            if strict:
                check_windows_exist(driver, selection)
                manifest, rows = reopen(driver, selection)
                done = ReopenedRows([] if manifest is None else [manifest], rows)
            else:
                done = reopen_possible(driver, selection)
    except LeaseHeld as error:
        raise LeaseHeld(
            f"{error}. A continuous stream reopens its late rows itself, on its reopen_schedule (tidegate.toml)"
        ) from error
    left = tuple(
        {
            "kind": each.kind,
            "rows": each.rows,
            "window_start": each.start,
            "reason": each.reason,
        }
        for each in done.left
    )
    if not done.manifests:
        return Reopened(pipeline, None, 0, left=left)
    panes, retracted = (
        sum(manifest.counters[name] for manifest in done.manifests) for name in ("fired_late", RETRACTED)
    )
    return Reopened(pipeline, done.manifests[-1].epoch, done.rows, panes, retracted, left)


def late_prune(config: Config, pipeline: str, days: int) -> Pruned:
    tables = PipelineTables.of(config, pipeline)
    find_snapshot(tables, "latest")
    now = system_clock()
    with Lease(tables, "late prune", system_clock):
        return Pruned(pipeline, prune(tables, now - days * _DAY, now))


def _groups(rows: pa.Table, names: list[str]) -> list[tuple[dict[str, Any], pa.Table]]:
    by = pa.table([comparable(rows[name]) for name in names], [f"by_{number}" for number in range(len(names))])
    numbered = by.append_column("number", pa.array(range(len(rows)), pa.int64()))
    found = numbered.group_by(by.column_names, use_threads=False).aggregate([("number", "list")])
    parts = [rows.take(numbers.values) for numbers in found["number_list"]]
    groups = [(rows_of(part.select(names).slice(0, 1))[0], part) for part in parts]
    return sorted(groups, key=lambda pair: -len(pair[1]))


def _measured(
    group: dict[str, Any], rows: pa.Table, keys: tuple[str, ...], window: Sequence[str] | None
) -> dict[str, Any]:
    """Return the counts of a group. `window` names the columns that identify a window."""
    lateness = rows["lateness_ms"]
    quantiles = pc.quantile(lateness, q=list(_QUANTILES.values()), interpolation="higher").to_pylist()
    of_windows = rows.filter(pc.is_valid(rows["window_end"]))
    return {
        **dict(zip(keys, group.values(), strict=True)),
        "rows": len(rows),
        "open": pc.sum(late_table.is_open(rows)).as_py() if late_table.REOPENED in rows.column_names else len(rows),
        "windows": None if window is None else len(distinct(of_windows.select(window))),
        **dict(zip(_QUANTILES, quantiles, strict=True)),
        "largest": pc.max(lateness).as_py(),
        "first epoch": pc.min(rows["epoch"]).as_py(),
        "last epoch": pc.max(rows["epoch"]).as_py(),
    }

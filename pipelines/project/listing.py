"""The pipelines of a project, the epochs of a pipeline, and the report page of a single epoch. Starts no engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.extras import require
from tidegate.pipelines.definition import epochs
from tidegate.pipelines.definition.columns import TIMESTAMP
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.errors import TidegateError, UsageError
from tidegate.pipelines.failures import with_remedy
from tidegate.pipelines.ledger.snapshots.head import no_snapshot_yet
from tidegate.pipelines.ledger.snapshots.published import newest_epoch_rows
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.inspect.status import status_of
from tidegate.pipelines.observe.report.answer import Facts, Listing
from tidegate.pipelines.observe.report.columns import (
    COUNT,
    DATE_TIME,
    DURATION,
    NUMBER,
    OBJECT,
    SECONDS,
    TEXT,
    YES_NO,
    Column,
    Columns,
    Table,
    count_columns,
)
from tidegate.pipelines.observe.report.values import cell, moment
from tidegate.pipelines.storage.credentials import masked
from tidegate.pipelines.storage.warehouse import read_table
from tidegate.windowing.time import (
    MAX_TIMESTAMP,
    Millis,
    from_millis,
    show_duration,
    show_millis,
    show_watermark,
    to_millis,
)


@dataclass(frozen=True, slots=True)
class LastCheck:
    """The newest check of a pipeline.

    Args:
        epoch: the epoch that was checked.
        state: `passed`, `marked` (a warning failed) or `failed`.
        checked_at: time of the check.
    """

    epoch: int
    state: str
    checked_at: datetime


@dataclass(frozen=True, slots=True)
class Listed:
    """A pipeline in a list. Before the first epoch, everything but its name is None.

    Args:
        pipeline: its name.
        mode: `backfill`, or `stream` once a stream has taken over.
        watermark: event time up to which its results are complete; also None after the end of its input.
        lag_seconds: seconds by which its final windows are behind the clock; None without a watermark.
        last_check: its newest check; None if it was never checked.
        ended: True if event time has ended (`--end-of-input`).
        error: why its entry in tidegate.toml is refused or its tables can't be read; None if neither is the case.
    """

    pipeline: str
    mode: str | None = None
    watermark: datetime | None = None
    lag_seconds: float | None = None
    last_check: LastCheck | None = None
    ended: bool | None = None
    error: str | None = None


def _shown_mode(each: Listed) -> str:
    return each.mode or ("can't be read" if each.error else "never run")


def _shown_watermark(each: Listed) -> str:
    return show_watermark(
        MAX_TIMESTAMP if each.ended else None if each.watermark is None else to_millis(each.watermark)
    )


def _shown_lag(each: Listed) -> str:
    return "-" if each.lag_seconds is None else show_duration(int(each.lag_seconds * 1000))


def _shown_check(each: Listed) -> str:
    if (check := each.last_check) is None:
        return "-"
    return f"{check.state}, epoch {check.epoch}, {moment(check.checked_at.replace(microsecond=0))}"


@dataclass(frozen=True, slots=True)
class Pipelines(Listing):
    """The pipelines of a project by name.

    Args:
        pipelines: one entry for each pipeline.
    """

    pipelines: tuple[Listed, ...]

    columns: ClassVar[Columns] = (
        Column("pipeline", TEXT),
        Column("mode", TEXT, text=_shown_mode),
        Column("watermark", DATE_TIME, text=_shown_watermark),
        Column("lag_seconds", SECONDS, "lag", text=_shown_lag),
        Column("last_check", OBJECT, text=_shown_check),
        Column("ended", YES_NO, ""),
        Column("error", TEXT, ""),
    )

    def main(self) -> Table:
        return Table("", self.columns, self.pipelines, "pipelines")

    def remarks(self) -> Iterator[str]:
        yield from (f"{each.pipeline}: {each.error}" for each in self.pipelines if each.error is not None)


def list_pipelines(config: Config, now: datetime) -> Pipelines:
    return Pipelines(tuple(_listed(config, name, now) for name in sorted(config.declared)))


def _listed(config: Config, name: str, now: datetime) -> Listed:
    try:
        config.entry(name)
        status = status_of(config, name)
        through, watermark = status.final_through, status.watermark
        return Listed(
            name,
            status.mode,
            None if watermark in (None, MAX_TIMESTAMP) else from_millis(watermark),
            None if through in (None, MAX_TIMESTAMP) else status.lag(now),
            None if status.mode is None else _last_check(PipelineTables.of(config, name)),
            None if status.mode is None else watermark == MAX_TIMESTAMP,
        )
    except (TidegateError, OSError) as error:
        # A pipeline with a faulty entry, or whose tables can't be read, must not hide the others.
        return Listed(name, error=masked(with_remedy(error)))


def _last_check(tables: PipelineTables) -> LastCheck | None:
    rows = quality.newest(tables)
    if not len(rows):
        return None
    first = rows.slice(0, 1).to_pylist()[0]
    return LastCheck(first["epoch"], quality.state_of(rows), first["checked_at"].astimezone(UTC))


def _shown_kind(row: Mapping[str, Any]) -> str:
    return f"{row['kind']}, stale" if row["stale"] else row["kind"]


def _shown_interval(row: Mapping[str, Any]) -> str:
    start, end = row["interval_start"], row["interval_end"]
    return "" if start is None else f"{moment(start)} to {moment(end)}"


def _lag(row: Mapping[str, Any]) -> str:
    # The user chose the interval of a backfill, so its age does not indicate lag.
    return show_duration(None if row["kind"] == "backfill" else row.get("watermark_lag_ms"))


_COUNTED = count_columns(lambda row: row)
_SHOWN = (
    Column("epoch", NUMBER),
    Column("kind", TEXT, text=_shown_kind),
    Column("interval_start", DATE_TIME, "interval", text=_shown_interval),
    *_COUNTED,
    Column("watermark", DATE_TIME),
    Column("watermark_lag_ms", DURATION, "lag", text=_lag),
    Column("phases", OBJECT, "seconds", text=lambda row: cell(row["phases"].get("job"))),
    Column("started_at", DATE_TIME, "started", text=lambda row: moment(row["started_at"].replace(microsecond=0))),
)
_NAMES = {column.name for column in _SHOWN}
_UNITS = {pa.int64(): COUNT, pa.string(): TEXT, pa.bool_(): YES_NO, TIMESTAMP: DATE_TIME}
_OTHERS = tuple(
    Column(field.name, _UNITS.get(field.type, OBJECT), "") for field in epochs.SCHEMA if field.name not in _NAMES
)


@dataclass(frozen=True, slots=True)
class Runs(Listing):
    """Rows of table `epochs`, newest first. `fired` and `filtered` are sums of its counters.

    Args:
        epochs: the rows; `phases` has the seconds of each step.
        total: number of such rows in the table.
        began: the first epoch with a watermark: after a later one without, the input has ended. None if there is none.
        never_run: a note if the pipeline has never run; otherwise None.
    """

    pipeline: str
    epochs: tuple[dict[str, Any], ...]
    total: int
    began: int | None = None
    never_run: str | None = None

    columns: ClassVar[Columns] = (*_SHOWN, *_OTHERS)

    def main(self) -> Table:
        def reached(row: Mapping[str, Any]) -> str:
            return "end of input" if epochs.has_ended(row, self.began) else moment(row["watermark"])

        columns = [replace(each, text=reached) if each.name == "watermark" else each for each in self.columns]
        title = f"epochs of {self.pipeline} ({len(self.epochs)} of {self.total})"
        return Table("", tuple(columns), self.epochs, title)


def runs(config: Config, pipeline: str, limit: int | None, stale: bool) -> Runs:
    tables = PipelineTables.of(config, pipeline)
    if not tables.exist:
        return Runs(pipeline, (), 0, never_run=str(no_snapshot_yet(tables)))
    handle = tables.open(epochs.NAME)
    rows = newest_epoch_rows(tables.warehouse, handle, limit, stale).to_pylist()
    every = read_table(tables.warehouse, handle, ["epoch", "watermark"], None if stale else ~pc.field("stale"))
    return Runs(
        pipeline,
        tuple({**row, "phases": dict(row["phases"] or ())} for row in rows),
        len(every),
        pc.min(every.filter(pc.is_valid(every["watermark"]))["epoch"]).as_py(),
    )


@dataclass(frozen=True, slots=True)
class Report(Facts):
    """A page that was written.

    Args:
        file: path or URI of the page.
    """

    pipeline: str
    file: str

    facts: ClassVar[Columns] = (Column("pipeline", TEXT), Column("file", TEXT))
    says: ClassVar[str] = "report of {pipeline}: {file}"


def report(
    config: Config, pipeline: str, epoch: int | None, key: str | None, to: Path | None, window: Millis | None = None
) -> Report:
    config.entry(pipeline)
    if window is not None and key is None:
        raise UsageError("--window: give the key of the window with --key")
    require("the run report", "jinja2", "matplotlib")
    from tidegate.pipelines.observe.report.page import write_report
    from tidegate.pipelines.observe.report.run import read_run

    run = read_run(PipelineTables.of(config, pipeline), epoch, key)
    more: dict[str, str] = {}
    if window is not None and key is not None:
        from tidegate.pipelines.ask.trace import trace
        from tidegate.pipelines.observe.report.plots import time_line

        traced = trace(config, pipeline, run.key_texts, window, False, None)
        if traced.remark is not None:
            raise UsageError(f"--window: {traced.remark}")
        more = {f"Window of {key} from {show_millis(window)}": time_line(traced.elements, traced.events)}
    return Report(pipeline, write_report(config, pipeline, run, to, more))

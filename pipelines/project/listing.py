"""The pipelines of a project in one table, with the mode, watermark, lag and last check of each. Starts no engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.errors import TidegateError
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.inspect.status import status_of
from tidegate.pipelines.observe.report.answer import Answer, Grid, Shown, as_plain, moment
from tidegate.pipelines.storage.credentials import masked
from tidegate.windowing.time import MAX_TIMESTAMP, from_millis, show_duration, show_watermark, to_millis

_COLUMNS = ("pipeline", "mode", "watermark (UTC)", "lag", "last check")


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
        error: why its entry in tidegate.toml is refused or its tables can't be read; None if neither is the case.
    """

    pipeline: str
    mode: str | None = None
    watermark: datetime | None = None
    lag_seconds: float | None = None
    last_check: LastCheck | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Pipelines(Answer):
    """The pipelines of a project by name.

    Args:
        pipelines: one entry for each pipeline.
    """

    pipelines: tuple[Listed, ...]

    def to_dict(self) -> list[dict[str, Any]]:
        # Pipelines that can be read have no field `error`.
        rows = (as_plain(each) for each in self.pipelines)
        return [{name: row[name] for name in row if name != "error" or row[name] is not None} for row in rows]

    def shown(self) -> Iterator[Shown]:
        yield Grid("pipelines", _COLUMNS, [_cells(each) for each in self.pipelines], ("lag",))
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
        )
    except TidegateError as error:
        # A pipeline with a faulty entry, or whose tables can't be read, must not hide the others.
        return Listed(name, error=masked(str(error)))


def _last_check(tables: PipelineTables) -> LastCheck | None:
    rows = quality.newest(tables)
    if not len(rows):
        return None
    first = rows.slice(0, 1).to_pylist()[0]
    return LastCheck(first["epoch"], quality.state_of(rows), first["checked_at"].astimezone(UTC))


def _cells(each: Listed) -> list[object]:
    check = each.last_check
    return [
        each.pipeline,
        each.mode or ("can't be read" if each.error else "never run"),
        show_watermark(None if each.watermark is None else to_millis(each.watermark)),
        "-" if each.lag_seconds is None else show_duration(int(each.lag_seconds * 1000)),
        "-"
        if check is None
        else f"{check.state}, epoch {check.epoch}, {moment(check.checked_at.replace(microsecond=0))}",
    ]

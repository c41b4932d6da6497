"""The reasons why windows have not fired. Starts no JVM."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import ClassVar

import pyarrow.compute as pc

from tidegate.pipelines.ask.reason import Reason
from tidegate.pipelines.ask.waiting import (
    PartitionStatus,
    Waiting,
    blocked,
    open_windows,
    partitions,
    unit_of,
)
from tidegate.pipelines.definition import late, rejects, results
from tidegate.pipelines.definition.config import Config, PipelineEntry
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.names import count_of
from tidegate.pipelines.definition.pipeline import Pipeline, has_history
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.manifest import Interval, Manifest
from tidegate.pipelines.ledger.snapshots.head import require_snapshot
from tidegate.pipelines.ledger.snapshots.published import published_epoch
from tidegate.pipelines.ledger.tables.keys import NULL, key_columns, rows_of_key
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.answer import Facts
from tidegate.pipelines.observe.report.columns import (
    COUNT,
    DURATION,
    INSTANT,
    KEY,
    NAMES,
    NUMBER,
    OBJECT,
    TEXT,
    WATERMARK,
    YES_NO,
    Column,
    Columns,
    Table,
)
from tidegate.pipelines.observe.report.values import span
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.rendering import spelled
from tidegate.pipelines.run.intervals import interval_after
from tidegate.pipelines.sources.base import MissingSource
from tidegate.pipelines.sources.open_source import open_source
from tidegate.pipelines.storage.warehouse import arrow_schema, read_table
from tidegate.windowing.compute import Windows
from tidegate.windowing.sides import SIDES
from tidegate.windowing.time import MIN_TIMESTAMP, Millis, show_duration, show_millis, show_watermark, to_millis

_DAY = 86_400_000


@dataclass(frozen=True, slots=True)
class LastFired:
    """The result of a key that was emitted last.

    Args:
        epoch: the epoch that emitted it.
        window_start: start of its window; None for the global window, a function or a join.
        window_end: end of its window, exclusive; None where `window_start` is.
        pane: number of the pane; None for a function or a join.
        timing: `early`, `on_time` or `late`; None for a function or a join.
        retracted: the epoch that retracted it; None if none did.
    """

    epoch: int
    window_start: datetime | None = None
    window_end: datetime | None = None
    pane: int | None = None
    timing: str | None = None
    retracted: int | None = None

    def __str__(self) -> str:
        if self.pane is None:
            return f"a result, in epoch {self.epoch}"
        window = span({"window_start": self.window_start, "window_end": self.window_end})
        since = "" if self.retracted is None else f", retracted in epoch {self.retracted}"
        return f"{window}, pane {self.pane} ({self.timing}), in epoch {self.epoch}{since}"


def _shown_published(why: Why) -> str:
    if why.published == why.epoch:
        return ""
    return f"up to epoch {why.published}: the next run publishes epoch {why.epoch}"


def _shown_watermark(why: Why) -> str:
    lag = why.watermark_lag_ms
    return show_watermark(why.watermark) + ("" if lag is None else f", {show_duration(lag)} behind the clock")


def _shown_final(why: Why) -> str:
    return f"windows that end by {show_millis(why.final_through)}" if why.ends_by_clock else ""


def _shown_timers(why: Why) -> str:
    timers = [(domain, time) for domain, time in why.next_timers.items() if time is not None]
    return ", ".join(f"{show_millis(time)} in {domain} time" for domain, time in timers)


def _shown_unread(why: Why) -> str:
    return ", ".join(f"{versions} of {source}" for source, versions in why.unread_versions.items() if versions)


def _shown_wait(why: Why) -> str:
    return str(why.waits_for) if any(window.reason.because is not None for window in why.windows) else ""


def _shown_dropping(why: Why) -> str:
    if not why.dropping:
        return ""
    return f"of {', '.join(why.dropping)}: they don't move the watermark, unless watermark_from='all'"


def _shown_last_fired(why: Why) -> str:
    if not why.of_key:
        return ""
    if why.last_fired is not None:
        return str(why.last_fired)
    if why.open_windows or why.late_rows or why.rejected_rows:
        return "never"
    return (
        f"never; no table has a row of it: check that it is spelled as in the data (a null is {NULL}). Events "
        "that `where` drops, that give no result, or that were pruned or forgotten leave no row"
    )


def _shown_rejected(why: Why) -> str:
    whose = " of the key" if why.of_key else ""
    return f"{why.rejected_rows}{whose}, in table {rejects.NAME} with their reasons" if why.rejected_rows else ""


def _shown_late(why: Why) -> str:
    if not why.late_rows:
        return ""
    reopen = next((remedy for remedy in why.remedies if remedy.act is Act.REOPEN), None)
    ways = "; they can't be reopened" if reopen is None else f": {spelled(reopen)} adds them to their windows"
    return f"{why.late_rows}{ways}"


def _shown_trace(why: Why) -> str:
    return ", ".join(f"see {spelled(remedy)}" for remedy in why.remedies if remedy.act is Act.TRACE)


def _role(status: PartitionStatus) -> str:
    if status.idle:
        return "idle: the watermark does not wait for it"
    if not status.aligned:
        return "was idle: the watermark waits for it again once it has caught up"
    if not status.holds:
        return ""
    behind = f" by {show_duration(status.behind)}" if status.behind else ""
    until = "its next event; no idle timeout is set" if status.idle_from is None else show_millis(status.idle_from)
    return f"holds the watermark back{behind}, until {until}"


def _span(window: Waiting) -> str:
    return "global" if window.start is None else f"{show_millis(window.start)} to {show_millis(window.end)}"


@dataclass(frozen=True, slots=True)
class Why(Facts):
    """Open windows, and what each one waits for. Times are int64 epoch milliseconds.

    Args:
        epoch: its newest epoch.
        watermark: the watermark at the end of the epoch.
        processing_time: the clock of the epoch.
        final_through: windows that end by this time can no longer change.
        watermark_lag_ms: time from the watermark to the clock; None if it is unknown.
        next_timers: time of the first timer of any key, by time domain.
        unread_versions: number of versions not yet read, by source.
        partitions: event time of each partition of the source.
        open_windows: number of open windows.
        last_fired: the result of the key that was emitted last; None if there is none, or no key was given.
        late_rows: number of late rows of the key that are in no window; None if it is unknown, or no key was given.
        windows: the open windows that end first.
        waits_for: what the watermark is waiting for.
        rejected_rows: number of rejected rows of the key, or of all if no row has moved the watermark; else None.
        dropping: the sources whose rows that `where` drops don't move the watermark.
        published: newest epoch whose rows are published.
        remedies: what to do about the late rows of the key, and how to see what happened to it.
        ends_by_clock: True if the clock ends the windows.
        of_key: texts of the values of the given key; None for all keys.
        unit: what is open: `windows`, the `elements` of a join, or the `keys` of a process function.
    """

    pipeline: str
    epoch: int
    watermark: Millis
    processing_time: Millis
    final_through: Millis
    watermark_lag_ms: Millis | None
    next_timers: dict[str, Millis | None]
    unread_versions: dict[str, int]
    partitions: tuple[PartitionStatus, ...]
    open_windows: int
    last_fired: LastFired | None
    late_rows: int | None
    windows: tuple[Waiting, ...]
    waits_for: Reason
    rejected_rows: int | None
    dropping: tuple[str, ...]
    published: int
    remedies: tuple[Remedy, ...]
    ends_by_clock: bool = field(repr=False)
    of_key: tuple[str, ...] | None = field(repr=False)
    unit: str
    facts: ClassVar[Columns] = (
        Column("pipeline", TEXT, ""),
        Column("epoch", NUMBER, ""),
        Column("published", NUMBER, text=_shown_published, is_optional=True),
        Column("watermark", WATERMARK, text=_shown_watermark),
        Column("watermark_lag_ms", DURATION, ""),
        Column("processing_time", INSTANT),
        Column("final_through", INSTANT, text=_shown_final, is_optional=True),
        Column("next_timers", OBJECT, text=_shown_timers, is_optional=True),
        Column("unread_versions", OBJECT, text=_shown_unread, is_optional=True),
        Column("waits_for", OBJECT, "what advances the watermark", text=_shown_wait, is_optional=True),
        Column("unit", TEXT, ""),
        Column("open_windows", COUNT, "open", text=lambda it: f"{it.open_windows} {it.unit}"),
        Column("dropping", NAMES, "rows that `where` drops", text=_shown_dropping, is_optional=True),
        Column("last_fired", OBJECT, text=_shown_last_fired, is_optional=True),
        Column("rejected_rows", COUNT, text=_shown_rejected, is_optional=True),
        Column("late_rows", COUNT, "late rows in no window", text=_shown_late, is_optional=True),
        Column("remedies", OBJECT, "what happened to the key", text=_shown_trace, is_optional=True),
    )
    holds: ClassVar[Mapping[str, Columns]] = {
        "windows": (
            Column("key", KEY, is_spread=True),
            Column("start", INSTANT, "window", text=_span),
            Column("end", INSTANT, ""),
            Column("fired", COUNT, "panes"),
            Column("next_event_time_timer", INSTANT, ""),
            Column("next_processing_time_timer", INSTANT, ""),
            Column("missing", DURATION, ""),
            Column("lateness_left", DURATION, is_optional=True),
            Column("reason", OBJECT, "it waits because", text=lambda window: window.reason.words),
        ),
        "partitions": (
            Column("name", TEXT, "source partition", text=lambda status: status.name or "(all)"),
            Column("watermark", WATERMARK),
            Column("last_commit", INSTANT, text=lambda status: show_millis(status.last_commit)),
            Column("quiet", DURATION, "no rows for", text=lambda status: show_duration(status.quiet)),
            Column("idle", YES_NO, ""),
            Column("aligned", YES_NO, ""),
            Column("holds", YES_NO, "role", text=_role),
            Column("behind", DURATION, ""),
            Column("idle_from", INSTANT, ""),
        ),
    }

    @property
    def title(self) -> str:
        return f"{self.pipeline} at epoch {self.epoch}"

    def tables(self) -> Iterator[Table]:
        title = f"{self.unit} ({len(self.windows)} of {self.open_windows}, those that end first)"
        columns = self.holds["windows"]
        if self.unit != "windows":
            columns = tuple(replace(each, head="") if each.name in ("start", "fired") else each for each in columns)
        yield Table("windows", columns, self.windows, title)
        is_shown = bool(self.partitions)
        yield Table("partitions", self.holds["partitions"], self.partitions, "event time", is_shown=is_shown)


def why(config: Config, pipeline: str, key: tuple[str, ...] | None, limit: int | None) -> Why:
    tables = PipelineTables.of(config, pipeline)
    snapshot = require_snapshot(tables)
    manifest, now = snapshot.manifest, system_clock()
    names = tuple(manifest.schemas.key)
    if key and len(key) != len(names):
        raise UsageError(f"--key: the key has {count_of(len(names), 'column')}, {', '.join(names)}")
    value = load_pipeline(config, pipeline)
    compute = value.compute
    lateness = compute.lateness if isinstance(compute, Windows) else 0
    following = _following(manifest, config.entry(pipeline))
    shown, count = open_windows(tables.warehouse, snapshot, lateness, now, key, limit, following)
    late_rows = _late_rows(tables, names, key, value.derived_key) if key else None
    # Without a watermark, no row has been usable so far, for example because of a wrong unit or zone.
    is_unmoved = manifest.watermark == MIN_TIMESTAMP
    return Why(
        pipeline=pipeline,
        epoch=manifest.epoch,
        watermark=manifest.watermark,
        processing_time=manifest.processing_time,
        final_through=manifest.final_through,
        watermark_lag_ms=manifest.watermark_lag,
        next_timers=_next_timers(manifest),
        unread_versions=_unread(tables, manifest, value),
        partitions=tuple(partitions(manifest, now, _timeouts(value))),
        open_windows=count,
        last_fired=_last_fired(tables, names, key) if key else None,
        late_rows=late_rows,
        windows=tuple(shown),
        waits_for=blocked(manifest, now, following),
        rejected_rows=_rejected_rows(tables, names, key, value.derived_key) if key or is_unmoved else None,
        dropping=tuple(
            part.source.table for part in value.inputs if part.where is not None and part.watermark_from == "kept"
        ),
        published=published_epoch(tables),
        remedies=tuple(_remedies(value, manifest, key, late_rows)),
        ends_by_clock=manifest.ends_by_clock,
        of_key=key,
        unit=unit_of(manifest),
    )


def _following(manifest: Manifest, entry: PipelineEntry) -> Interval | None:
    """Return the interval that a backfill runs next, as long as the last one, or None if none is left before `end`."""
    frontier, end = next(iter(manifest.positions.values())).frontier, entry.end
    if frontier is None or (end is not None and frontier >= to_millis(end)):
        return None
    last = manifest.interval or Interval(start=frontier - _DAY, end=frontier)
    following = interval_after(last, frontier, entry.clock)
    return following if end is None else following.model_copy(update={"end": min(following.end, to_millis(end))})


def _remedies(
    pipeline: Pipeline, manifest: Manifest, key: tuple[str, ...] | None, late_rows: int | None
) -> Iterator[Remedy]:
    """Yield what a user can do about the late rows of a key, and how to see what happened to it."""
    if late_rows:
        # It loads what computes windows again, which only late rows need.
        from tidegate.pipelines.correct.request import check_reopenable

        with suppress(Refused):
            check_reopenable(pipeline, manifest)
            yield Remedy(Act.REOPEN, pipeline.name)
    if key and has_history(pipeline):
        yield Remedy(Act.TRACE, pipeline.name, key=key)


def _timeouts(pipeline: Pipeline) -> dict[str, Millis | None]:
    """Return the idle timeout of each input by side: the time without a commit after which a partition is idle."""
    sides: Sequence[str] = [""] if pipeline.right is None else SIDES
    strategies = [input_.watermark or pipeline.watermark for input_ in pipeline.inputs]
    return {side: strategy.idle_timeout for side, strategy in zip(sides, strategies, strict=True)}


def _next_timers(manifest: Manifest) -> dict[str, Millis | None]:
    """Return the time of the first timer of any key by time domain, or None for a domain without timers."""
    event = [shard.next_event_time_timer for shard in manifest.shards]
    processing = [shard.next_processing_time_timer for shard in manifest.shards]
    return {
        domain: min((time for time in times if time is not None), default=None)
        for domain, times in (("event", event), ("processing", processing))
    }


def _late_rows(
    tables: PipelineTables, names: tuple[str, ...], key: tuple[str, ...], derived: tuple[str, ...]
) -> int | None:
    """Count the late rows of a key that are in no window. Return None if table `late` lacks the columns for that."""
    handle = tables.open(late.NAME)
    columns = key_columns(late.NAME, arrow_schema(handle), names, derived)
    if not columns or late.REOPENED not in arrow_schema(handle).names:
        return None
    rows = read_table(tables.warehouse, handle, [*columns, late.REOPENED, "stale"])
    rows = rows.filter(late.is_open(rows))
    return len(rows_of_key(rows, columns, key))


def _rejected_rows(
    tables: PipelineTables, names: tuple[str, ...], key: tuple[str, ...] | None, derived: tuple[str, ...]
) -> int:
    """Count the rejected rows of a key, or all. Return 0 if table `rejects` lacks the columns of the key."""
    handle = tables.open(rejects.NAME)
    if not key:
        return len(read_table(tables.warehouse, handle, ["stale"], where=~pc.field("stale")))
    columns = key_columns(rejects.NAME, arrow_schema(handle), names, derived)
    if not columns:
        return 0
    rows = read_table(tables.warehouse, handle, list(columns), where=~pc.field("stale"))
    return len(rows_of_key(rows, columns, key))


def _unread(tables: PipelineTables, manifest: Manifest, pipeline: Pipeline) -> dict[str, int]:
    """Count the versions of each source that have not been read. A source that no longer exists has no count."""
    counts = {}
    for part in pipeline.inputs:
        if (position := manifest.positions.get(part.source.table)) is not None:
            with suppress(MissingSource):
                counts[part.source.table] = max(0, open_source(part.source, tables.warehouse).head - position.version)
    return counts


def _last_fired(tables: PipelineTables, names: tuple[str, ...], key: tuple[str, ...]) -> LastFired | None:
    """Return the result of a key that was emitted last, or None if there is none."""
    rows = read_table(tables.warehouse, tables.open(results.NAME), where=~pc.field("stale"))
    rows = rows_of_key(rows, names, key)
    if not results.has_panes(rows.schema):
        last = pc.max(rows["epoch"]).as_py()
        return None if last is None else LastFired(last)
    order = [(name, "descending") for name in ("epoch", "window_end", "pane")]
    for row in rows.filter(pc.equal(rows["op"], "+")).sort_by(order).slice(0, 1).to_pylist():
        retractions = rows.filter(
            pc.and_(pc.equal(rows["window_id"], row["window_id"]), pc.equal(rows["op"], "-"))
        ).select(["epoch", "pane"])
        since_then = [
            each["epoch"]
            for each in retractions.to_pylist()
            if (each["epoch"], each["pane"]) >= (row["epoch"], row["pane"])
        ]
        window = {name: row[name] for name in ("window_start", "window_end", "pane", "timing")}
        return LastFired(row["epoch"], **window, retracted=min(since_then, default=None))
    return None

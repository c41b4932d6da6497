"""The reasons why windows have not fired. Starts no JVM."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar

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
from tidegate.pipelines.ledger.tables.keys import NULL, key_columns, rows_of_key, text_of_value
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.answer import Answer, Grid, Shown, span
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.rendering import spelt
from tidegate.pipelines.run.intervals import interval_after
from tidegate.pipelines.sources.base import MissingSource
from tidegate.pipelines.sources.open_source import open_source
from tidegate.pipelines.storage.warehouse import arrow_schema, read_table
from tidegate.windowing.compute import Windows
from tidegate.windowing.sides import SIDES
from tidegate.windowing.time import MIN_TIMESTAMP, Millis, show_duration, show_millis, show_watermark, to_millis

_DAY = 86_400_000
_PARTITIONS = ("source partition", "watermark", "last commit", "no rows for", "")


@dataclass(frozen=True, slots=True)
class Why(Answer):
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
        last_fired: the window of the key that fired last, as text; None if none did, or no key was given.
        late_rows: number of late rows of the key that are in no window; None if it is unknown, or no key was given.
        windows: the open windows that end first.
        waits_for: what the watermark is waiting for.
        rejected_rows: number of rejected rows of the key, or of all if no row has moved the watermark; else None.
        dropping: the sources whose rows that `where` drops don't move the watermark.
        published: newest epoch whose rows are published.
        remedies: what to do about the late rows of the key, and how to see what happened to it.
        ends_by_clock: True if the clock ends the windows.
        key: names of the key columns.
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
    last_fired: str | None
    late_rows: int | None
    windows: tuple[Waiting, ...]
    waits_for: Reason
    rejected_rows: int | None
    dropping: tuple[str, ...]
    published: int
    remedies: tuple[Remedy, ...]
    ends_by_clock: bool = field(repr=False)
    key: tuple[str, ...] = field(repr=False)
    of_key: tuple[str, ...] | None = field(repr=False)
    unit: str = field(repr=False)
    main: ClassVar[str] = "windows"
    for_people = ("ends_by_clock", "key", "of_key", "unit")

    def shown(self) -> Iterator[Shown]:
        remarks = [*self._of_time(), *self._of_inputs(), *(self._of_key() if self.of_key else ()), *self._of_rows()]
        yield Grid(f"{self.pipeline} at epoch {self.epoch}", ("", ""), remarks)
        if self.partitions:
            yield Grid("event time", _PARTITIONS, [_partition(status) for status in self.partitions])
        closing = any(window.lateness_left is not None for window in self.windows)
        of_windows = self.unit == "windows"
        yield Grid(
            f"{self.unit} ({len(self.windows)} of {self.open_windows}, those that end first)",
            [
                *self.key,
                *(("window", "panes") if of_windows else ()),
                *(["lateness left"] if closing else []),
                "it waits because",
            ],
            [
                [
                    *map(text_of_value, window.key.values()),
                    *([_span(window), window.fired] if of_windows else []),
                    *([show_duration(window.lateness_left)] if closing else []),
                    window.reason.words,
                ]
                for window in self.windows
            ],
        )

    def _of_time(self) -> Iterator[tuple[str, object]]:
        if self.published < self.epoch:
            yield "published", f"up to epoch {self.published}: the next run publishes epoch {self.epoch}"
        lag = self.watermark_lag_ms
        behind = "" if lag is None else f", {show_duration(lag)} behind the clock"
        yield "watermark", show_watermark(self.watermark) + behind
        yield "processing time", show_millis(self.processing_time)
        if self.ends_by_clock:
            yield "windows are final through", show_millis(self.final_through)
        for domain, time in self.next_timers.items():
            if time is not None:
                yield f"next timer in {domain} time", show_millis(time)

    def _of_inputs(self) -> Iterator[tuple[str, object]]:
        for source, versions in self.unread_versions.items():
            if versions:
                yield f"versions of {source} not yet read", versions
        if any(window.reason.because is not None for window in self.windows):
            yield "what advances the watermark", str(self.waits_for)
        yield f"open {self.unit}", self.open_windows
        for source in self.dropping:
            yield f"rows of {source} that `where` drops", "don't move the watermark, unless watermark_from='all'"

    def _of_key(self) -> Iterator[tuple[str, object]]:
        if not (self.open_windows or self.last_fired or self.late_rows or self.rejected_rows):
            unseen = (
                f"no table has a row of it: check that it is spelt as in the data (a null is {NULL}). Events that "
                "`where` drops, that give no result, or that were pruned or forgotten leave no row"
            )
            yield "the key", unseen
        yield "last fired", self.last_fired or "never"
        for remedy in self.remedies:
            if remedy.act is Act.TRACE:
                yield "what happened to the key", f"see {spelt(remedy)}"

    def _of_rows(self) -> Iterator[tuple[str, object]]:
        if self.rejected_rows:
            whose = " of the key" if self.of_key else ""
            yield f"rejected rows{whose}", f"{self.rejected_rows}, in table {rejects.NAME} with their reasons"
        if self.late_rows:
            reopen = next((remedy for remedy in self.remedies if remedy.act is Act.REOPEN), None)
            ways = "; they can't be reopened" if reopen is None else f": {spelt(reopen)} adds them to their windows"
            yield "late rows that are in no window", f"{self.late_rows}{ways}"


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
        key=names,
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


def _last_fired(tables: PipelineTables, names: tuple[str, ...], key: tuple[str, ...]) -> str | None:
    """Describe the window of a key that fired last, or return None if none has fired."""
    rows = read_table(tables.warehouse, tables.open(results.NAME), where=~pc.field("stale"))
    rows = rows_of_key(rows, names, key)
    if not results.has_panes(rows.schema):
        last = pc.max(rows["epoch"]).as_py()
        return None if last is None else f"a result, in epoch {last}"
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
        retracted = min(since_then, default=None)
        since = "" if retracted is None else f", retracted in epoch {retracted}"
        return f"{span(row)}, pane {row['pane']} ({row['timing']}), in epoch {row['epoch']}{since}"
    return None


def _partition(status: PartitionStatus) -> tuple[Any, ...]:
    return (
        status.name or "(all)",
        show_watermark(status.watermark),
        show_millis(status.last_commit),
        show_duration(status.quiet),
        _role(status),
    )


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

"""The snapshots of a pipeline: listing, showing, comparing and checking them, and restoring one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tidegate.pipelines.ask.contents import Change, Difference, key_group_counts, window_rows
from tidegate.pipelines.ask.contents import checksums as sums_of
from tidegate.pipelines.ask.contents import compare as compare_snapshots
from tidegate.pipelines.ask.waiting import unit_of
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.names import count_of
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.epoch.open_input import bind_to_source
from tidegate.pipelines.ledger.host import system_clock
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.compatibility import check_left_behind
from tidegate.pipelines.ledger.snapshots.compatibility import compare as compare_code
from tidegate.pipelines.ledger.snapshots.head import list_snapshots, no_snapshot_yet, state_rows
from tidegate.pipelines.ledger.snapshots.lineages import restorable
from tidegate.pipelines.ledger.snapshots.restore import restore as run
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables.keys import text_of_value
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.answer import Answer, Grid, Shown, cell, rows_of, span
from tidegate.pipelines.project.savepoints import place_of
from tidegate.pipelines.storage.warehouse import active_files
from tidegate.windowing.operators.joins import WINDOW_JOIN
from tidegate.windowing.state.rows import BUCKET, HELD
from tidegate.windowing.time import show_millis, show_watermark

_TIMERS = ("event_time_timers", "processing_time_timers")
_WITHOUT_WINDOWS = ("user_state", "side", "left", "right")
"""Columns of the state that process functions and joins keep."""


@dataclass(frozen=True, slots=True)
class Snapshots(Answer):
    """The snapshots that can be restored, newest first.

    Args:
        snapshots: for each snapshot, the version of table `state`, its time, the fields of its manifest, and
            `restorable`, which is False if results of an abandoned lineage are no longer retained.
        never_run: a note if the pipeline has never run; otherwise None.
    """

    pipeline: str
    snapshots: tuple[dict[str, Any], ...]
    never_run: str | None = None

    def to_dict(self) -> list[dict[str, Any]]:
        return list(self.snapshots)

    def shown(self) -> Iterator[Shown]:
        columns = ("version", "epoch", "parent", "timeline", "kind", "watermark", "committed", "restorable")
        rows = [
            (
                *(each[name] for name in columns[:5]),
                show_watermark(each["watermark"]),
                show_millis(each["committed_at"]),
                "yes" if each["restorable"] else "no",
            )
            for each in self.snapshots
        ]
        yield Grid(f"snapshots of {self.pipeline}", columns, rows, columns[:4])


def snapshot_list(config: Config, pipeline: str) -> Snapshots:
    tables = PipelineTables.of(config, pipeline)
    entries = list_snapshots(tables)
    can = restorable(tables, entries)
    return Snapshots(
        pipeline,
        tuple(
            {
                "version": entry.version,
                "committed_at": entry.committed_at,
                **entry.manifest,
                "restorable": can[entry.epoch],
            }
            for entry in entries
        ),
        None if tables.exist else str(no_snapshot_yet(tables)),
    )


@dataclass(frozen=True, slots=True)
class SnapshotContent(Answer):
    """The content of a snapshot.

    Args:
        version: version of table `state`.
        manifest: its manifest.
        windows: the first rows of its windows and window slices, or of the keys and elements that it holds instead of
            windows.
        total: number of all such rows.
        key_groups: for each key group, the numbers of windows and timers, and the checksum if requested.
        rows: largest number of rows that tables show.
    """

    pipeline: str
    version: int
    manifest: Manifest
    windows: pa.Table
    total: int
    key_groups: tuple[dict[str, Any], ...]
    rows: int

    def to_arrow(self) -> pa.Table:
        """Return the windows as an Arrow table."""
        return self.windows

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "manifest": self.manifest.model_dump(),
            "windows": rows_of(self.windows),
            "key_groups": list(self.key_groups),
        }

    def shown(self) -> Iterator[Shown]:
        manifest, shown = self.manifest, rows_of(self.windows)
        counts = {_unit_of_rows(manifest): sum(shard.rows for shard in manifest.shards)}
        if unit_of(manifest) == "windows":
            counts["windows"] = manifest.counters["open_windows"]
        facts = [
            ("epoch", f"{manifest.epoch} (parent {manifest.parent}, timeline {manifest.timeline})"),
            ("table version", self.version),
            ("made by", f"{manifest.kind} in {manifest.order} order, tidegate {manifest.library_version}"),
            ("watermark", show_watermark(manifest.watermark)),
            ("processing time", show_millis(manifest.processing_time)),
            *((f"position in {source}", _position(at)) for source, at in manifest.positions.items()),
            ("shards", f"{len(manifest.shards)} over {manifest.max_parallelism} key groups"),
            *counts.items(),
            ("stale intervals", len(manifest.stale)),
            ("fingerprint", manifest.fingerprint),
        ]
        yield Grid(f"snapshot of {self.pipeline}", ("", ""), facts)
        yield ""
        yield _windows(f"{_unit_of_rows(manifest)} ({len(shown)} of {self.total})", shown, tuple(manifest.schemas.key))
        yield ""
        has_sums = any("checksum" in group for group in self.key_groups)
        groups = [tuple(group.values()) for group in self.key_groups[: self.rows]]
        unit = "windows" if unit_of(manifest) == "windows" else _unit_of_rows(manifest)
        columns = ("key group", unit, "event-time timers", "processing-time timers")
        yield Grid("key groups", (*columns, "checksum") if has_sums else columns, groups, columns)


def snapshot_show(
    config: Config, pipeline: str, target: str, rows: int, key_group: int | None, checksums: bool
) -> SnapshotContent:
    tables = PipelineTables.of(config, pipeline)
    snapshot = find_snapshot(tables, target)
    windows = window_rows(tables, snapshot, key_group)
    groups = key_group_counts(windows, tuple(snapshot.manifest.schemas.key))
    if checksums:
        sums = sums_of(state_rows(tables.warehouse, snapshot))
        for group in groups:
            group["checksum"] = sums[group["key_group"]]
    return SnapshotContent(
        pipeline, snapshot.version, snapshot.manifest, windows.slice(0, rows), len(windows), tuple(groups), rows
    )


_SHOWN = {"came": "added", "went": "removed", "changed": "changed"}
"""Words for people; the keys are promised names in the JSON."""


@dataclass(frozen=True, slots=True)
class SnapshotDiff(Answer):
    """The differences between two snapshots.

    Args:
        before: manifest of the first snapshot.
        after: manifest of the second snapshot.
        difference: windows and timers that were added, removed or changed.
        limit: largest number of each kind to show and to include in `to_dict`; None for all.
    """

    pipeline: str
    before: Manifest
    after: Manifest
    difference: Difference
    limit: int | None

    def to_dict(self) -> dict[str, Any]:
        difference, limit, key = self.difference, self.limit, tuple(self.after.schemas.key)
        return {
            "pipeline": self.pipeline,
            "from": self.before.short(),
            "to": self.after.short(),
            "counts": self._counts(),
            "came": difference.came[:limit],
            "went": difference.went[:limit],
            "changed": [
                {"before": change.before, "after": change.after, "columns": list(change.columns)}
                for change in difference.changed[:limit]
            ],
            "timers": [
                {"change": change, **{name: timer.row[name] for name in key}, "domain": timer.domain, "at": timer.at}
                for change, timers in (("came", difference.timers_came), ("went", difference.timers_went))
                for timer in timers[:limit]
            ],
        }

    def shown(self) -> Iterator[Shown]:
        difference, limit, key = self.difference, self.limit, tuple(self.after.schemas.key)
        counts = {
            kind: ", ".join(f"{n} {_SHOWN[change]}" for change, n in each.items())
            for kind, each in self._counts().items()
        }
        yield " to ".join(
            f"epoch {each.epoch} (watermark {show_watermark(each.watermark)})" for each in (self.before, self.after)
        )
        windows = [
            *(("came", row, "") for row in difference.came[:limit]),
            *(("went", row, "") for row in difference.went[:limit]),
            *(("changed", change.after, _changes(change)) for change in difference.changed[:limit]),
        ]
        yield Grid(
            f"{_unit_of_rows(self.after)}: {counts['windows']}",
            ("", *key, "window", "what"),
            [
                (_SHOWN[change], *(text_of_value(row[name]) for name in key), span(row), what)
                for change, row, what in windows
            ],
        )
        yield Grid(
            f"timers: {counts['timers']}",
            ("", *key, "window", "in", "at"),
            [
                (
                    _SHOWN[change],
                    *(text_of_value(timer.row[name]) for name in key),
                    span(timer.row),
                    timer.domain,
                    show_millis(timer.at),
                )
                for change, timers in (("came", difference.timers_came), ("went", difference.timers_went))
                for timer in timers[:limit]
            ],
        )

    def _counts(self) -> dict[str, dict[str, int]]:
        difference = self.difference
        return {
            "windows": {"came": len(difference.came), "went": len(difference.went), "changed": len(difference.changed)},
            "timers": {"came": len(difference.timers_came), "went": len(difference.timers_went)},
        }


def snapshot_diff(config: Config, pipeline: str, first: str, second: str, limit: int | None) -> SnapshotDiff:
    tables = PipelineTables.of(config, pipeline)
    before, after = find_snapshot(tables, first), find_snapshot(tables, second)
    difference = compare_snapshots(tables.warehouse, before, after)
    return SnapshotDiff(pipeline, before.manifest, after.manifest, difference, limit)


@dataclass(frozen=True, slots=True)
class SnapshotCheck(Answer):
    """The result of checking that the current code can continue from a snapshot.

    Args:
        epoch: epoch of the snapshot; None for a start at the beginning of the source.
        compatible: True.
        same_code: True if the code computes the same results as the code of the snapshot.
        migrations: the changes that the next epoch makes to the state.
        notes: further remarks.
    """

    pipeline: str
    epoch: int | None
    compatible: bool
    same_code: bool
    migrations: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    for_people = ("notes",)

    def shown(self) -> Iterator[Shown]:
        if self.epoch is None:
            yield f"{self.pipeline} can start at the beginning of its source"
            return
        message = (
            "the code computes the same results"
            if self.same_code
            else "the code now computes different results: open windows keep their contents, and rerunning an "
            "interval recomputes it"
        )
        migrates = f"; the next epoch migrates the state: {', '.join(self.migrations)}" if self.migrations else ""
        notes = "".join(f"; {note}" for note in self.notes)
        yield f"{self.pipeline} can continue from epoch {self.epoch}: {message}{migrates}{notes}"


def snapshot_check(config: Config, pipeline: str, target: str) -> SnapshotCheck:
    value = load_pipeline(config, pipeline)
    tables = PipelineTables.of(config, pipeline)
    manifest = None if target == "none" else find_snapshot(tables, target).manifest
    bound = bind_to_source(config, value)
    if manifest is None:
        return SnapshotCheck(pipeline, None, True, False)
    comparison = compare_code(bound, manifest)
    comparison.check(pipeline, manifest.epoch)
    check_left_behind(tables, bound, manifest)
    same = bound.fingerprint == manifest.fingerprint
    return SnapshotCheck(
        pipeline, manifest.epoch, True, same, tuple(comparison.migrations), tuple(map(str, comparison.notes))
    )


def _unit_of_rows(manifest: Manifest) -> str:
    """Return a noun for the rows of a snapshot; a window of slices or of a join may have several."""
    is_one_each = not manifest.slices and manifest.schemas.namespace not in (BUCKET, WINDOW_JOIN)
    return unit_of(manifest) if is_one_each else "rows of the state"


def _position(position: Position) -> str:
    """Return a position as text. Only a backfill in event order reads a version partially, up to an event time."""
    taken = "" if position.frontier is None else f", event time before {show_millis(position.frontier)}"
    return f"version {position.version}{taken}"


def _changes(change: Change) -> str:
    shown = [
        name for name in change.columns if name.startswith("acc_") or name in ("window_start", "window_end", "pane")
    ]
    return ", ".join(
        f"{name.removeprefix('acc_')} {_shown(change.before.get(name))} -> {_shown(change.after[name])}"
        for name in shown
    ) or ", ".join(change.columns)


def _shown(value: object) -> object:
    return "null" if value is None else cell(value)


def _windows(title: str, rows: list[dict[str, Any]], key: tuple[str, ...]) -> Grid:
    # A key may be named like a state column of another kind of pipeline.
    of_state = [name for name in (rows[0] if rows else {}) if name not in key]
    contents = [name for name in of_state if name.startswith("acc_") or name in _WITHOUT_WINDOWS]
    waits = [HELD] if HELD in of_state else []
    shown = [name.removeprefix("acc_") for name in contents]
    names = [*key, "window", "timers", *waits, *shown, "panes", "key group"]
    return Grid(
        title,
        names,
        [
            [
                *(text_of_value(row[name]) for name in key),
                span(row),
                ", ".join(show_millis(time) for name in _TIMERS for time in row.get(name) or ()),
                *(_held(row[name]) for name in waits),
                *(cell(row[name]) for name in contents),
                row["pane"],
                row["key_group"],
            ]
            for row in rows
        ],
    )


def _held(times: list[int] | None) -> str:
    """Describe the elements of a key that wait for the watermark."""
    return f"{len(times)} from {show_millis(times[0])} on" if times else ""


@dataclass(frozen=True, slots=True)
class Restored(Answer):
    """The outcome of a restore.

    Args:
        manifest: manifest of the newest snapshot.
        removed: number of rows of table results that were removed, because they were published after the snapshot.
    """

    manifest: Manifest
    removed: int = 0

    def to_dict(self) -> dict[str, Any]:
        return {**self.manifest.short(), "removed": self.removed}

    def shown(self) -> Iterator[Shown]:
        manifest = self.manifest
        if manifest.kind == "restore" and manifest.parent is not None:
            yield (
                f"{manifest.pipeline} is back at the snapshot of epoch {manifest.parent}, now epoch {manifest.epoch} "
                f"on timeline {manifest.timeline}; watermark {show_watermark(manifest.watermark)}"
            )
            if self.removed:
                yield f"{count_of(self.removed, 'row')} of table results, published after that snapshot, removed"
        else:
            yield f"epoch {manifest.epoch} is already the newest snapshot of {manifest.pipeline}: nothing to do"


def restore(config: Config, pipeline: str, target: str, at: str | None, keep_stale: bool) -> Restored:
    tables, place = PipelineTables.of(config, pipeline), place_of(config, pipeline, at)
    if not tables.exist:
        # Without tables, the call can only fail, and it should fail before it creates a table for its lease.
        find_snapshot(place, target)
    with Lease(tables, "restore", system_clock):
        snapshot, before = find_snapshot(place, target), _published(tables)
        manifest = run(tables, snapshot, system_clock(), keep_stale)
        return Restored(manifest, max(0, before - _published(tables)))


def _published(tables: PipelineTables) -> int:
    """Return the number of rows of table results, from the table's log."""
    if results.NAME in tables.missing:
        return 0
    return sum(file["num_records"] for file in active_files(tables.open(results.NAME)))

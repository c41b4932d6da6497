"""The snapshots of a pipeline: listing, showing, comparing and checking them, and restoring one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

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
from tidegate.pipelines.observe.report.answer import Facts, Listing
from tidegate.pipelines.observe.report.columns import (
    COUNT,
    INSTANT,
    KEY,
    NAMES,
    NUMBER,
    OBJECT,
    TEXT,
    VALUE,
    WATERMARK,
    YES_NO,
    Column,
    Columns,
    Table,
)
from tidegate.pipelines.observe.report.values import cell, rows_of, span
from tidegate.pipelines.project.savepoints import MANIFEST, place_of
from tidegate.pipelines.storage.warehouse import active_files
from tidegate.windowing.operators.joins import WINDOW_JOIN
from tidegate.windowing.state.rows import BUCKET, HELD
from tidegate.windowing.time import show_millis, show_watermark

_TIMERS = ("event_time_timers", "processing_time_timers")
_WITHOUT_WINDOWS = ("user_state", "side", "left", "right")
"""Columns of the state that process functions and joins keep."""


def _of_manifest(name: str) -> Callable[[Any], object]:
    return lambda row: row.manifest.short()[name]


@dataclass(frozen=True, slots=True)
class Snapshots(Listing):
    """The snapshots that can be restored, newest first.

    Args:
        snapshots: for each snapshot, the version of table `state`, its time, the fields of its manifest, and
            `restorable`, which is False if results of an abandoned lineage are no longer retained.
        never_run: a note if the pipeline has never run; otherwise None.
    """

    pipeline: str
    snapshots: tuple[dict[str, Any], ...]
    never_run: str | None = None

    columns: ClassVar[Columns] = (
        Column("version", NUMBER),
        *MANIFEST,
        Column("committed_at", INSTANT, "committed"),
        Column("restorable", YES_NO),
    )

    def main(self) -> Table:
        return Table("", self.columns, self.snapshots, f"snapshots of {self.pipeline}")


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
class SnapshotContent(Facts):
    """The content of a snapshot.

    Args:
        version: version of table `state`.
        manifest: its manifest.
        windows: the first rows of its windows and window slices, or of the keys and elements that it holds instead of
            windows.
        total: number of all such rows.
        key_groups: for each key group, the numbers of windows and timers, and the checksum if requested.
        most: largest number of rows that tables show.
    """

    pipeline: str
    version: int
    manifest: Manifest
    windows: pa.Table
    total: int
    key_groups: tuple[dict[str, Any], ...]
    most: int

    facts: ClassVar[Columns] = (
        Column("epoch", NUMBER, value=lambda it: it.manifest.epoch, text=lambda it: _lineage(it.manifest)),
        Column("version", NUMBER, "table version"),
        Column("kind", TEXT, "made by", value=lambda it: it.manifest.kind, text=lambda it: _made_by(it.manifest)),
        Column("watermark", WATERMARK, value=lambda it: it.manifest.watermark),
        Column("processing_time", INSTANT, value=lambda it: it.manifest.processing_time),
        Column(
            "positions",
            OBJECT,
            "position",
            value=lambda it: it.manifest.positions,
            text=lambda it: "; ".join(f"in {name}: {_position(at)}" for name, at in it.manifest.positions.items()),
        ),
        Column("shards", COUNT, value=lambda it: len(it.manifest.shards), text=lambda it: _shards(it.manifest)),
        Column("rows", COUNT, "rows of the state", value=lambda it: sum(shard.rows for shard in it.manifest.shards)),
        Column(
            "open_windows",
            COUNT,
            "windows",
            value=lambda it: it.manifest.counters["open_windows"],
            text=lambda it: it.manifest.counters["open_windows"] if unit_of(it.manifest) == "windows" else "",
            is_optional=True,
        ),
        Column("stale", COUNT, "stale intervals", value=lambda it: len(it.manifest.stale)),
        Column("fingerprint", TEXT, value=lambda it: it.manifest.fingerprint),
        Column("manifest", OBJECT, ""),
    )
    holds: ClassVar[Mapping[str, Columns]] = {
        "windows": (),
        "key_groups": (
            Column("key_group", NUMBER),
            Column("windows", COUNT),
            Column("event_time_timers", COUNT, "event-time timers"),
            Column("processing_time_timers", COUNT, "processing-time timers"),
            Column("checksum", TEXT, is_optional=True),
        ),
    }

    @property
    def title(self) -> str:
        return f"snapshot of {self.pipeline}"

    def to_arrow(self) -> pa.Table:
        """Return the windows as an Arrow table."""
        return self.windows

    def tables(self) -> Iterator[Table]:
        rows, manifest = rows_of(self.windows), self.manifest
        title = f"{_unit_of_rows(manifest)} ({len(rows)} of {self.total})"
        yield Table("windows", _state_columns(self.windows.column_names, tuple(manifest.schemas.key)), rows, title)
        unit = "windows" if unit_of(manifest) == "windows" else _unit_of_rows(manifest)
        columns = [replace(each, head=unit) if each.name == "windows" else each for each in self.holds["key_groups"]]
        yield Table("key_groups", tuple(columns), self.key_groups, "key groups", self.most)


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


def _of_row(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda row: row["row"][name]


@dataclass(frozen=True, slots=True)
class SnapshotDiff(Facts):
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

    facts: ClassVar[Columns] = (
        Column("pipeline", TEXT),
        Column("from", OBJECT, value=lambda it: it.before.short()),
        Column("to", OBJECT, value=lambda it: it.after.short()),
        Column("counts", OBJECT, value=lambda it: it.counts()),
    )
    holds: ClassVar[Mapping[str, Columns]] = {
        "windows": (
            Column("change", TEXT),
            Column("key", KEY, is_spread=True),
            Column("window_start", VALUE, "window", text=lambda row: span(row["row"]), value=_of_row("window_start")),
            Column("window_end", VALUE, "", value=_of_row("window_end")),
            Column("columns", NAMES, "what", text=lambda row: row["what"]),
            Column("before", OBJECT, ""),
            Column("after", OBJECT, ""),
        ),
        "timers": (
            Column("change", TEXT),
            Column("key", KEY, is_spread=True),
            Column("window_start", VALUE, "window", text=lambda row: span(row["row"]), value=_of_row("window_start")),
            Column("window_end", VALUE, "", value=_of_row("window_end")),
            Column("domain", TEXT, "in"),
            Column("at", INSTANT),
        ),
    }

    def tables(self) -> Iterator[Table]:
        difference, limit, key = self.difference, self.limit, tuple(self.after.schemas.key)
        counts = {
            kind: ", ".join(f"{number} {change}" for change, number in each.items())
            for kind, each in self.counts().items()
        }

        def placed(change: str, row: dict[str, Any]) -> dict[str, Any]:
            return {"change": change, "key": {name: row[name] for name in key}, "row": row}

        windows = [
            *({**placed("added", row), "after": row, "columns": (), "what": ""} for row in difference.added[:limit]),
            *(
                {**placed("removed", row), "before": row, "columns": (), "what": ""}
                for row in difference.removed[:limit]
            ),
            *(
                {
                    **placed("changed", change.after),
                    "before": change.before,
                    "after": change.after,
                    "columns": change.columns,
                    "what": _changes(change),
                }
                for change in difference.changed[:limit]
            ),
        ]
        yield Table("windows", self.holds["windows"], windows, f"{_unit_of_rows(self.after)}: {counts['windows']}")
        timers = [
            {**placed(change, timer.row), "domain": timer.domain, "at": timer.at}
            for change, of_change in (("added", difference.timers_added), ("removed", difference.timers_removed))
            for timer in of_change[:limit]
        ]
        yield Table("timers", self.holds["timers"], timers, f"timers: {counts['timers']}")

    def lines(self) -> Iterator[str]:
        yield " to ".join(
            f"epoch {each.epoch} (watermark {show_watermark(each.watermark)})" for each in (self.before, self.after)
        )

    def counts(self) -> dict[str, dict[str, int]]:
        """Return the numbers of windows and timers by the kind of change."""
        difference = self.difference
        return {
            "windows": {
                "added": len(difference.added),
                "removed": len(difference.removed),
                "changed": len(difference.changed),
            },
            "timers": {"added": len(difference.timers_added), "removed": len(difference.timers_removed)},
        }


def snapshot_diff(config: Config, pipeline: str, first: str, second: str, limit: int | None) -> SnapshotDiff:
    tables = PipelineTables.of(config, pipeline)
    before, after = find_snapshot(tables, first), find_snapshot(tables, second)
    difference = compare_snapshots(tables.warehouse, before, after)
    return SnapshotDiff(pipeline, before.manifest, after.manifest, difference, limit)


@dataclass(frozen=True, slots=True)
class SnapshotCheck(Facts):
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

    facts: ClassVar[Columns] = (
        Column("pipeline", TEXT),
        Column("epoch", NUMBER),
        Column("compatible", YES_NO),
        Column("same_code", YES_NO),
        Column("migrations", NAMES),
        Column("notes", NAMES),
    )

    def lines(self) -> Iterator[str]:
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


def _lineage(manifest: Manifest) -> str:
    return f"{manifest.epoch} (parent {manifest.parent}, timeline {manifest.timeline})"


def _made_by(manifest: Manifest) -> str:
    return f"{manifest.kind} in {manifest.order} order, tidegate {manifest.library_version}"


def _shards(manifest: Manifest) -> str:
    return f"{len(manifest.shards)} over {manifest.max_parallelism} key groups"


def _state_columns(names: Sequence[str], key: tuple[str, ...]) -> Columns:
    """Return the columns of state rows: those of windows that users see first, the others only for programs."""
    # A key may be named like a state column of another kind of pipeline.
    of_state = [name for name in names if name not in key]
    contents = [name for name in of_state if name.startswith("acc_") or name in _WITHOUT_WINDOWS]
    timers = [name for name in of_state if name in _TIMERS]

    def shown_timers(row: dict[str, Any]) -> str:
        return ", ".join(show_millis(time) for name in timers for time in row.get(name) or ())

    columns = [
        *(Column(name, KEY, name, text=_key_text(name)) for name in key if name in names),
        *(Column(name, VALUE, "window", text=span) for name in of_state if name == "window_start"),
        *(Column(name, INSTANT, "timers", text=shown_timers) for name in timers[:1]),
        *(Column(name, INSTANT, name, text=lambda row: _held(row[HELD])) for name in of_state if name == HELD),
        *(Column(name, VALUE, name.removeprefix("acc_")) for name in contents),
        *(Column(name, COUNT, "panes") for name in of_state if name == "pane"),
        *(Column(name, NUMBER) for name in of_state if name == "key_group"),
    ]
    told = {column.name for column in columns}
    return (*columns, *(Column(name, VALUE, "") for name in of_state if name not in told))


def _key_text(name: str) -> Callable[[dict[str, Any]], str]:
    # A null in a key is shown as it is entered.
    return lambda row: text_of_value(row[name])


def _held(times: list[int] | None) -> str:
    """Describe the elements of a key that wait for the watermark."""
    return f"{len(times)} from {show_millis(times[0])} on" if times else ""


@dataclass(frozen=True, slots=True)
class Restored(Facts):
    """The outcome of a restore.

    Args:
        manifest: manifest of the newest snapshot.
        removed: number of rows of table results that were removed, because they were published after the snapshot.
    """

    manifest: Manifest
    removed: int = 0

    facts: ClassVar[Columns] = (
        *(replace(column, value=_of_manifest(column.name)) for column in MANIFEST),
        Column("removed", COUNT),
    )

    def lines(self) -> Iterator[str]:
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

"""`tidegate snapshot` looks at snapshots. Reads metadata and state rows only; starts no JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
from rich.table import Table

from tidegate.pipelines.cli.screen import Screen, cell, rows_of, span, table, with_screen
from tidegate.pipelines.snapshots.head import list_snapshots
from tidegate.pipelines.snapshots.line import come_back_whole
from tidegate.windowing.state.rows import HELD
from tidegate.windowing.time import show_millis

if TYPE_CHECKING:
    from tidegate.pipelines.manifest import Position
    from tidegate.pipelines.snapshots.diff import Change

_COUNTS = ("key group", "windows", "event-time timers", "processing-time timers")
_TIMERS = ("event_time_timers", "processing_time_timers")


@click.group()
def snapshot() -> None:
    """List snapshots, and look inside one: manifest, timers, merging windows."""


@snapshot.command("list")
@click.argument("pipeline")
@with_screen
def list_(screen: Screen, pipeline: str) -> None:
    """List the snapshots of PIPELINE, the newest first.

    Each can be restored. Where its results are retained in part only, because its line was left and snapshots between
    are gone, `tidegate restore` asks for --give-up-results.
    """
    tables = screen.tables(pipeline)
    screen.tell_if_never_run(tables)
    entries = list_snapshots(tables)
    whole = come_back_whole(tables, entries)
    data = [
        {
            "version": entry.version,
            "committed_at": entry.committed_at,
            **entry.manifest,
            "results": whole[entry.manifest["epoch"]],
        }
        for entry in entries
    ]
    rows = [
        (
            entry.version,
            entry.manifest["epoch"],
            entry.manifest["parent"],
            entry.manifest["timeline"],
            entry.manifest["kind"],
            show_millis(entry.manifest["watermark"]),
            show_millis(entry.committed_at),
            "whole" if whole[entry.manifest["epoch"]] else "in part",
        )
        for entry in entries
    ]
    columns = ("version", "epoch", "parent", "timeline", "kind", "watermark", "committed (UTC)", "results")
    screen.show(data, table(f"snapshots of {pipeline}", columns, rows, right=columns[:4]))


@snapshot.command("show")
@click.argument("pipeline")
@click.argument("target", default="latest")
@click.option("--rows", type=click.IntRange(min=0), default=20, show_default=True, help="How many windows to show.")
@click.option("--key-group", type=click.IntRange(min=0), help="Only windows of this key group.")
@click.option("--checksums", is_flag=True, help="Add a checksum of each key group: equal rows, equal sums.")
@with_screen
def show(screen: Screen, pipeline: str, target: str, rows: int, key_group: int | None, checksums: bool) -> None:
    """Show a snapshot of PIPELINE: manifest, windows with their timers, and counts per key group.

    TARGET is latest (the default), an epoch's number, or savepoint:NAME.
    """
    from tidegate.pipelines.snapshots.contents import checksums as sums_of
    from tidegate.pipelines.snapshots.contents import key_group_counts, state_rows, window_rows
    from tidegate.pipelines.snapshots.find import find_snapshot

    tables = screen.tables(pipeline)
    snapshot = find_snapshot(tables, target)
    manifest = snapshot.manifest
    windows = window_rows(tables, snapshot, key_group)
    groups = key_group_counts(windows)
    if checksums:
        sums = sums_of(state_rows(tables.warehouse, snapshot))
        for group in groups:
            group["checksum"] = sums[group["key_group"]]
    facts = [
        ("epoch", f"{manifest.epoch} (parent {manifest.parent}, timeline {manifest.timeline})"),
        ("table version", snapshot.version),
        ("made by", f"{manifest.kind} in {manifest.order} order, tidegate {manifest.library_version}"),
        ("watermark", show_millis(manifest.watermark)),
        ("processing time", show_millis(manifest.processing_time)),
        *((f"position in {source}", _position(at)) for source, at in manifest.positions.items()),
        ("shards", f"{len(manifest.shards)} over {manifest.max_parallelism} key groups"),
        ("windows", sum(shard.rows for shard in manifest.shards)),
        ("stale intervals", len(manifest.stale)),
        ("fingerprint", manifest.fingerprint),
    ]
    shown = windows.slice(0, rows)
    screen.show(
        {
            "version": snapshot.version,
            "manifest": manifest.model_dump(),
            "windows": rows_of(shown),
            "key_groups": groups,
        },
        table(f"snapshot of {pipeline}", ("", ""), facts),
        "",
        _window_table(f"windows ({len(shown)} of {len(windows)})", rows_of(shown), tuple(manifest.schemas.key)),
        "",
        table(
            "key groups",
            (*_COUNTS, "checksum") if checksums else _COUNTS,
            [tuple(group.values()) for group in groups[:rows]],
            right=_COUNTS,
        ),
    )


@snapshot.command()
@click.argument("pipeline")
@click.argument("first", metavar="ONE")
@click.argument("second", metavar="[OTHER]", default="latest")
@click.option(
    "--rows",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="How many of each kind to show; 0 for all.",
)
@with_screen
def diff(screen: Screen, pipeline: str, first: str, second: str, rows: int) -> None:
    """Show what came, went and changed between snapshots ONE and OTHER of PIPELINE: windows and timers.

    Each is latest, an epoch's number, or savepoint:NAME.
    """
    from tidegate.pipelines.snapshots.diff import compare
    from tidegate.pipelines.snapshots.find import find_snapshot

    tables = screen.tables(pipeline)
    before, after = find_snapshot(tables, first), find_snapshot(tables, second)
    changes = compare(tables.warehouse, before, after)
    key = tuple(after.manifest.schemas.key)
    limit = rows or None
    windows = [
        *(("came", row, "") for row in changes.came[:limit]),
        *(("went", row, "") for row in changes.went[:limit]),
        *(("changed", change.after, _changes(change)) for change in changes.changed[:limit]),
    ]
    timers = [
        *(("came", timer) for timer in changes.timers_came[:limit]),
        *(("went", timer) for timer in changes.timers_went[:limit]),
    ]
    counts = {
        "windows": {"came": len(changes.came), "went": len(changes.went), "changed": len(changes.changed)},
        "timers": {"came": len(changes.timers_came), "went": len(changes.timers_went)},
    }
    marks = [(before.manifest.epoch, before.manifest.watermark), (after.manifest.epoch, after.manifest.watermark)]
    screen.show(
        {
            "pipeline": pipeline,
            "from": before.manifest.short(),
            "to": after.manifest.short(),
            "counts": counts,
            "came": changes.came[:limit],
            "went": changes.went[:limit],
            "changed": [
                {"before": change.before, "after": change.after, "columns": change.columns}
                for change in changes.changed[:limit]
            ],
            "timers": [
                {"change": change, **{name: timer.row[name] for name in key}, "domain": timer.domain, "at": timer.at}
                for change, timer in timers
            ],
        },
        " to ".join(f"epoch {epoch} (watermark {show_millis(watermark)})" for epoch, watermark in marks),
        table(
            "windows: " + ", ".join(f"{count} {change}" for change, count in counts["windows"].items()),
            ("", *key, "window (UTC)", "what"),
            [(change, *(row[name] for name in key), span(row), what) for change, row, what in windows],
        ),
        table(
            "timers: " + ", ".join(f"{count} {change}" for change, count in counts["timers"].items()),
            ("", *key, "window (UTC)", "in", "at (UTC)"),
            [
                (change, *(timer.row[name] for name in key), span(timer.row), timer.domain, show_millis(timer.at))
                for change, timer in timers
            ],
        ),
    )


@snapshot.command()
@click.argument("pipeline")
@click.argument("target", default="latest")
@with_screen
def check(screen: Screen, pipeline: str, target: str) -> None:
    """Check that the present code of PIPELINE can continue from a snapshot, and show what the next run migrates.

    If it can't, the command ends with 3 and names each field that differs.

    TARGET is latest (the default), an epoch's number, savepoint:NAME, or none for a start at the beginning of the
    source. Starts Spark only where the pipeline derives columns, whose types Spark alone knows.
    """
    from tidegate.pipelines.definition.load import load_pipeline
    from tidegate.pipelines.epoch.open_input import bind_to_source
    from tidegate.pipelines.errors import Refused
    from tidegate.pipelines.snapshots.compatibility import check_left_behind, compare
    from tidegate.pipelines.snapshots.find import find_snapshot

    config = screen.config()
    value = load_pipeline(config, pipeline)
    tables = screen.tables(pipeline)
    manifest = None if target == "none" else find_snapshot(tables, target).manifest
    bound = bind_to_source(config, value)
    if manifest is None:
        answer: dict[str, Any] = {
            "pipeline": pipeline,
            "epoch": None,
            "compatible": True,
            "same_code": False,
            "migrations": [],
        }
        screen.show(answer, f"{pipeline} can start at the beginning of its source")
        return
    comparison = compare(bound, manifest)
    if comparison.incompatibilities:
        reasons = "; ".join(f"{difference}. {difference.way_out}" for difference in comparison.incompatibilities)
        raise Refused(f"the code of {pipeline} can't continue from epoch {manifest.epoch}: {reasons}")
    check_left_behind(tables, bound, manifest)
    same = bound.fingerprint == manifest.fingerprint
    message = (
        "the code computes the same results"
        if same
        else "the code computes other results from now on: open windows keep their contents, and a backfill computes "
        "an interval again when it is run again"
    )
    migrates = (
        f"; the next epoch migrates the state: {', '.join(comparison.migrations)}" if comparison.migrations else ""
    )
    notes = "".join(f"; {note}" for note in comparison.notes)
    screen.show(
        {
            "pipeline": pipeline,
            "epoch": manifest.epoch,
            "compatible": True,
            "same_code": same,
            "migrations": comparison.migrations,
        },
        f"{pipeline} can continue from epoch {manifest.epoch}: {message}{migrates}{notes}",
    )


def _position(position: Position) -> str:
    """Return a position as text. Only a backfill in event order has read a version up to an event time."""
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


_WITHOUT_WINDOWS = ("user_state", "side", "left", "right")
"""Columns of the state that process functions and joins keep."""


def _window_table(title: str, rows: list[dict[str, Any]], key: tuple[str, ...]) -> Table:
    # A key may have the name of a column that the state of another kind of pipeline has.
    of_state = [name for name in (rows[0] if rows else {}) if name not in key]
    contents = [name for name in of_state if name.startswith("acc_") or name in _WITHOUT_WINDOWS]
    waits = [HELD] if HELD in of_state else []
    shown = [name.removeprefix("acc_") for name in contents]
    names = [*key, "window (UTC)", "timers", *waits, *shown, "panes", "key group"]
    return table(
        title,
        names,
        [
            [
                *(row[name] for name in key),
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

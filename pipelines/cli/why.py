"""`tidegate why` shows the reason why a window has not fired. Starts no JVM."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from typing import Any

import click
import pyarrow.compute as pc

from tidegate.pipelines.cli.screen import Screen, span, table, with_screen
from tidegate.pipelines.definition.load import load_pipeline
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.manifest import Manifest
from tidegate.pipelines.reopen.recompute_plan import check_reopenable
from tidegate.pipelines.run.driver import system_clock
from tidegate.pipelines.snapshots.head import require_snapshot
from tidegate.pipelines.snapshots.publish import key_columns
from tidegate.pipelines.snapshots.waiting import PartitionStatus, Waiting, open_windows, partitions
from tidegate.pipelines.sources.base import MissingSource
from tidegate.pipelines.sources.open_source import open_source
from tidegate.pipelines.storage import arrow_schema, read_table
from tidegate.pipelines.tables import late, results
from tidegate.pipelines.tables.keys import rows_of_key
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.compute import IntervalJoin, Windows
from tidegate.windowing.operators.two_inputs import SIDES
from tidegate.windowing.time import Millis, show_duration, show_millis

_OF_WINDOWS = ("window (UTC)", "panes")
_LEFT = "lateness left"
_PARTITIONS = ("source partition", "watermark", "last commit (UTC)", "silent for", "")


@click.command()
@click.argument("pipeline")
@click.option(
    "--key",
    multiple=True,
    help="Only windows of this key; give the option once for each key column, in order; \\N is a null.",
)
@click.option(
    "--limit", type=click.IntRange(min=0), default=10, show_default=True, help="How many windows to show; 0 for all."
)
@with_screen
def why(screen: Screen, pipeline: str, key: tuple[str, ...], limit: int) -> None:
    """Show why windows of PIPELINE have not fired: what each waits for, and which partition holds event time back."""
    tables = screen.tables(pipeline)
    snapshot = require_snapshot(tables)
    manifest, now = snapshot.manifest, system_clock()
    names = tuple(manifest.schemas.key)
    if key and len(key) != len(names):
        raise click.BadParameter(f"the key has {len(names)} column(s), {', '.join(names)}", param_hint="--key")
    value = load_pipeline(screen.config(), pipeline)
    compute = value.compute
    lateness = compute.lateness if isinstance(compute, Windows) else 0
    what = "windows" if isinstance(compute, Windows) else "elements" if isinstance(compute, IntervalJoin) else "keys"
    shown, count = open_windows(tables.warehouse, snapshot, lateness, now, key or None, limit or None)
    statuses = partitions(manifest, now, _timeouts(value))
    timers = _next_timers(manifest)
    unread = _unread(tables, manifest, value)
    fired = _last_fired(tables, names, key) if key else None
    late_rows = _late_rows(tables, names, key) if key else None
    lag = manifest.watermark_lag
    facts = [
        (
            "watermark",
            show_millis(manifest.watermark) + ("" if lag is None else f", {show_duration(lag)} behind the clock"),
        ),
        ("processing time", show_millis(manifest.processing_time)),
        *([("windows are final through", show_millis(manifest.final_through))] if manifest.ends_by_clock else []),
        *((f"next timer in {domain} time", show_millis(time)) for domain, time in timers.items() if time is not None),
        *((f"versions of {source} not yet read", versions) for source, versions in unread.items() if versions),
        (f"open {what}", count),
        *(
            (
                f"rows of {input_.source.table} that `where` drops",
                "don't move the watermark, unless watermark_from='all'",
            )
            for input_ in value.inputs
            if input_.where is not None and input_.watermark_from == "kept"
        ),
    ]
    if key:
        facts.append(("last fired", fired or "never"))
    if late_rows:
        facts.append(("late rows that no window holds", f"{late_rows}{_way_in(value)}"))
    closing = any(window.lateness_left is not None for window in shown)
    screen.show(
        {
            "pipeline": pipeline,
            "epoch": manifest.epoch,
            "watermark": manifest.watermark,
            "processing_time": manifest.processing_time,
            "final_through": manifest.final_through,
            "watermark_lag_ms": lag,
            "next_timers": timers,
            "unread_versions": unread,
            "partitions": [asdict(status) for status in statuses],
            "open_windows": count,
            "last_fired": fired,
            "late_rows": late_rows,
            "windows": [asdict(window) for window in shown],
        },
        table(f"{pipeline} at epoch {manifest.epoch}", ("", ""), facts),
        *([table("event time", _PARTITIONS, map(_partition, statuses))] if statuses else []),
        table(
            f"{what} ({len(shown)} of {count}, those that end first)",
            [*names, *(_OF_WINDOWS if what == "windows" else ()), *([_LEFT] if closing else []), "it waits because"],
            [
                [
                    *window.key.values(),
                    *([_span(window), window.fired] if what == "windows" else []),
                    *([_left(window)] if closing else []),
                    window.reason,
                ]
                for window in shown
            ],
        ),
    )


def _way_in(pipeline: Pipeline) -> str:
    try:
        check_reopenable(pipeline)
    except Refused:
        return f"; they can't be reopened (`tidegate late reopen {pipeline.name}` gives the reason)"
    return f": `tidegate late reopen {pipeline.name}` adds them to their windows"


def _timeouts(pipeline: Pipeline) -> dict[str, Millis | None]:
    """Return the idle timeout of each input by side: the time without a commit after which a partition is idle."""
    sides = [""] if pipeline.right is None else SIDES
    strategies = [input_.watermark or pipeline.watermark for input_ in pipeline.inputs]
    return {side: strategy.idle_timeout for side, strategy in zip(sides, strategies, strict=True)}


def _next_timers(manifest: Manifest) -> dict[str, Millis | None]:
    """Return the time of the first timer of any key, by time domain; None for a domain without timers."""
    event = [shard.next_event_time_timer for shard in manifest.shards]
    processing = [shard.next_processing_time_timer for shard in manifest.shards]
    return {
        domain: min((time for time in times if time is not None), default=None)
        for domain, times in (("event", event), ("processing", processing))
    }


def _late_rows(tables: PipelineTables, names: tuple[str, ...], key: tuple[str, ...]) -> int | None:
    """Count the late rows of a key that are in no window; None if table `late` lacks the columns to tell."""
    handle = tables.open(late.NAME)
    columns = key_columns(late.NAME, arrow_schema(handle), names)
    if not columns or late.REOPENED not in arrow_schema(handle).names:
        return None
    rows = read_table(tables.warehouse, handle, [*columns, late.REOPENED, "stale"])
    rows = rows.filter(late.is_open(rows))
    return len(rows_of_key(rows, columns, key))


def _unread(tables: PipelineTables, manifest: Manifest, pipeline: Pipeline) -> dict[str, int]:
    """Count the versions of each source that are not yet read; a source that is gone has no count."""
    counts = {}
    for part in pipeline.inputs:
        if (position := manifest.positions.get(part.source.table)) is not None:
            with suppress(MissingSource):
                counts[part.source.table] = max(0, open_source(part.source, tables.warehouse).head - position.version)
    return counts


def _last_fired(tables: PipelineTables, names: tuple[str, ...], key: tuple[str, ...]) -> str | None:
    """Describe the window of a key that fired last; None if none has fired."""
    rows = read_table(tables.warehouse, tables.open(results.NAME), where=~pc.field("stale"))
    rows = rows_of_key(rows, names, key)
    if not results.has_panes(rows.schema):
        last = pc.max(rows["epoch"]).as_py()
        return None if last is None else f"a result, in epoch {last}"
    for row in rows.sort_by([("epoch", "descending"), ("window_end", "descending")]).slice(0, 1).to_pylist():
        return f"{span(row)}, pane {row['pane']} ({row['timing']}), in epoch {row['epoch']}"
    return None


def _partition(status: PartitionStatus) -> tuple[Any, ...]:
    return (
        status.name or "(all)",
        show_millis(status.watermark),
        show_millis(status.last_commit),
        "-" if status.quiet is None else show_duration(status.quiet),
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
    until = "its next event; no idleness is declared" if status.idle_from is None else show_millis(status.idle_from)
    return f"holds the watermark back{behind}, until {until}"


def _left(window: Waiting) -> str:
    return "-" if window.lateness_left is None else show_duration(window.lateness_left)


def _span(window: Waiting) -> str:
    return "global" if window.start is None else f"{show_millis(window.start)} to {show_millis(window.end)}"

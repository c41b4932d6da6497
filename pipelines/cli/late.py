"""`tidegate late` counts late rows, takes them into their windows, and prunes them. Only `reopen` starts a JVM."""

from __future__ import annotations

from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.cli.screen import Screen, engine_option, table, with_screen
from tidegate.pipelines.cli.stream import ENDS_BY_ITSELF
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.names import listed
from tidegate.pipelines.run.driver import system_clock
from tidegate.pipelines.run.intervals import parse_moment
from tidegate.pipelines.run.lease import Lease
from tidegate.pipelines.snapshots.find import find_snapshot
from tidegate.pipelines.snapshots.head import require_snapshot
from tidegate.pipelines.snapshots.prune import prune as run
from tidegate.pipelines.storage import arrow_schema, read_table, warehouse_of
from tidegate.pipelines.tables import late as late_table
from tidegate.pipelines.tables.counters import RETRACTED
from tidegate.pipelines.tables.groups import distinct
from tidegate.pipelines.tables.key_groups import key_schema
from tidegate.pipelines.tables.keys import key_of_texts
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import MAX_TIMESTAMP, show_duration, to_millis

_QUANTILES = {"median": 0.5, "p95": 0.95, "p99": 0.99}
_MEASURES = ("rows", "open", "windows", *_QUANTILES, "largest", "first epoch", "last epoch")
_AFTER_ALL = MAX_TIMESTAMP // 2


@click.group()
def late() -> None:
    """Late data: rows that came after their windows had closed. Count them, reopen their windows, or prune them."""


@late.command()
@click.argument("pipeline")
@click.option("--by", help="Count by this column of the late table too: epoch, window_start, or a column of the input.")
@with_screen
def summary(screen: Screen, pipeline: str, by: str | None) -> None:
    """Count the late rows of PIPELINE by reason, with how late they were and how many `late reopen` took in.

    The quantiles show the effect of an allowed lateness: with that of column p95, 95 % of these rows would have
    been in time.
    """
    tables = screen.tables(pipeline)
    rows = pa.table({})
    screen.tell_if_never_run(tables)
    if tables.exist:
        rows = read_table(tables.warehouse, tables.open(late_table.NAME), where=~pc.field("stale"))
    if by is not None and len(rows) and by not in rows.column_names:
        raise click.BadParameter(
            f"no column {by!r}; the columns are {listed(rows.column_names, 30)}", param_hint="--by"
        )
    names = ["reason", *([by] if by not in (None, "reason") else [])]
    # A column of the input may be named as one of the counts.
    keys = [f"input_{name}" if name in _MEASURES else name for name in names]
    groups = [_measured(group, part, keys) for group, part in _groups(rows, names)] if len(rows) else []
    columns = [*keys, *_MEASURES]
    waiting = sum(group["open"] for group in groups)
    screen.show(
        {"pipeline": pipeline, "rows": len(rows), "open": waiting, "groups": groups},
        table(
            f"late rows of {pipeline}: {len(rows)}, of which {len(rows) - waiting} are reopened",
            columns,
            [[_shown(column, group[column]) for column in columns] for group in groups],
            columns[len(names) :],
        ),
    )


@late.command()
@click.argument("pipeline")
@click.option(
    "--key",
    multiple=True,
    help="Only late rows of this key; give the option once for each key column, in order; \\N is a null.",
)
@click.option("--start", help="Only late rows whose window begins at this time or later; without a zone it is in UTC.")
@click.option("--end", help="Only late rows whose window begins before this time.")
@click.option("--ask-stream", is_flag=True, hidden=True)
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=0,
    show_default=True,
    help="Seconds to wait for a running stream with --available-now, which ends by itself.",
)
@engine_option
@with_screen
def reopen(
    screen: Screen,
    pipeline: str,
    key: tuple[str, ...],
    start: str | None,
    end: str | None,
    ask_stream: bool,
    patience: float,
) -> None:
    """Take late rows of PIPELINE into their windows after all: all of them, or those of a key or a span of time.

    Only the windows they belong to are computed again from the source; their old panes are retracted and the new
    panes are published, as one epoch. Sessions that such a row joins become one. The same rows are not reopened
    twice.

    A continuous stream holds the lease and reopens late rows by itself, at the times of reopen_schedule in
    tidegate.toml.
    """
    from tidegate.pipelines.definition.load import load_pipeline
    from tidegate.pipelines.reopen.recompute_plan import Selection, check_reopenable

    if ask_stream:
        raise UsageError(
            "--ask-stream: a running stream takes no requests any more. It reopens late rows by itself at the times of "
            f'`reopen_schedule = "0 4 * * *"` in [pipelines.{pipeline}] of tidegate.toml; restart the stream after you '
            "change the file. Or end the stream, and run this command without --ask-stream"
        )
    config = screen.config()
    value = load_pipeline(config, pipeline)
    if key and len(key) != len(value.key):
        raise click.BadParameter(f"the key has {len(value.key)} column(s), {', '.join(value.key)}", param_hint="--key")
    selection = Selection(
        key or None,
        None if start is None else to_millis(parse_moment(start, "--start")),
        None if end is None else to_millis(parse_moment(end, "--end")),
    )
    check_reopenable(value)
    head = require_snapshot(PipelineTables(warehouse_of(config), pipeline))
    if key:
        key_of_texts(key_schema(arrow_schema(head.handle), tuple(head.manifest.schemas.key)), key)
    from tidegate.pipelines.engine.choose import require_engine

    require_engine(config, "a reopening of late rows")
    from tidegate.pipelines.run.corrections import reopen as run_reopen
    from tidegate.pipelines.run.driver import Patience, drive

    wait = Patience(patience, ENDS_BY_ITSELF, screen.tell)
    with (
        screen.console.status(f"{pipeline}: looking for work") as status,
        drive(config, value, "late reopen", wait=wait) as driver,
    ):
        driver.tell = lambda step: status.update(f"{pipeline}: {step}")
        manifest, rows = run_reopen(driver, selection)
    if manifest is None:
        screen.show(
            {"pipeline": pipeline, "epoch": None, "rows": 0}, f"{pipeline} has no such late rows: nothing to do"
        )
        return
    panes, retracted = manifest.counters["fired_late"], manifest.counters[RETRACTED]
    screen.show(
        {"pipeline": pipeline, "epoch": manifest.epoch, "rows": rows, "panes": panes, "withdrawn": retracted},
        f"{pipeline}: epoch {manifest.epoch} reopened late rows: {rows}; panes retracted: "
        f"{retracted}, emitted: {panes}",
    )


@late.command()
@click.argument("pipeline")
@click.option(
    "--days",
    type=click.IntRange(min=0),
    required=True,
    help="Keep late and rejected rows of epochs that are not older than this.",
)
@with_screen
def prune(screen: Screen, pipeline: str, days: int) -> None:
    """Remove late and rejected rows of old epochs of PIPELINE. Their counts stay in table epochs."""
    tables = screen.tables(pipeline)
    find_snapshot(tables, "latest")
    now = system_clock()
    with Lease(tables, "late prune", system_clock):
        counts = run(tables, now - days * 86_400_000, now)
    screen.show(
        {"pipeline": pipeline, "removed": counts},
        ", ".join(f"{n} rows of {name} removed" for name, n in counts.items()),
    )


def _groups(rows: pa.Table, names: list[str]) -> list[tuple[dict[str, Any], pa.Table]]:
    groups = []
    for group in distinct(rows.select(names)).to_pylist():
        chosen = pa.scalar(True)
        for name, value in group.items():
            same = pc.is_null(rows[name]) if value is None else pc.equal(rows[name], pa.scalar(value, rows[name].type))
            chosen = pc.and_(chosen, same)
        groups.append((group, rows.filter(pc.fill_null(chosen, False))))
    return sorted(groups, key=lambda pair: -len(pair[1]))


def _measured(group: dict[str, Any], rows: pa.Table, keys: list[str]) -> dict[str, Any]:
    lateness = rows["lateness_ms"]
    quantiles = pc.quantile(lateness, q=list(_QUANTILES.values()), interpolation="higher").to_pylist()
    spans = distinct(rows.select(["window_start", "window_end"]))
    return {
        **dict(zip(keys, group.values(), strict=True)),
        "rows": len(rows),
        "open": pc.sum(late_table.is_open(rows)).as_py() if late_table.REOPENED in rows.column_names else len(rows),
        "windows": len(spans),
        **dict(zip(_QUANTILES, quantiles, strict=True)),
        "largest": pc.max(lateness).as_py(),
        "first epoch": pc.min(rows["epoch"]).as_py(),
        "last epoch": pc.max(rows["epoch"]).as_py(),
    }


def _shown(column: str, value: Any) -> object:
    if column not in (*_QUANTILES, "largest") or value is None:
        return value
    # The watermark after the end of input is no moment, so a lateness behind it is no length of time.
    return show_duration(value) if value < _AFTER_ALL else "after the end of input"

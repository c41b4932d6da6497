"""`tidegate results` shows the windows of a pipeline, or the results of its function or join. Starts no JVM."""

from __future__ import annotations

import logging
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import click
import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.cli.screen import Screen, cell, rows_of, span, table, with_screen
from tidegate.pipelines.names import listed
from tidegate.pipelines.report.plain_text import plain
from tidegate.pipelines.snapshots.head import require_snapshot
from tidegate.pipelines.snapshots.published import final_through, require_published
from tidegate.pipelines.snapshots.set_back import find_change, warning
from tidegate.pipelines.storage import arrow_schema, read_table
from tidegate.pipelines.tables import epochs
from tidegate.pipelines.tables import results as results_table
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.tables.queries import DIALECTS, Dialect, ResultQueries

_log = logging.getLogger(__name__)

_VIEWS = ("final", "latest", "all")


@click.command()
@click.argument("pipeline")
@click.option(
    "--view",
    type=click.Choice(_VIEWS),
    default="final",
    show_default=True,
    help="final: windows that nothing can change; latest: the newest result of each window; all: every pane.",
)
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help="How many to show; 0 for all.")
@click.option("--sort", help="Column to sort by, largest first. Default: by window end or event time, newest first.")
@click.option(
    "--sql",
    is_flag=True,
    help="Print the view as a query, to run or to save as a view.",
)
@click.option(
    "--dialect",
    type=click.Choice(sorted(DIALECTS)),
    help="Engine of --sql, by default spark. Spark, and DuckDB with its extension delta, need no catalog; standard "
    "needs --schema.",
)
@click.option(
    "--schema", help="Schema of the tables in the engine's catalog, such as lake.visits; without it --sql has paths."
)
@click.option(
    "--local",
    metavar="ZONE",
    help="Show times in this zone, such as Europe/Berlin, with the local date on which each window begins.",
)
@with_screen
def results(
    screen: Screen,
    pipeline: str,
    view: str,
    limit: int,
    sort: str | None,
    sql: bool,
    dialect: str | None,
    schema: str | None,
    local: str | None,
) -> None:
    """Show the windows of PIPELINE, or the results of its process function or join."""
    zone = None if local is None else _zone(local)
    if sql and local is not None:
        raise click.BadParameter("--sql prints times as they are stored, in UTC", param_hint="--local")
    if not sql and (dialect is not None or schema is not None):
        raise click.BadParameter(
            "it spells the query: give --sql as well", param_hint="--schema" if dialect is None else "--dialect"
        )
    tables = screen.tables(pipeline)
    head = require_snapshot(tables)
    snapshot = require_published(tables, head)
    if (change := find_change(tables, results_table.NAME)) is not None:
        _log.warning("%s", warning(tables, change))
    key = tuple(snapshot.manifest.schemas.key)
    handle = tables.open(results_table.NAME)
    columns = arrow_schema(handle)
    panes = results_table.has_panes(columns)
    if sql:
        spelling = DIALECTS[dialect or "spark"]
        query = ResultQueries(
            _table(tables, results_table.NAME, spelling, schema),
            _table(tables, epochs.NAME, spelling, schema),
            key,
            tuple(columns.names),
            panes,
            spelling,
            bool(snapshot.manifest.ends_by_clock),
        ).of(view)
        screen.show({"sql": query})
        if not screen.json:
            # The console would break the line.
            click.echo(plain(query))
        return
    # Rows of an epoch that is not yet published to every table are left out.
    rows = read_table(tables.warehouse, handle, where=pc.field("epoch") <= snapshot.manifest.epoch)
    if view != "all":
        rows = results_table.latest(rows, key)
    if view == "final":
        rows = results_table.final(rows, final_through(snapshot, head))
    order = sort or ("window_end" if panes else "event_time")
    if order not in rows.column_names:
        raise click.BadParameter(
            f"no column {order!r}; the columns are {listed(rows.column_names, 30)}", param_hint="--sort"
        )
    rows = rows.sort_by([(order, "descending")])
    shown = rows.slice(0, limit) if limit else rows
    date = "window_date" if panes else "event_date"
    if zone is not None:
        shown = _in_zone(shown, zone, "window_start" if panes else "event_time", date)
    taken = results_table.RESERVED if panes else results_table.ELEMENT_RESERVED
    values = [name for name in shown.column_names if name not in taken and name not in key]
    about = ["epoch"] if view != "all" else ["pane", "timing", "op", "epoch", "stale"] if panes else ["epoch", "stale"]
    if not panes:
        about = ["event_time", "output", *about]
    if zone is not None:
        values.remove(date)
        about = [date, *about]
    screen.show(
        rows_of(shown),
        table(
            f"{view} {'windows' if panes else 'results'} of {pipeline} ({len(shown)} of {len(rows)})",
            [*key, *([f"window ({local or 'UTC'})"] if panes else []), *about, *values],
            [
                [
                    *(row[name] for name in key),
                    *([span(row)] if panes else []),
                    *(cell(row[name]) for name in (*about, *values)),
                ]
                for row in rows_of(shown)
            ],
            [name for name in values if _is_number(shown.schema.field(name).type)],
        ),
    )


def _zone(name: str) -> str:
    try:
        return ZoneInfo(name).key
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise click.BadParameter(
            f"unknown zone {name!r}: give one such as Europe/Berlin", param_hint="--local"
        ) from error


def _in_zone(rows: pa.Table, zone: str, begins: str, date: str) -> pa.Table:
    """Return rows with all times in a zone, and a last column with the local date of one of them."""
    if date in rows.column_names:
        raise click.BadParameter(f"the results have a column {date!r} of their own", param_hint="--local")
    for place, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            local = rows.column(place).cast(pa.timestamp(field.type.unit, zone))
            rows = rows.set_column(place, field.name, local)
    return rows.append_column(date, pc.local_timestamp(rows[begins]).cast(pa.date32()))


def _table(tables: PipelineTables, name: str, dialect: Dialect, schema: str | None) -> str:
    """Return a table in the SQL of an engine, by its path or by its name in a schema."""
    if schema is not None:
        return ".".join(map(dialect.name, (*schema.split("."), name)))
    if dialect.table is None:
        raise click.BadParameter("give --schema: the engine reads tables of its catalog", param_hint="--dialect")
    return dialect.table(tables.path(name))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))

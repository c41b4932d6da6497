"""The results of a pipeline: the windows, or the rows of its process function or join. Starts no JVM.

Its views are also queries. Users may save a query as a view. So it contains no fixed watermark; it reads the newest one
from table `epochs`. The queries use SQL that engines have in common; only names of tables and columns differ.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import epochs
from tidegate.pipelines.definition import results as results_table
from tidegate.pipelines.definition.column_names import free_name
from tidegate.pipelines.definition.columns import quoted
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.names import listed
from tidegate.pipelines.definition.row_sets import sorted_by
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.snapshots.foreign_changes import find_change, refusal_of
from tidegate.pipelines.ledger.snapshots.head import Snapshot, require_snapshot
from tidegate.pipelines.ledger.snapshots.published import final_through, require_published
from tidegate.pipelines.ledger.tables.keys import text_of_value
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.report.answer import Facts, Listing
from tidegate.pipelines.observe.report.columns import KEY, NUMERIC, TEXT, VALUE, Column, Columns, Table
from tidegate.pipelines.observe.report.values import json_text, rows_of, span
from tidegate.pipelines.project.given import Format, View
from tidegate.pipelines.project.where import meets
from tidegate.pipelines.storage.links import replacing
from tidegate.pipelines.storage.warehouse import arrow_schema, read_table, stored_schema

_log = logging.getLogger(__name__)

FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True, slots=True)
class Results(Listing):
    """Rows of a view of table `results`.

    Args:
        view: `final`, `latest`, `windows` or `all`.
        rows: the rows, in order.
        total: number of rows of the view; `rows` are the first of them.
        key: names of the key columns.
        has_panes: True for windows, False for the results of a process function or join.
        zone: the time zone of the rows' times, which then have a column with the local date; None for UTC.
    """

    pipeline: str
    view: View
    rows: pa.Table
    total: int
    key: tuple[str, ...]
    has_panes: bool
    zone: str | None = None

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table."""
        return self.rows

    def write(self, to: str | Path | BinaryIO, format: Format) -> None:  # noqa: A002 - named like the option
        """Write the rows to a file, completely or not at all, or to a stream.

        Args:
            to: the file, which is replaced, or a stream of bytes.
            format: `csv`, `jsonl` (one object per line), `parquet`, or `arrow` (an Arrow file).

        Raises:
            UsageError: a column can't be written as CSV, or the file can't be written.
        """
        if not isinstance(to, str | Path):
            _write(self.rows, to, format)
            return
        beside = f"{to}.{uuid.uuid4().hex}.part"
        try:
            # Mode x only creates a file, so it never follows a link that somebody put there.
            with replacing(str(to), beside), open(beside, "xb") as file:
                _write(self.rows, file, format)
        except OSError as error:
            raise UsageError(f"--to {to}: {error.strerror}") from error

    def main(self) -> Table:
        title = f"{_title(self.view, self.has_panes)} of {self.pipeline} ({len(self.rows)} of {self.total})"
        return Table("", _columns(self), rows_of(self.rows), title)


def results(
    config: Config, pipeline: str, view: View, where: str | None, limit: int | None, sort: str | None, zone: str | None
) -> Results:
    local = None if zone is None else _zone(zone)
    stand = _Stand.of(config, pipeline)
    # Rows of an epoch that is not yet published to every table are left out.
    published = pc.field("epoch") <= stand.snapshot.manifest.epoch
    if view == "windows":
        table = stand.tables.newest_windows()
        rows = read_table(stand.tables.warehouse, table, stored_schema(table).names)
    else:
        rows = read_table(stand.tables.warehouse, stand.tables.open(results_table.NAME), where=published)
    if view in ("final", "latest"):
        rows = results_table.latest(rows, stand.key)
    if view == "final":
        rows = results_table.final(rows, final_through(stand.snapshot, stand.head))
    if where is not None:
        rows = rows.filter(meets(rows, where))
    panes = stand.has_panes
    order = sort or ("window_end" if panes else "event_time")
    if order not in rows.column_names:
        raise UsageError(f"--sort: no column {order!r}; the columns are {listed(rows.column_names, 30)}")
    if pa.types.is_nested(rows.schema.field(order).type):
        raise UsageError(f"--sort {order}: it has several values per row: give a column with one")
    rows = sorted_by(rows, [order], "descending")
    shown = rows if limit is None else rows.slice(0, limit)
    if local is not None:
        shown = _in_zone(shown, local, "window_start" if panes else "event_time", _date_of(panes))
    return Results(pipeline, view, shown, len(rows), stand.key, panes, local)


@dataclass(frozen=True, slots=True)
class Query(Facts):
    """A query for the final windows of a pipeline.

    Args:
        sql: the query, which can be saved as a view.
    """

    pipeline: str
    sql: str

    facts: ClassVar[Columns] = (Column("pipeline", TEXT), Column("sql", TEXT))
    says: ClassVar[str] = "{sql}"
    wraps: ClassVar[bool] = False


def query(config: Config, pipeline: str, dialect: str, schema: str | None) -> Query:
    stand, spelling = _Stand.of(config, pipeline), DIALECTS[dialect]
    final = FinalQuery(
        _table(stand.tables, results_table.NAME, spelling, schema),
        _table(stand.tables, epochs.NAME, spelling, schema),
        stand.key,
        tuple(stand.columns.names),
        stand.has_panes,
        spelling,
    )
    return Query(pipeline, final.text())


@dataclass(frozen=True, slots=True)
class _Stand:
    """The published state of a pipeline: the newest snapshot, and the newest one that every table has."""

    tables: PipelineTables
    head: Snapshot
    snapshot: Snapshot
    columns: pa.Schema

    @classmethod
    def of(cls, config: Config, pipeline: str) -> _Stand:
        tables = PipelineTables.of(config, pipeline)
        head = require_snapshot(tables)
        snapshot = require_published(tables, head)
        if (change := find_change(tables, results_table.NAME)) is not None:
            _log.warning("%s", refusal_of(tables, change))
        return cls(tables, head, snapshot, arrow_schema(tables.open(results_table.NAME)))

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(self.snapshot.manifest.schemas.key)

    @property
    def has_panes(self) -> bool:
        return results_table.has_panes(self.columns)


def _write(rows: pa.Table, to: BinaryIO, kind: Format) -> None:
    """Write rows to a stream of bytes. Only the libraries of the chosen format are imported."""
    if kind == "csv":
        from pyarrow import csv

        if nested := [field.name for field in rows.schema if pa.types.is_nested(field.type)]:
            raise UsageError(f"--format csv: {listed(nested)} has several values per row: give jsonl or parquet")
        if bytes_ := [field.name for field in rows.schema if not _is_text(rows[field.name])]:
            raise UsageError(
                f"--format csv: {listed(bytes_)} has bytes that are not text in UTF-8: give parquet or arrow"
            )
        csv.write_csv(rows, to)
    elif kind == "jsonl":
        for row in rows_of(rows):
            to.write(f"{json_text(row)}\n".encode())
    elif kind == "parquet":
        from pyarrow import parquet

        parquet.write_table(rows, to)
    else:
        with pa.ipc.new_file(to, rows.schema) as writer:
            writer.write_table(rows)


def _is_text(column: pa.ChunkedArray) -> bool:
    """Return False if a column has bytes that are not text in UTF-8."""
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        return True
    try:
        column.cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


def _title(view: View, panes: bool) -> str:
    """Return what a view shows: `final windows`, but `windows` for the table of that name."""
    if not panes:
        return f"{view} results"
    return "windows" if view == "windows" else f"{view} windows"


def _columns(results: Results) -> Columns:
    """Return the columns of rows: those of the table that the view shows first, the others only for programs."""
    panes, key, rows = results.has_panes, results.key, results.rows
    date = _date_of(panes)
    taken = results_table.RESERVED if panes else results_table.ELEMENT_RESERVED
    values = [name for name in rows.column_names if name not in taken and name not in key]
    about = ["epoch"]
    if results.view == "all":
        about = ["pane", "timing", "op", "epoch", "stale"] if panes else ["epoch", "stale"]
    if not panes:
        about = ["event_time", "output", *about]
    if results.zone is not None:
        values.remove(date)
        about = [date, *about]
    shown = [
        *(Column(name, KEY, name, text=_key_text(name)) for name in key),
        *([Column("window_start", VALUE, "window", text=span)] if panes else []),
        *(Column(name, VALUE, name) for name in about),
        *(Column(name, NUMERIC if _is_number(rows.schema.field(name).type) else VALUE, name) for name in values),
    ]
    names = {column.name for column in shown}
    return (*shown, *(Column(name, VALUE, "") for name in rows.column_names if name not in names))


def _key_text(name: str) -> Callable[[dict[str, Any]], str]:
    # A null in a key is shown as it is entered.
    return lambda row: text_of_value(row[name])


def _date_of(panes: bool) -> str:
    return "window_date" if panes else "event_date"


def _zone(name: str) -> str:
    try:
        return ZoneInfo(name).key
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise UsageError(f"--local: unknown zone {name!r}: give one such as Europe/Berlin") from error


def _in_zone(rows: pa.Table, zone: str, begins: str, date: str) -> pa.Table:
    """Return rows with all times in a zone, and a last column with the local date of one of the times."""
    if date in rows.column_names:
        raise UsageError(f"--local: the results already have a column {date!r}")
    for place, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type) and field.type.tz is not None:
            local = rows.column(place).cast(pa.timestamp(field.type.unit, zone))
            rows = rows.set_column(place, field.name, local)
    return rows.append_column(date, pc.local_timestamp(rows[begins]).cast(pa.date32()))


def _table(tables: PipelineTables, name: str, dialect: Dialect, schema: str | None) -> str:
    """Return a table reference in the SQL of an engine, by its path or by its name in a schema."""
    if schema is not None:
        return ".".join(map(dialect.name, (*schema.split("."), name)))
    if dialect.table is None:
        raise UsageError("--dialect: give --schema, because the engine reads tables from its catalog")
    return dialect.table(tables.path(name))


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


_NEWEST, _WATERMARK, _BEFORE = "tidegate_newest", "tidegate_watermark", "tidegate_watermarks"
"""Columns of the subqueries. A query adds `_` to a name that table results already has."""


@dataclass(frozen=True)
class Dialect:
    """The spelling of an engine.

    Args:
        table: returns the table at a path, without a catalog; None if the engine reads only tables of a catalog.
        name: returns the name of a column, or of a part of a table's name, in quotes.
    """

    table: Callable[[str], str] | None
    name: Callable[[str], str]


def _in_double_quotes(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _delta_scan(path: str) -> str:
    return "delta_scan('" + path.replace("'", "''") + "')"


DIALECTS = {
    "spark": Dialect(lambda path: f"delta.{quoted(path)}", quoted),
    "duckdb": Dialect(_delta_scan, _in_double_quotes),
    "standard": Dialect(None, _in_double_quotes),
}
"""Dialects of Spark and Databricks, of DuckDB with its extension delta, and of engines that quote names as in standard
SQL.
"""


@dataclass(frozen=True)
class FinalQuery:
    """The query for the final windows of a pipeline, which users may save as a view.

    Args:
        results: table `results`, as SQL.
        epochs: table `epochs`, as SQL.
        columns: names of the columns of table results.
    """

    results: str
    epochs: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    panes: bool = True
    dialect: Dialect = DIALECTS["spark"]

    def text(self) -> str:
        """Return the query for the windows that no later event can change, as of the newest epoch when it runs."""
        if not self.panes:
            return f"SELECT {self._columns} FROM {self.results} WHERE {self._holds}"
        final_at, timing, watermark = map(self.dialect.name, ("final_at", "timing", "watermark"))
        # Table `epochs` has null before the first watermark and after the end of input. In the second case, an earlier
        # epoch has a watermark, or a pane has fired on time, late, or after a watermark.
        now, before = self._named(_WATERMARK), self._named(_BEFORE)
        has_ended = f"({before} > 0 OR {timing} <> 'early' OR {watermark} IS NOT NULL)"
        is_final = f"({final_at} <= {now} OR ({now} IS NULL AND {has_ended}))"
        return (
            f"SELECT {self._columns} FROM ({self._numbered()}) AS panes CROSS JOIN ({self._event_time()}) AS times "
            f"WHERE {self._is_newest} AND {is_final}"
        )

    def _numbered(self) -> str:
        by = ", ".join(map(self.dialect.name, (*self.key, "window_id")))
        pane, epoch, op = map(self.dialect.name, ("pane", "epoch", "op"))
        # As `results.ORDER`, even where strings are sorted by a locale.
        order = f"{epoch} DESC, {pane} DESC, CASE WHEN {op} = '-' THEN 0 ELSE 1 END"
        number = f"row_number() OVER (PARTITION BY {by} ORDER BY {order})"
        return f"SELECT {self._columns}, {number} AS {self._named(_NEWEST)} FROM {self.results} WHERE {self._holds}"

    def _event_time(self) -> str:
        """Return the query for the time through which the newest epoch that is not stale is final: one row."""
        epoch, watermark, stale = map(self.dialect.name, ("epoch", epochs.FINAL_THROUGH, "stale"))
        numbered = (
            f"SELECT {watermark}, row_number() OVER (ORDER BY {epoch} DESC) AS {self._named(_NEWEST)} "
            f"FROM {self.epochs} WHERE NOT {stale}"
        )
        return (
            f"SELECT max(CASE WHEN {self._named(_NEWEST)} = 1 THEN {watermark} END) AS {self._named(_WATERMARK)}, "
            f"count({watermark}) AS {self._named(_BEFORE)} FROM ({numbered}) AS epochs"
        )

    @property
    def _is_newest(self) -> str:
        return f"{self._named(_NEWEST)} = 1 AND {self.dialect.name('op')} = '+'"

    @property
    def _holds(self) -> str:
        """The condition that a row is not stale, and that every table has its epoch: `epochs` is published last."""
        epoch = self.dialect.name("epoch")
        return f"NOT {self.dialect.name('stale')} AND {epoch} <= (SELECT max({epoch}) FROM {self.epochs})"

    def _named(self, name: str) -> str:
        """Return a name for a column of a subquery that no column of table results has."""
        return free_name(name, {column.casefold() for column in self.columns}, "{}_".format)

    @property
    def _columns(self) -> str:
        return ", ".join(map(self.dialect.name, self.columns))

"""The results of a pipeline: the windows, or the rows of its process function or join. Starts no JVM."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
import pyarrow.compute as pc

from tidegate.pipelines.definition import epochs
from tidegate.pipelines.definition import results as results_table
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.names import listed
from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.snapshots.foreign_changes import described, find_change
from tidegate.pipelines.ledger.snapshots.head import Snapshot, require_snapshot
from tidegate.pipelines.ledger.snapshots.published import final_through, require_published
from tidegate.pipelines.ledger.tables.keys import text_of_value
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.observe.reading.queries import DIALECTS, Dialect, ResultQueries
from tidegate.pipelines.observe.report.answer import Answer, Grid, Shown, cell, json_text, rows_of, span
from tidegate.pipelines.sources.sql.compile import as_condition, compile_expression
from tidegate.pipelines.sources.sql.program import RowFailure, as_array
from tidegate.pipelines.sources.sql.reading import Unproven
from tidegate.pipelines.storage.warehouse import arrow_schema, read_table, stored_schema

_log = logging.getLogger(__name__)

View: TypeAlias = Literal["final", "latest", "windows", "all"]
Format: TypeAlias = Literal["csv", "jsonl", "parquet", "arrow"]
FORMATS: tuple[Format, ...] = get_args(Format)


@dataclass(frozen=True, slots=True)
class Results(Answer):
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

    def to_dict(self) -> list[dict[str, Any]]:
        return rows_of(self.rows)

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
        part = Path(f"{to}.part")
        try:
            with part.open("wb") as file:
                _write(self.rows, file, format)
            part.replace(to)
        except OSError as error:
            raise UsageError(f"--to {to}: {error.strerror}") from error
        finally:
            part.unlink(missing_ok=True)

    def shown(self) -> Iterator[Shown]:
        yield _grid(self)


def results(
    config: Config, pipeline: str, view: View, where: str | None, limit: int | None, sort: str | None, zone: str | None
) -> Results:
    local = None if zone is None else _zone(zone)
    stand = _Stand.of(config, pipeline)
    # Rows of an epoch that is not yet published to every table are left out.
    published = pc.field("epoch") <= stand.snapshot.manifest.epoch
    if view == "windows":
        table = stand.tables.look_windows()
        rows = read_table(stand.tables.warehouse, table, stored_schema(table).names)
    else:
        rows = read_table(stand.tables.warehouse, stand.tables.open(results_table.NAME), where=published)
    if view in ("final", "latest"):
        rows = results_table.latest(rows, stand.key)
    if view == "final":
        rows = results_table.final(rows, final_through(stand.snapshot, stand.head))
    if where is not None:
        rows = _matching(rows, where)
    panes = stand.has_panes
    order = sort or ("window_end" if panes else "event_time")
    if order not in rows.column_names:
        raise UsageError(f"--sort: no column {order!r}; the columns are {listed(rows.column_names, 30)}")
    rows = rows.sort_by([(order, "descending")])
    shown = rows if limit is None else rows.slice(0, limit)
    if local is not None:
        shown = _in_zone(shown, local, "window_start" if panes else "event_time", _date_of(panes))
    return Results(pipeline, view, shown, len(rows), stand.key, panes, local)


def _matching(rows: pa.Table, where: str) -> pa.Table:
    """Return the rows for which a condition is true."""
    try:
        program = as_condition(compile_expression(where, rows.schema))
        batch = rows.combine_chunks().to_batches()
        met = [as_array(program.evaluate(each), each.num_rows) for each in batch]
    except (Unproven, RowFailure, pa.ArrowInvalid) as error:
        columns = listed(rows.column_names, 30)
        raise UsageError(
            f"--where {where!r}: {error}. Give a condition in Spark SQL; the columns are {columns}"
        ) from error
    return rows.filter(pa.chunked_array(met, pa.bool_()))


def results_sql(config: Config, pipeline: str, view: View, dialect: str, schema: str | None) -> str:
    stand, spelling = _Stand.of(config, pipeline), DIALECTS[dialect]
    if view == "windows":
        names = ", ".join(map(spelling.name, arrow_schema(stand.tables.look_windows()).names))
        return f"SELECT {names} FROM {_table(stand.tables, view, spelling, schema)}"
    return ResultQueries(
        _table(stand.tables, results_table.NAME, spelling, schema),
        _table(stand.tables, epochs.NAME, spelling, schema),
        stand.key,
        tuple(stand.columns.names),
        stand.has_panes,
        spelling,
        bool(stand.snapshot.manifest.ends_by_clock),
    ).of(view)


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
            _log.warning("%s", described(tables, change))
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


def _grid(results: Results) -> Grid:
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
    return Grid(
        f"{results.view} {'windows' if panes else 'results'} of {results.pipeline} ({len(rows)} of {results.total})",
        [*key, *([f"window ({results.zone or 'UTC'})"] if panes else []), *about, *values],
        [
            [
                *(text_of_value(row[name]) for name in key),
                *([span(row)] if panes else []),
                *(cell(row[name]) for name in (*about, *values)),
            ]
            for row in rows_of(rows)
        ],
        [name for name in values if _is_number(rows.schema.field(name).type)],
    )


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

"""The views of table `results` as SQL: all rows, the latest result of each window, and the final results.

Users may save a query as a view. So it contains no fixed watermark; it reads the newest one from table `epochs`. The
queries use SQL that engines have in common; only names of tables and columns differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidegate.pipelines.definition.column_names import free_name
from tidegate.pipelines.definition.columns import quoted

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
class ResultQueries:
    """Queries over the tables of one pipeline.

    Args:
        results: table `results`, as SQL.
        epochs: table `epochs`, as SQL.
        columns: names of the columns of table results.
        by_clock: True if the clock ends the windows, False if the watermark does.
    """

    results: str
    epochs: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    panes: bool = True
    dialect: Dialect = DIALECTS["spark"]
    by_clock: bool = False

    def of(self, view: str) -> str:
        """Return the query of a view: `final`, `latest` or `all`."""
        return {"final": self.final, "latest": self.latest, "all": self.all}[view]()

    def all(self) -> str:
        """Return the query for every row."""
        return f"SELECT {self._columns} FROM {self.results} WHERE {self._is_published}"

    def latest(self) -> str:
        """Return the query for the newest pane of each window, without stale rows and retracted windows."""
        if not self.panes:
            return f"SELECT {self._columns} FROM {self.results} WHERE {self._holds}"
        return f"SELECT {self._columns} FROM ({self._numbered()}) AS panes WHERE {self._is_newest}"

    def final(self) -> str:
        """Return the query for the windows that no later event can change, by the newest watermark when it runs."""
        if not self.panes:
            return self.latest()
        final_at, timing, watermark = map(self.dialect.name, ("final_at", "timing", "watermark"))
        # Table `epochs` has null before the first watermark and after the end of input. Only in the second case has an
        # earlier epoch a watermark, and has a pane fired on time, late, or after a watermark.
        now, before = self._named(_WATERMARK), self._named(_BEFORE)
        has_ended = f"({before} > 0 OR {timing} <> 'early' OR {watermark} IS NOT NULL)"
        is_final = f"({final_at} <= {now} OR ({now} IS NULL AND {has_ended}))"
        if self.by_clock:
            is_final = f"{final_at} < {now}"
        return (
            f"SELECT {self._columns} FROM ({self._numbered()}) AS panes CROSS JOIN ({self._event_time()}) AS times "
            f"WHERE {self._is_newest} AND {is_final}"
        )

    def _numbered(self) -> str:
        by = ", ".join(map(self.dialect.name, (*self.key, "window_id")))
        pane, epoch, op = map(self.dialect.name, ("pane", "epoch", "op"))
        # A retraction (op '-') sorts as newer than the pane it retracts, even where strings are sorted by a locale.
        order = f"{pane} DESC, {epoch} DESC, CASE WHEN {op} = '-' THEN 0 ELSE 1 END"
        number = f"row_number() OVER (PARTITION BY {by} ORDER BY {order})"
        return f"SELECT {self._columns}, {number} AS {self._named(_NEWEST)} FROM {self.results} WHERE {self._holds}"

    def _event_time(self) -> str:
        """Return the query for the watermark, or the clock, of the newest epoch that is not stale: one row."""
        time = "processing_time" if self.by_clock else "watermark"
        epoch, watermark, stale = map(self.dialect.name, ("epoch", time, "stale"))
        epochs = (
            f"SELECT {watermark}, row_number() OVER (ORDER BY {epoch} DESC) AS {self._named(_NEWEST)} "
            f"FROM {self.epochs} WHERE NOT {stale}"
        )
        return (
            f"SELECT max(CASE WHEN {self._named(_NEWEST)} = 1 THEN {watermark} END) AS {self._named(_WATERMARK)}, "
            f"count({watermark}) AS {self._named(_BEFORE)} FROM ({epochs}) AS epochs"
        )

    @property
    def _is_newest(self) -> str:
        return f"{self._named(_NEWEST)} = 1 AND {self.dialect.name('op')} = '+'"

    @property
    def _is_published(self) -> str:
        """The condition that every table has the epoch of a row: a driver publishes table `epochs` last."""
        epoch = self.dialect.name("epoch")
        return f"{epoch} <= (SELECT max({epoch}) FROM {self.epochs})"

    @property
    def _holds(self) -> str:
        """The condition that a row is published and not stale."""
        return f"NOT {self.dialect.name('stale')} AND {self._is_published}"

    def _named(self, name: str) -> str:
        """Return a name for a column of a subquery that no column of table results has."""
        return free_name(name, {column.casefold() for column in self.columns}, "{}_".format)

    @property
    def _columns(self) -> str:
        return ", ".join(map(self.dialect.name, self.columns))

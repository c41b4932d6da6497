"""The views of table `results` as SQL: all rows, the latest result of each window, and the final results.

Users may save a query as a view. So it contains no fixed watermark, but reads the newest one from table `epochs`. The
queries use what engines have in common, and differ only in the names of tables and columns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidegate.pipelines.tables.columns import quoted

_NEWEST = "tidegate_newest"
_WATERMARK = "tidegate_watermark"
_BEFORE = "tidegate_watermarks"


@dataclass(frozen=True)
class Dialect:
    """The spelling of an engine.

    Args:
        table: returns the table at a path, which needs no catalog; None if the engine reads tables of a catalog only.
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
"""Spark and Databricks; DuckDB with its extension delta; engines that quote names as the standard of SQL does."""


@dataclass(frozen=True)
class ResultQueries:
    """Queries over the tables of one pipeline.

    Args:
        results: table `results`, as SQL.
        epochs: table `epochs`, as SQL.
        key: names of the key columns.
        columns: names of the columns of table results.
        panes: True if the results are panes of windows.
        dialect: the spelling of the engine.
    """

    results: str
    epochs: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    panes: bool = True
    dialect: Dialect = DIALECTS["spark"]

    def of(self, view: str) -> str:
        """Return the query of a view: `final`, `latest` or `all`."""
        return {"final": self.final, "latest": self.latest, "all": self.all}[view]()

    def all(self) -> str:
        """Return the query for every row."""
        return f"SELECT {self._columns} FROM {self.results}"

    def latest(self) -> str:
        """Return the query for the newest pane of each window, without stale rows and retracted windows."""
        if not self.panes:
            return f"{self.all()} WHERE NOT stale"
        return f"SELECT {self._columns} FROM ({self._numbered()}) AS panes WHERE {_NEWEST} = 1 AND op = '+'"

    def final(self) -> str:
        """Return the query for the windows that no later event can change, by the newest watermark at query time."""
        if not self.panes:
            return self.latest()
        # Table `epochs` has null before the first watermark and after the end of input. Only in the second case an
        # earlier epoch has a watermark; and only in the second case a pane fired on time or late.
        is_final = f"(final_at <= {_WATERMARK} OR ({_WATERMARK} IS NULL AND ({_BEFORE} > 0 OR timing <> 'early')))"
        return (
            f"SELECT {self._columns} FROM ({self._numbered()}) AS panes CROSS JOIN ({self._event_time()}) AS times "
            f"WHERE {_NEWEST} = 1 AND op = '+' AND {is_final}"
        )

    def _numbered(self) -> str:
        by = ", ".join(map(self.dialect.name, (*self.key, "window_id")))
        # A retraction (op '-') of a pane sorts as newer than the pane itself.
        number = f"row_number() OVER (PARTITION BY {by} ORDER BY pane DESC, epoch DESC, op DESC)"
        return f"SELECT {self._columns}, {number} AS {_NEWEST} FROM {self.results} WHERE NOT stale"

    def _event_time(self) -> str:
        """Return the query for the watermark of the newest epoch that is not stale: one row."""
        epochs = (
            "SELECT watermark, row_number() OVER (ORDER BY epoch DESC) AS tidegate_newest "
            f"FROM {self.epochs} WHERE NOT stale"
        )
        return (
            f"SELECT max(CASE WHEN tidegate_newest = 1 THEN watermark END) AS {_WATERMARK}, "
            f"count(watermark) AS {_BEFORE} FROM ({epochs}) AS epochs"
        )

    @property
    def _columns(self) -> str:
        return ", ".join(map(self.dialect.name, self.columns))

"""The views of table `results` as SQL for Spark: all rows, the latest result of each window, and the final results.

Users may save a query as a view. So it contains no fixed watermark, but reads the newest one from table `epochs`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.pipelines.tables.columns import quoted

_NEWEST = "__newest"
_AFTER_ALL = "TIMESTAMP '9999-12-31 23:59:59Z'"
"""Value for times that a TIMESTAMP can't hold: the watermark after the end of input, the end of the global window."""


@dataclass(frozen=True)
class ResultQueries:
    """Queries over the tables of one pipeline. They name tables by path and need no catalog.

    Args:
        results: path of table `results`.
        epochs: path of table `epochs`.
        key: names of the key columns.
        panes: True if the results are panes of windows.
    """

    results: str
    epochs: str
    key: tuple[str, ...]
    panes: bool = True

    def of(self, view: str) -> str:
        """Return the query of a view: `final`, `latest` or `all`."""
        return {"final": self.final, "latest": self.latest, "all": self.all}[view]()

    def all(self) -> str:
        """Return the query for every row."""
        return f"SELECT * FROM {_table(self.results)}"

    def latest(self) -> str:
        """Return the query for the newest pane of each window, without stale rows and retracted windows."""
        rows = f"{_table(self.results)} WHERE NOT stale"
        if not self.panes:
            return f"SELECT * FROM {rows}"
        by = ", ".join(map(quoted, (*self.key, "window_id")))
        # A retraction (op '-') of a pane sorts as newer than the pane itself.
        number = f"row_number() OVER (PARTITION BY {by} ORDER BY pane DESC, epoch DESC, op DESC)"
        numbered = f"SELECT *, {number} AS {_NEWEST} FROM {rows}"
        return f"SELECT * EXCEPT ({_NEWEST}) FROM ({numbered}) WHERE {_NEWEST} = 1 AND op = '+'"

    def final(self) -> str:
        """Return the query for the windows that no later event can change, by the newest watermark at query time."""
        if not self.panes:
            return self.latest()
        return f"SELECT * FROM ({self.latest()}) WHERE coalesce(final_at, {_AFTER_ALL}) <= {self._watermark()}"

    def _watermark(self) -> str:
        """Return the expression for the watermark of the newest epoch that is not stale.

        Table `epochs` has null before the first watermark and after the end of input. Only in the second case an
        earlier epoch has a watermark.
        """
        ended = f"CASE WHEN max(watermark) IS NOT NULL THEN {_AFTER_ALL} END"
        return f"(SELECT coalesce(max_by(watermark, epoch), {ended}) FROM {_table(self.epochs)} WHERE NOT stale)"


def _table(path: str) -> str:
    return f"delta.{quoted(path)}"

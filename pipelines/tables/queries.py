"""The views of table `results` as SQL for Spark: what holds now, and what nothing can change any more.

A query may be saved as a view, so it holds no watermark of today: it asks table `epochs` for the newest one.
"""

from __future__ import annotations

from dataclasses import dataclass

_NEWEST = "__newest"
_AFTER_ALL = "TIMESTAMP '9999-12-31 23:59:59Z'"
"""Stands for a time that no TIMESTAMP can say: the end of input, and when the global window ends."""


@dataclass(frozen=True)
class ResultQueries:
    """Queries over the tables of one pipeline; they need no catalog.

    Args:
        results: path of table `results`.
        epochs: path of table `epochs`.
        key: the key columns.
        panes: whether the results are panes of windows.
    """

    results: str
    epochs: str
    key: tuple[str, ...]
    panes: bool = True

    def of(self, view: str) -> str:
        """The query of a view: `final`, `latest` or `all`."""
        return {"final": self.final, "latest": self.latest, "all": self.all}[view]()

    def all(self) -> str:
        """Every row."""
        return f"SELECT * FROM {_table(self.results)}"

    def latest(self) -> str:
        """The newest pane of each window that is not withdrawn, stale rows left out."""
        rows = f"{_table(self.results)} WHERE NOT stale"
        if not self.panes:
            return f"SELECT * FROM {rows}"
        by = ", ".join(map(_quoted, (*self.key, "window_id")))
        # A withdrawal is newer than the pane that it takes back.
        number = f"row_number() OVER (PARTITION BY {by} ORDER BY pane DESC, epoch DESC, op DESC)"
        numbered = f"SELECT *, {number} AS {_NEWEST} FROM {rows}"
        return f"SELECT * EXCEPT ({_NEWEST}) FROM ({numbered}) WHERE {_NEWEST} = 1 AND op = '+'"

    def final(self) -> str:
        """The windows that nothing can change any more, by the watermark that table `epochs` has when this is run."""
        if not self.panes:
            return self.latest()
        return f"SELECT * FROM ({self.latest()}) WHERE coalesce(final_at, {_AFTER_ALL}) <= {self._watermark()}"

    def _watermark(self) -> str:
        """The watermark of the newest published epoch on the line; null before the first.

        The table has null after the last too, and then an epoch before it had one.
        """
        ended = f"CASE WHEN max(watermark) IS NOT NULL THEN {_AFTER_ALL} END"
        return f"(SELECT coalesce(max_by(watermark, epoch), {ended}) FROM {_table(self.epochs)} WHERE NOT stale)"


def _table(path: str) -> str:
    return f"delta.{_quoted(path)}"


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"

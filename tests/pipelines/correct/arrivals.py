"""A stream whose epochs a test runs by hand over a source table, and whose late rows the product reopens."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from tests.lake import EVENTS, LOCAL, Clock, Lake
from tests.pipelines.by_hand import ByHand, Row
from tidegate.pipelines.correct.request import Selection
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.ledger.manifest import Manifest
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.testing import PipelineHarness

NOW = 1_800_000_000_000
"""Clock of the driver that reopens, int64 epoch milliseconds."""

Final = list[tuple[Any, ...]]
"""Return windows without what the division into epochs may change: key, start, end, results."""


@dataclass
class Arrivals:
    """Commits of a source, each read by an epoch of a stream with a watermark that the test names.

    Args:
        by_hand: the stream.
        rows: all rows so far.
        version: the newest version of the source table.
    """

    by_hand: ByHand
    rows: list[Row] = field(default_factory=list)
    version: int = -1

    @property
    def lake(self) -> Lake:
        """The source and the tables."""
        return Lake(self.by_hand.folder, Clock(NOW))

    def commit(self, *rows: Row, watermark: datetime) -> Manifest:
        """Run an epoch of one commit; without rows the source gets no commit."""
        table = self.by_hand.pipeline.source.table
        if rows:
            self.rows += rows
            self.version = self.lake.append(*rows, table=table)
        hand = self.by_hand.planned(rows, watermark)
        plan = replace(hand.plan, positions={table: Position(version=self.version)})
        manifest = self.by_hand.committed(replace(hand, plan=plan))
        publish(self.by_hand.tables, manifest)
        return manifest

    def reopen(self, selection: Selection | None = None) -> Manifest | None:
        """Reopen late rows, by default all; return None if there was nothing to do."""
        return self.lake.reopen(LOCAL, self.by_hand.pipeline, selection)

    def final(self) -> Final:
        """Return the windows that can no longer change."""
        latest = results.latest(self.by_hand.rows(results.NAME), tuple(self.by_hand.pipeline.key))
        return compared(results.final(latest, self.by_hand.head().manifest.watermark).to_pylist())

    def in_event_order(self) -> Final:
        """Return the results of a backfill of the same rows, up to the same watermark."""
        watermark = self.by_hand.head().manifest.watermark
        harness = PipelineHarness(self.by_hand.pipeline, EVENTS)
        rows = [dict(zip(EVENTS.names, row, strict=True)) for row in self.rows]
        first = min(row["at"] for row in rows) - timedelta(days=2)
        lag = 2 if "Session" in type(self.by_hand.pipeline.compute.assigner).__name__ else 1  # type: ignore[union-attr]
        harness.backfill(rows, first, watermark + lag)
        return compared(harness.final())


def compared(rows: list[dict[str, Any]]) -> Final:
    """Windows as tuples in a fixed order."""
    own = results.RESERVED - {"window_start", "window_end"}
    return sorted(
        (row["user"], row["window_start"], row["window_end"], *(row[name] for name in sorted(row.keys() - own)))
        for row in rows
    )

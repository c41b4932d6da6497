"""A stream made by hand whose late rows can be reopened: it remembers every row that came, as a source would."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from tests.lake import EVENTS
from tests.pipelines.by_hand import ByHand, Row
from tidegate.pipelines.definition import results
from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.definition.event_columns import COMMIT, KEY_PREFIX, TIME, VALUE_PREFIX
from tidegate.pipelines.epoch.affected import plan_recompute
from tidegate.pipelines.epoch.correct import RecomputeJob
from tidegate.pipelines.epoch.recompute import commit_recomputed, recompute
from tidegate.pipelines.epoch.recompute_plan import RecomputePlan, Selection
from tidegate.pipelines.epoch.shard import ShardOutcome
from tidegate.pipelines.epoch.spans import END, START
from tidegate.pipelines.ledger.manifest import Interval, Manifest
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.testing import PipelineHarness
from tidegate.windowing.compute import Windows
from tidegate.windowing.time import MIN_TIMESTAMP, Millis, to_millis

NOW = 1_800_000_000_000
"""Clock of the driver that reopens, int64 epoch milliseconds."""

Final = list[tuple[Any, ...]]
"""Windows without what a run's cut into epochs may change: key, start, end, results."""


@dataclass
class Arrivals:
    """Commits of a source, each run as an epoch of a stream."""

    by_hand: ByHand
    commits: list[tuple[Millis, tuple[Row, ...]]] = field(default_factory=list)

    def commit(self, *rows: Row, watermark: datetime) -> Manifest:
        """An epoch of one commit."""
        head = self.by_hand.head().manifest.watermark if self.commits else MIN_TIMESTAMP
        self.commits.append((head, rows))
        return self.by_hand.epoch(*rows, watermark=watermark)

    @property
    def rows(self) -> list[Row]:
        """Every row that came."""
        return [row for _, rows in self.commits for row in rows]

    def planned(self, selection: Selection | None = None) -> RecomputePlan:
        """The plan to reopen late rows, all by default."""
        by_hand = self.by_hand
        bound = bind(by_hand.pipeline, EVENTS, EVENTS)
        by_hand.tables.widen(bound.table_schemas)
        return plan_recompute(by_hand.tables, bound, by_hand.head(), selection or Selection(), self, NOW)

    def reopen(self, selection: Selection | None = None) -> Manifest | None:
        """Reopen late rows, all by default; None where there was nothing to do."""
        by_hand = self.by_hand
        bound = bind(by_hand.pipeline, EVENTS, EVENTS)
        by_hand.tables.widen(bound.table_schemas)
        plan, outcomes = recompute(by_hand.tables, bound, by_hand.head(), selection or Selection(), self, NOW)
        if not any(plan.late_rows) and not any(outcome.files for outcome in outcomes):
            return None
        manifest = commit_recomputed(plan, outcomes)
        publish(self.by_hand.tables, manifest)
        return manifest

    # --- what Spark tells of the source ------------------------------------------------------

    def keyed(self, late_rows: pa.Table) -> pa.Table:
        """The key is a column of the source."""
        return late_rows

    def passed(self, windows: Windows, within: Interval) -> pa.Table:
        """Windows that had passed when a row of theirs came."""
        found = {
            (row[0], *window)
            for judged_at, rows in self.commits
            for row in rows
            if within.start <= to_millis(row[1]) < within.end
            for window in windows.assigner.assign_windows(None, to_millis(row[1]), None)  # type: ignore[arg-type]
            if window.max_timestamp + windows.lateness <= judged_at
        }
        keys, starts, ends = zip(*sorted(found), strict=True) if found else ((), (), ())
        return pa.table(
            {"user": pa.array(keys, pa.string()), START: pa.array(starts, pa.int64()), END: pa.array(ends, pa.int64())}
        )

    def correct(self, plan: RecomputePlan) -> list[ShardOutcome]:
        """Every shard that has something to do, as its task would."""
        job = RecomputeJob.of(plan)
        return [job.run(number, self._events(plan, number)) for number in job.files]

    def _events(self, plan: RecomputePlan, number: int) -> pa.Table:
        bound, shard = plan.epoch.bound, plan.epoch.shards[number]
        spans = plan.spans.to_pylist()
        own = [
            dict(zip(EVENTS.names, row, strict=True))
            for row in self.rows
            if any(s["user"] == row[0] and s[START] <= to_millis(row[1]) < s[END] for s in spans)
            and shard.first <= bound.key.key_group_of(row[0], bound.pipeline.max_parallelism) <= shard.last
        ]
        columns = {
            TIME: pa.array([to_millis(row["at"]) for row in own], pa.int64()),
            COMMIT: pa.array([0] * len(own), pa.int32()),
        }
        for prefix, names in ((KEY_PREFIX, bound.key.names), (VALUE_PREFIX, bound.used)):
            columns |= {
                f"{prefix}{name}": pa.array([row[name] for row in own], EVENTS.field(name).type) for name in names
            }
        return pa.table(columns)

    # --- what there should be ----------------------------------------------------------------

    def final(self) -> Final:
        """The windows that nothing can change any more."""
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

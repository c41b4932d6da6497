"""The status of a pipeline, read from its newest published snapshot for sensors, watches and the page, without a JVM.

Importing this module loads no library for tables; `read_status` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from tidegate.pipelines.definition.config import load_config

if TYPE_CHECKING:
    from pathlib import Path

    from tidegate.pipelines.definition.config import Config


@dataclass(frozen=True, slots=True)
class PipelineStatus:
    """The newest published snapshot of a pipeline. Times are int64 epoch milliseconds; None before the first.

    Args:
        pipeline: its name.
        timeline: its current timeline.
        epoch: epoch of the snapshot; 0 before the first.
        kind: kind of the epoch, such as `stream`, `backfill` or `restore`.
        version: version of table `state`.
        watermark: event time up to which its results are complete; None while there is no watermark.
        processing_time: clock of the epoch.
        counters: counters of the epoch.
        stale: intervals `[start, end)` whose results were computed from snapshots that have been replaced.
        final_through: time up to which its windows are final: the watermark, or the clock if that ends the windows.
        ends_by_clock: True if the clock ends the windows.
        mode: `backfill` if its position in the source is an event time, `stream` if it is a commit.
    """

    pipeline: str
    timeline: int = 0
    epoch: int = 0
    kind: str | None = None
    version: int | None = None
    watermark: int | None = None
    processing_time: int | None = None
    counters: dict[str, int] | None = None
    stale: tuple[tuple[int, int], ...] = ()
    final_through: int | None = None
    ends_by_clock: bool = False
    mode: str | None = None

    def is_newer_than(self, epoch: int) -> bool:
        """Return True if something was computed after an epoch. A restore only goes back, and computes nothing."""
        return self.epoch > epoch and self.kind != "restore"

    def lag(self, now: datetime) -> float | None:
        """Return the seconds by which final windows lag behind a time, or None while there is no watermark."""
        return None if self.final_through is None else now.timestamp() - self.final_through / 1000

    def is_past(self, moment: datetime) -> bool:
        """Return True if windows that end by a time are final: no more of their elements can be on time."""
        return self.final_through is not None and self.final_through >= int(moment.timestamp() * 1000) - 1


def shown_time(time: int | None) -> str:
    """Return a time of a status (int64 epoch milliseconds) as text, as commands print it."""
    from tidegate.windowing.time import show_millis

    return show_millis(time)


def read_status(config_file: str | Path, pipeline: str) -> PipelineStatus:
    """Return the current status of a pipeline.

    Raises:
        UsageError: there is no such pipeline.
        Refused: the pipeline's table can't be trusted.
    """
    from pathlib import Path

    return status_of(load_config(Path(config_file)), pipeline)


def status_of(config: Config, pipeline: str) -> PipelineStatus:
    """Return the current status of a pipeline of a project. The errors are those of `read_status`."""
    from tidegate.pipelines.ledger.snapshots.head import read_snapshot
    from tidegate.pipelines.ledger.snapshots.published import final_through, newest_published, settled_watermark
    from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
    from tidegate.windowing.time import MAX_TIMESTAMP, MIN_TIMESTAMP

    tables = PipelineTables.of(config, pipeline)
    head = read_snapshot(tables)
    snapshot = newest_published(tables, head)
    if head is None or snapshot is None:
        return PipelineStatus(pipeline)
    manifest = snapshot.manifest
    watermark, through = settled_watermark(snapshot, head), final_through(snapshot, head)
    return PipelineStatus(
        pipeline,
        manifest.timeline,
        manifest.epoch,
        manifest.kind,
        snapshot.version,
        watermark if watermark > MIN_TIMESTAMP else None,
        min(manifest.processing_time, MAX_TIMESTAMP),
        dict(manifest.counters),
        tuple((item.start, item.end) for item in manifest.stale),
        through if through > MIN_TIMESTAMP else None,
        manifest.ends_by_clock,
        "stream" if any(position.frontier is None for position in manifest.positions.values()) else "backfill",
    )

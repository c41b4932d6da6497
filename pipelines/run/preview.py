"""What a backfill would correct before it runs an interval: the changed rows of each interval that has run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegate.pipelines.correct.correct import changed_since, changing_versions
from tidegate.pipelines.correct.source_rows import FirstRun
from tidegate.pipelines.definition.config import Config
from tidegate.pipelines.definition.config.opened import warehouse_of
from tidegate.pipelines.definition.event_columns import TIME
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.ledger.manifest import Interval
from tidegate.pipelines.ledger.snapshots.head import read_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.run.rerun import IntervalHistory


@dataclass(frozen=True, slots=True)
class ChangedInterval:
    """How many usable rows of an interval were deleted from the source, and how many were added to it.

    Args:
        interval: an interval that has run.
        deleted: number of deleted rows.
        added: number of added rows.
    """

    interval: Interval
    deleted: int
    added: int


@dataclass(frozen=True, slots=True)
class Preview:
    """The versions of the source that changed rows, and the intervals that these rows belong to.

    Args:
        versions: the versions.
        intervals: the intervals in order. Windows that begin before an interval, or end after it, are corrected too.
        by_feed: True if the source's change feed is read where available; False if files are compared.
    """

    versions: tuple[int, ...]
    intervals: tuple[ChangedInterval, ...]
    by_feed: bool = False


def preview_change(config: Config, pipeline: Pipeline) -> Preview | None:
    """Return what a backfill would correct before it runs an interval, or None if nothing changed, or for a stream.

    Raises:
        Refused: the source is not the one that was read, or its changed files no longer exist.
    """
    tables = PipelineTables(warehouse_of(config), pipeline.name)
    head = read_snapshot(tables)
    if head is None or not pipeline.inputs[0].corrects:
        return None
    source = OpenInput.open(LocalEngine.of(config), tables, pipeline)
    position = source.position_of(head.manifest)
    if position.frontier is None:
        return None
    versions = changing_versions(source, position)
    if not versions:
        return None
    changed = changed_since(source, head, position, FirstRun.of(tables))
    deleted, added = (np.asarray(side[TIME].to_numpy(), np.int64) for side in (changed.all_deleted, changed.added))
    intervals = []
    for run in sorted(IntervalHistory.of(tables, head).ran, key=lambda run: run.interval.start):
        start, end = run.interval.start, run.interval.end
        counts = [int(((start <= times) & (times < end)).sum()) for times in (deleted, added)]
        if any(counts):
            intervals.append(ChangedInterval(run.interval, *counts))
    return Preview(versions, tuple(intervals), changed.by_feed)

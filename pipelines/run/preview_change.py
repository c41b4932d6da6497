"""Preview of a correction: the intervals of a backfill in which rows of the source changed since its newest epoch.

Only the source and the records of the pipeline are read. Nothing is written, and no JVM runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tidegate.pipelines.config import Config
from tidegate.pipelines.definition.event_columns import TIME
from tidegate.pipelines.definition.pipeline import Pipeline
from tidegate.pipelines.engine.local import LocalEngine
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.manifest import Interval
from tidegate.pipelines.reopen.first_run import FirstRun
from tidegate.pipelines.run.change import changed_since, changing_versions
from tidegate.pipelines.run.rerun import History
from tidegate.pipelines.snapshots.head import read_snapshot
from tidegate.pipelines.storage import warehouse_of
from tidegate.pipelines.tables.pipeline_tables import PipelineTables


@dataclass(frozen=True, slots=True)
class ChangedInterval:
    """The numbers of usable rows of an interval that went from the source, and that came.

    Args:
        interval: an interval that was run.
        gone: number of rows that went.
        came: number of rows that came.
    """

    interval: Interval
    gone: int
    came: int


@dataclass(frozen=True, slots=True)
class Preview:
    """The versions of the source that changed rows, and the intervals to which these rows belong.

    Args:
        versions: the versions.
        intervals: the intervals in order. Windows that begin before an interval, or end after it, are corrected, too.
        by_feed: True if the change feed of the source is read, where it has one; False if files are compared.
    """

    versions: tuple[int, ...]
    intervals: tuple[ChangedInterval, ...]
    by_feed: bool = False


def preview_change(config: Config, pipeline: Pipeline) -> Preview | None:
    """Return what a backfill would correct before it runs an interval; None if nothing changed, or a stream reads.

    Raises:
        Refused: the source is not the one that was read, or its changed files are gone.
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
    gone, came = (np.asarray(side[TIME].to_numpy(), np.int64) for side in (changed.all_gone, changed.came))
    intervals = []
    for run in sorted(History.of(tables, head).ran, key=lambda run: run.interval.start):
        start, end = run.interval.start, run.interval.end
        counts = [int(((start <= times) & (times < end)).sum()) for times in (gone, came)]
        if any(counts):
            intervals.append(ChangedInterval(run.interval, *counts))
    return Preview(versions, tuple(intervals), changed.by_feed)

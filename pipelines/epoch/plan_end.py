"""The plan of the end of input: event time moves to its maximum, so all open windows fire and become final.

Flink sends the same watermark, `Watermark.MAX_WATERMARK`, when a bounded source has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tidegate.pipelines.epoch.event_times import EventTimes
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.plan import EpochPlan
from tidegate.pipelines.epoch.plan_clock import without_data
from tidegate.pipelines.epoch.steps import CommitStep
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import MAX_TIMESTAMP, Millis


def plan_end(
    source: OpenInput, tables: PipelineTables, head: Snapshot, now: Millis, shards: Callable[[], int]
) -> EpochPlan | None:
    """Plan an epoch that ends event time; None if event time has already ended.

    Args:
        source: the source as it is now.
        tables: the pipeline's tables.
        head: the snapshot to go on from.
        now: the driver's clock.
        shards: returns how many shards to cut the key groups into.

    Raises:
        Refused: a commit of the source was read only in part.
    """
    bound, manifest = source.bound, head.manifest
    if manifest.watermark == MAX_TIMESTAMP:
        return None
    for input_ in source.inputs:
        if input_.position_of(manifest).files:
            raise Refused(
                f"input of {manifest.pipeline} can't end within a commit of {input_.table!r}, of which epoch "
                f"{manifest.epoch} read a part: run `tidegate stream {manifest.pipeline} --available-now`, then again"
            )
    clock = max(now, manifest.processing_time)
    times, step = EventTimes.of(bound.pipeline, manifest), CommitStep(clock, MAX_TIMESTAMP)
    plan = without_data(source, tables, head, now, shards, manifest.positions, step, times)
    return replace(plan, input_watermarks=dict.fromkeys(manifest.inputs, MAX_TIMESTAMP))

"""The plan of a backfill's run for one interval of event time.

A run for [a, b) reads the rows of versions up to V with an event time in [a, b). From the versions since its parent it
also reads the rows before a (stragglers, judged against the watermark) and the unusable rows. So exactly one run reads
each row, however late the row arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tidegate.pipelines.definition.event_columns import DROPPED
from tidegate.pipelines.epoch.file_slices import of_added, of_interval
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.plan import EpochPlan, SliceCounts, SliceRows, clock_of
from tidegate.pipelines.epoch.shards import cut_shards
from tidegate.pipelines.epoch.steps import CommitStep, EventOrder
from tidegate.pipelines.manifest import Interval, StaleInterval
from tidegate.pipelines.snapshots.head import Snapshot
from tidegate.pipelines.sources.commits import SourceCommit
from tidegate.pipelines.tables.pipeline_tables import PipelineTables
from tidegate.windowing.time import Millis


def plan_interval(
    source: OpenInput,
    tables: PipelineTables,
    interval: Interval,
    head: Snapshot | None,
    parent: Snapshot | None,
    now: Millis,
    shards: Callable[[], int],
    replaced: Sequence[StaleInterval] = (),
    recent: Sequence[SourceCommit] | None = None,
) -> EpochPlan:
    """Plan a backfill's run for `[start, end)` in event order.

    Args:
        source: the source as it is now; its head is the version that is read.
        tables: the pipeline's tables.
        interval: the span of event time.
        head: the snapshot that the commit will follow.
        parent: the snapshot that the run continues from: `head`, or an older one to run an interval again.
        now: the driver's clock.
        shards: returns how many shards to cut the key groups into.
        replaced: the interval that this run replaces, and the later intervals, which become stale.
        recent: commits since the parent of the only input; None for those that the source records.
    """
    bound, pipeline, after = source.bound, source.bound.pipeline, None if parent is None else parent.manifest

    def since_parent(input_: OpenInput) -> Sequence[SourceCommit] | None:
        if after is None or recent is not None:
            return recent
        return input_.commits(input_.position_of(after).version)

    # A first interval that the same code runs again rejects what it rejected before, also after OPTIMIZE.
    is_again = after is None and head is not None and head.manifest.fingerprint == bound.fingerprint
    rejected_by = head.manifest if head is not None and is_again else after
    sliced = [of_interval(input_, interval, since_parent(input_), rejected_by) for input_ in source.inputs]
    counts = sum((part.counts for part in sliced), SliceCounts())
    stragglers = [part for input_ in sliced for part in input_.before]
    # An element at the end of the interval may still join a session that ends there.
    order = EventOrder.of(bound.compute)
    positions = {
        table: position
        for input_ in source.inputs
        for table, position in input_.position(input_.log.head, interval.end).items()
    }
    stale = [*(head.manifest.stale if head is not None else ()), *replaced]
    return EpochPlan(
        tables=tables,
        bound=bound,
        parent=parent,
        head=head,
        kind="backfill",
        order=order,
        interval=interval,
        positions=positions,
        rows=SliceRows.of(
            source.files,
            [*(part for input_ in sliced for part in input_.inside), *stragglers],
            {0: interval.start - 1} if stragglers else {},
            [part for input_ in sliced for part in input_.unusable],
        ),
        counts=counts,
        steps=(CommitStep(max(now, clock_of(parent)), interval.end - order.lag),),
        partitions={},
        watermark_before=parent.manifest.watermark if parent is not None else interval.start - order.lag,
        shards=cut_shards(shards(), pipeline.max_parallelism, counts.usable, parent, counts.size),
        replaced_epochs=tuple(epoch for item in stale if item.end <= interval.end for epoch in item.epochs),
        stale=tuple(item for item in stale if item.end > interval.end),
        # A first run reads the table as it is.
        skipped=0 if after is None else source.skipped(after, positions),
        started_at=now,
    )


def changed_rows(source: OpenInput, interval: Interval, since: int) -> int:
    """Return the number of rows with an event time in an interval that were committed after a version."""
    recent = source.commits(since)
    if not recent:
        return 0
    added = of_added(source, recent, interval.start, interval.end)
    measures = source.measure(added, with_rejects=False, with_times=False)
    return measures.usable + measures.counts.get(DROPPED, 0)

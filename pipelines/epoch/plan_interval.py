"""The plans of a backfill: its run for one interval of event time, and the handover to the stream that follows.

A run for [a, b) reads the rows of versions up to V with an event time in [a, b). From the versions since its parent, it
also reads the rows before a (stragglers, which may be late) and the unusable rows. So exactly one run reads each row,
however late the row arrived.

A backfill up to event time b at source version V has read the rows before b, and rejected the unusable rows. The
handover reads the other rows of V as one last, open-ended interval; at its end the watermark is that of the pipeline's
strategy. Then the stream continues with version V + 1. So backfill and stream together read each row exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidegate.pipelines.definition.names import count_of
from tidegate.pipelines.epoch.event_times import CommitStep, EventOrder, SeenEvents, restored_times
from tidegate.pipelines.epoch.file_measure import SliceCounts
from tidegate.pipelines.epoch.file_slices import of_added, of_interval, of_version
from tidegate.pipelines.epoch.job import naming
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.epoch.plan import Basis, EpochPlan, SliceRows, clock_of
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Interval, Manifest, StaleInterval
from tidegate.pipelines.ledger.snapshots.head import Snapshot, lineage
from tidegate.pipelines.remedy import Act, Remedy
from tidegate.pipelines.sources.commits import SourceCommit
from tidegate.pipelines.sources.file_slice import FileSlice
from tidegate.windowing.time import MAX_TIMESTAMP


def plan_interval(
    basis: Basis,
    interval: Interval,
    parent: Snapshot | None,
    replaced: Sequence[StaleInterval] = (),
    recent: Sequence[SourceCommit] | None = None,
) -> EpochPlan:
    """Plan a backfill's run for `[start, end)` in event order.

    The parent is the head, or an older snapshot to run an interval again. `replaced` is the interval that this run
    replaces, and the later intervals, which become stale. `recent` are the commits since the parent; if it is None,
    they are looked up.
    """
    source, head, after = basis.source, basis.head, None if parent is None else parent.manifest

    def since_parent(input_: OpenInput) -> Sequence[SourceCommit] | None:
        if after is None or recent is not None:
            return recent
        return input_.commits(input_.position_of(after).version)

    # Running a first interval again with the same code rejects the same rows, even after OPTIMIZE.
    is_again = after is None and head is not None and head.manifest.fingerprint == source.bound.fingerprint
    rejected_by = head.manifest if head is not None and is_again else after
    sliced = [of_interval(input_, interval, since_parent(input_), rejected_by) for input_ in source.inputs]
    stragglers = [part for input_ in sliced for part in input_.before]
    # An element at the end of the interval may still join a session that ends there.
    order = EventOrder.of(source.bound.compute)
    positions = {input_.table: input_.position(input_.log.head, interval.end) for input_ in source.inputs}
    stale = [*(head.manifest.stale if head is not None else ()), *replaced]
    rows = SliceRows.of(
        source.files,
        [*(part for input_ in sliced for part in input_.inside), *stragglers],
        {0: interval.start - 1} if stragglers else {},
        [part for input_ in sliced for part in input_.unusable],
    )
    step = CommitStep(max(basis.now, clock_of(parent)), interval.end - order.lag)
    counts = sum((part.counts for part in sliced), SliceCounts())
    plan = replace(basis, head=parent).plan("backfill", positions, (step,), rows=rows, counts=counts)
    return replace(
        plan,
        head=head,
        order=order,
        interval=interval,
        watermark_before=interval.start - order.lag if after is None else after.watermark,
        replaced_epochs=tuple(epoch for item in stale if item.end <= interval.end for epoch in item.epochs),
        stale=tuple(item for item in stale if item.end > interval.end),
    )


def rows_added_since(source: OpenInput, interval: Interval, since: int) -> int:
    """Return the number of rows with an event time in an interval that were committed after a version."""
    recent = source.commits(since)
    if not recent:
        return 0
    added = of_added(source, recent, interval.start, interval.end)
    return source.measure(added, with_rejects=False, with_times=False).slice_counts.total


def plan_hand_over(basis: Basis) -> EpochPlan:
    """Plan the epoch between a backfill and the stream that continues from it.

    Raises:
        Refused: the input has ended, intervals behind the head must be run again first, or the version that the
            backfill read can no longer be read.
    """
    source, tables, pipeline, manifest = basis.source, basis.tables, basis.pipeline, basis.of_head
    if manifest.watermark == MAX_TIMESTAMP:
        line = (entry.manifest for entry in lineage(tables, manifest.epoch))
        before = next((earlier["epoch"] for earlier in line if earlier["watermark"] != MAX_TIMESTAMP), "EPOCH")
        raise Refused(
            f"pipeline {pipeline.name!r} can't continue as a stream: its input ended at epoch {manifest.epoch}, so all "
            "further rows would be late",
            Remedy(Act.RESTORE, pipeline.name, before),
        )
    if manifest.stale:
        first = min(manifest.stale, key=lambda interval: interval.start)
        raise Refused(
            f"pipeline {pipeline.name!r} has {count_of(len(manifest.stale), 'interval')} that a correction left stale, "
            "to run again before a stream starts",
            Remedy(Act.RERUN_STALE, pipeline.name, start=first.start, end=first.end),
        )
    clock = manifest.processing_time
    times = restored_times(pipeline, manifest.watermark, clock, {}, {})
    rests = [_rest(input_, manifest) for input_ in source.inputs]
    measures = [source.measure(rest, with_rejects=False) for rest in rests]
    seen = [
        SeenEvents(source.engine, rest, input_.input, input_.number).of(0) if input_.input.reads_events else ()
        for input_, rest in zip(source.inputs, rests, strict=True)
    ]
    parts = [part for rest, measured in zip(rests, measures, strict=True) if measured.usable for part in rest.parts]
    with naming(pipeline.name):
        largest = [measured.largest.get(0, {}) for measured in measures]
        step = CommitStep(clock, times.read_together(largest, clock, seen))
    positions = {
        input_.table: input_.position(input_.passed_version(manifest.position_in(input_.table).version))
        for input_ in source.inputs
    }
    counts = sum((measured.slice_counts for measured in measures), SliceCounts())
    return basis.plan("stream", positions, (step,), times, SliceRows.of(source.files, parts), counts)


def _rest(source: OpenInput, manifest: Manifest) -> FileSlice:
    """Return the rows that the backfill left unread in its version: the rows from the frontier on."""
    position = source.settled(source.position_of(manifest))
    assert position.frontier is not None
    return of_version(source, position.version, manifest, since=position.frontier)

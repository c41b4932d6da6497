"""Backfill in event order: one epoch for each interval, each continuing from the one before.

An interval must begin where its parent's event time ends. One that ran before is left alone while
code and rows are the same; otherwise it is run again on a new timeline, from its parent's snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from pipelines.driver import Driver
from pipelines.epoch.plan_interval import changed_rows, plan_interval
from pipelines.errors import Refused
from pipelines.intervals import describe
from pipelines.snapshots.compatibility import ready
from pipelines.snapshots.head import Snapshot, SnapshotEntry, lineage, read_snapshot
from pipelines.snapshots.manifest import QUIET, Interval, Manifest, StaleInterval
from pipelines.sources.source import Source
from windowing.time import show_millis


@dataclass(frozen=True)
class IntervalRun:
    """What became of one interval.

    Args:
        interval: the span of event time.
        state: `done`, or `unchanged` where it had been run and nothing is different.
        manifest: of the snapshot that ends there.
    """

    interval: Interval
    state: Literal["done", "unchanged"]
    manifest: Manifest


def backfill(driver: Driver, intervals: Iterable[Interval], and_following: bool = False) -> Iterator[IntervalRun]:
    """Run intervals one after the other.

    Args:
        driver: holds the lease.
        intervals: in order, without gaps.
        and_following: whether intervals after a re-run one, which it made stale, are run again too.

    Raises:
        Refused: an interval does not begin where event time stands, or lies under a stream.
        Stopped: `tidegate stop` asked for the end between two intervals.
    """
    driver.recover()
    for interval in intervals:
        driver.heed_stop()
        yield _run(driver, interval)
    while and_following:
        head = read_snapshot(driver.tables)
        if head is None or not head.manifest.stale:
            return
        driver.heed_stop()
        first = min(head.manifest.stale, key=lambda item: item.start)
        yield _run(driver, Interval(start=first.start, end=first.end))


def _run(driver: Driver, interval: Interval) -> IntervalRun:
    source = Source.open(driver.spark, driver.tables, driver.pipeline)
    head = ready(driver.tables, source.bound, read_snapshot(driver.tables))
    frontier = _frontier(driver, head, interval)
    parent = head
    replaced: tuple[StaleInterval, ...] = ()
    if frontier is not None and frontier > interval.start:
        again = _Rerun.of(driver, head, interval)
        if not again.is_needed(driver, source):
            return IntervalRun(interval, "unchanged", again.snapshot.manifest)
        parent, replaced = again.parent, again.replaced
    plan = plan_interval(source, driver.tables, interval, head, parent, driver.clock(), driver.shards, replaced)
    driver.tell("planned")
    return IntervalRun(interval, "done", driver.run(plan))


def _frontier(driver: Driver, head: Snapshot | None, interval: Interval) -> int | None:
    """Where event time stands; None before the first run."""
    if head is None:
        return None
    name = driver.pipeline.name
    frontier = head.manifest.position_in(driver.pipeline.source.table).frontier
    if frontier is None:
        raise Refused(
            f"interval {describe(interval)} of {name}: a stream has taken over at epoch {head.manifest.epoch}. Go back "
            f"to an epoch of the backfill with `tidegate restore {name}`, or backfill a pipeline of another name"
        )
    if frontier < interval.start:
        raise Refused(
            f"interval {describe(interval)} of {name} begins at {show_millis(interval.start)}, and event time stands "
            f"at {show_millis(frontier)}: rows between them would be lost. Start at {show_millis(frontier)}"
        )
    return frontier


@dataclass(frozen=True)
class _Rerun:
    """An interval that was run before: its snapshot, the one before it, and what came after."""

    interval: Interval
    snapshot: Snapshot
    parent: Snapshot | None
    replaced: tuple[StaleInterval, ...]

    @classmethod
    def of(cls, driver: Driver, head: Snapshot | None, interval: Interval) -> _Rerun:
        if head is None:
            raise Refused(f"interval {describe(interval)}: nothing was run before")
        after: list[StaleInterval] = []
        corrections: tuple[int, ...] = ()
        line = list(lineage(driver.tables, head.manifest.epoch))
        for entry in line:
            if entry.manifest["kind"] in QUIET:
                # What a reopening put out belongs to the intervals before it.
                corrections += (entry.manifest["epoch"],) if entry.manifest["kind"] == "reopen" else ()
                continue
            ran = entry.manifest.get("interval")
            if ran is None:
                break
            after.append(
                StaleInterval(start=ran["start"], end=ran["end"], epochs=(entry.manifest["epoch"], *corrections))
            )
            corrections = ()
            if ran == interval.model_dump():
                snapshot = read_snapshot(driver.tables, entry.version)
                if snapshot is None:
                    break
                return cls(interval, snapshot, cls._parent(driver, line, entry), tuple(after))
        ran_before = ", ".join(describe(Interval(start=item.start, end=item.end)) for item in reversed(after)) or "none"
        raise Refused(
            f"interval {describe(interval)} of {driver.pipeline.name} overlaps what was run: {ran_before}. Run one of "
            "these again as it was, or go on from the last one's end"
        )

    @staticmethod
    def _parent(driver: Driver, line: list[SnapshotEntry], entry: SnapshotEntry) -> Snapshot | None:
        before = entry.manifest["parent"]
        for candidate in line:
            if candidate.manifest["epoch"] == before:
                return read_snapshot(driver.tables, candidate.version)
        return None

    def is_needed(self, driver: Driver, source: Source) -> bool:
        """Whether the code, or the rows of the interval, are not what they were."""
        manifest = self.snapshot.manifest
        if manifest.fingerprint != source.bound.fingerprint:
            return True
        versions = []
        for one in source.inputs:
            position = manifest.position_in(one.table)
            one.log.check(position)
            versions.append(position.version)
        return any(
            changed_rows(one, self.interval, version) > 0 for one, version in zip(source.inputs, versions, strict=True)
        )

"""A restore lies between two intervals of which the older one is run again: the line no longer passes through it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

from tests.expectations.broken import broken_in
from tests.lake import LOCAL, Lake, at, hourly_pipeline
from tests.pipelines.by_hand import START_OF_DRIVER, ByHand
from tidegate.expectations.pinned import pin
from tidegate.pipelines.ledger.manifest import Manifest, StaleInterval
from tidegate.pipelines.ledger.snapshots.head import Snapshot
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.ledger.snapshots.published import pin_tables
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.run.stream import Stream
from tidegate.windowing import Count, Max, Sum
from tidegate.windowing.time import to_millis


def test_intervals_run_again_after_a_restore_break_nothing(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path)
    days = [(at("00:00", day), at("00:00", day + 1)) for day in range(3)]
    for day, (start, end) in enumerate(days):
        by_hand.epoch(("ann", at("10:00", day), 1), watermark=end, kind="backfill", interval=(start, end))
    restore(by_hand.tables, find_snapshot(by_hand.tables, "2"), START_OF_DRIVER)
    assert broken_in(by_hand.tables, by_hand.pipeline) == set()

    # The first interval again with a row more, from the beginning, and the one after it: epochs 5 and 6.
    _again(by_hand, 0, days[0], replaced=(1,), parent=None, stale=(2,))
    assert _again(by_hand, 1, days[1], replaced=(2,), parent=by_hand.head(), stale=()).line == ((5, 6),)
    pinned = pin_tables(by_hand.tables)
    assert pinned.epochs["epoch"].to_pylist() == [5, 6], "the line passes by the restore"
    assert 4 in by_hand.rows("epochs")["epoch"].to_pylist(), "of which table epochs tells"
    assert broken_in(by_hand.tables, by_hand.pipeline) == set()


def test_a_state_column_that_came_after_the_restored_snapshot_is_no_difference(tmp_path: Path) -> None:
    lake, pipeline = Lake(tmp_path), hourly_pipeline()
    with_largest = replace(
        pipeline.compute, aggregate={"events": Count(), "total": Sum("value"), "largest": Max("value")}
    )
    for hour, code in ((10, pipeline), (11, replace(pipeline, compute=with_largest))):
        lake.append(("ann", at(f"{hour}:10"), hour), ("bob", at(f"{hour}:20"), hour))
        with lake.driver(LOCAL, code) as driver:
            Stream(driver, lambda manifest: None).run_available()
    tables = lake.tables(pipeline)
    restore(tables, find_snapshot(tables, "1"), START_OF_DRIVER)
    checked = pin(tables, pipeline).restored
    assert len(checked) == 2
    assert list(checked["computed"]) == list(checked["recorded"])
    assert broken_in(tables, pipeline) == set()


def _again(
    by_hand: ByHand,
    day: int,
    interval: tuple[datetime, datetime],
    replaced: tuple[int, ...],
    parent: Snapshot | None,
    stale: tuple[int, ...],
) -> Manifest:
    """Run the interval of a day again, as a backfill does."""
    rows = (("ann", at("10:00", day), 1), ("eve", at("11:00", day), 1))
    following = StaleInterval(start=to_millis(interval[1]), end=to_millis(interval[1]) + 86_400_000, epochs=stale)
    planned = by_hand.planned(rows, interval[1], "backfill", interval, parent, (following,) if stale else ())
    before = to_millis(interval[0]) if parent is None else parent.manifest.watermark
    plan = replace(planned.plan, parent=parent, replaced_epochs=replaced, watermark_before=before)
    manifest = by_hand.committed(replace(planned, plan=plan))
    publish(by_hand.tables, manifest)
    return manifest

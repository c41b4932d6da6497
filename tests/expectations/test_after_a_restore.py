"""A restore lies between two intervals of which the older one is run again: the line no longer passes through it."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from pathlib import Path

from pipelines.epoch.publish import publish
from pipelines.snapshots.find import find_snapshot
from pipelines.snapshots.head import Snapshot
from pipelines.snapshots.manifest import Manifest, StaleInterval
from pipelines.snapshots.restore import restore
from pipelines.tables.pinned import pin_tables
from tests.expectations.broken import broken_in
from tests.lake import at
from tests.pipelines.by_hand import START_OF_DRIVER, ByHand
from windowing.time import to_millis


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

from __future__ import annotations

from datetime import timedelta

from tests.lake import LOCAL, Lake, at, hourly_pipeline, session_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.ask.contents import Difference, checksums, compare
from tidegate.pipelines.ledger.snapshots.head import state_rows
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, find_snapshot
from tidegate.windowing import Count, Sum


def between(by_hand: ByHand, one: str, other: str) -> Difference:
    return compare(by_hand.warehouse, find_snapshot(by_hand.tables, one), find_snapshot(by_hand.tables, other))


def test_a_window_that_fired_and_waits_for_late_elements_has_changed(by_hand: ByHand) -> None:
    by_hand.pipeline = session_pipeline(allowed_lateness=timedelta(hours=2))
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    by_hand.epoch(watermark=at("10:40"))
    (change,) = between(by_hand, "1", "2").changed
    assert (change.before["pane"], change.after["pane"]) == (0, 1)


def test_tumbling_windows_that_follow_each_other_came_and_went(by_hand: ByHand) -> None:
    by_hand.pipeline = hourly_pipeline(name="sessions")
    by_hand.epoch(("ann", at("10:10"), 1), watermark=at("10:00"))
    by_hand.epoch(("ann", at("11:10"), 1), watermark=at("11:10"))
    found = between(by_hand, "1", "2")
    assert (len(found.added), len(found.removed), found.changed) == (1, 1, [])


def test_a_snapshot_differs_in_nothing_from_itself_and_from_its_savepoint(by_hand: ByHand) -> None:
    by_hand.epoch(("ann", at("10:00"), 1), ("bob", at("10:50"), 2), watermark=at("10:00"))
    create_savepoint(by_hand.tables, by_hand.head(), "same", 0)
    assert between(by_hand, "1", "latest") == between(by_hand, "1", "savepoint:same") == Difference()


def sums(by_hand: ByHand) -> dict[int, str]:
    return checksums(state_rows(by_hand.warehouse, by_hand.head()))


def test_checksums_of_key_groups_do_not_depend_on_the_parallelism_and_a_row_changes_its_own_alone(
    by_hand: ByHand,
) -> None:
    users = [(f"user{n}", at("10:00"), n) for n in range(50)]
    by_hand.epoch(*users, watermark=at("10:00"))
    first = sums(by_hand)
    assert len(first) > 30
    for by_hand.parallelism in (1, 2, 3, 5):
        by_hand.epoch(watermark=at("10:00"))
        assert len(by_hand.head().manifest.shards) == by_hand.parallelism
        assert sums(by_hand) == first
    by_hand.epoch(("user7", at("10:00"), 1), watermark=at("10:00"))
    second = sums(by_hand)
    assert len([group for group in first if first[group] != second[group]]) == 1


def test_a_sum_that_is_nan_in_both_snapshots_has_not_changed(lake: Lake) -> None:
    sums = {"events": Count(), "sum": Sum("ratio")}
    pipeline = hourly_pipeline(aggregate=sums, columns={"ratio": "cast(user as double)"})
    for minute in ("10:10", "10:20"):
        lake.append(("NaN", at(minute), 1))
        lake.stream(LOCAL, pipeline)
    found = compare(
        lake.tables(pipeline).warehouse, *(find_snapshot(lake.tables(pipeline), name) for name in ("1", "2"))
    )
    assert (found.added, found.removed, [change.columns for change in found.changed]) == ([], [], [("acc_events",)])

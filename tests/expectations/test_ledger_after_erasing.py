"""Rows that were erased on purpose are not missed; those that are missing otherwise are."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow.compute as pc
import pytest

from tests.lake import Clock, at
from tests.pipelines.by_hand import ByHand
from tidegate.expectations.pinned import pin
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.prune import prune
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot

NOW = 2_000_000_000_000


@pytest.fixture
def by_hand(tmp_path: Path) -> ByHand:
    made = ByHand(tmp_path)
    made.epoch(("ann", at("10:00"), 1), ("zoe", at("10:00"), 1), watermark=at("11:00"))
    made.epoch(("ann", at("10:00"), 1), ("zoe", at("10:00"), 1), ("ann", at("12:00"), 1), watermark=at("12:00"))
    return made


def broken(by_hand: ByHand, epoch: int | None = None) -> pd.DataFrame:
    rows = pin(by_hand.tables, by_hand.pipeline, epoch).ledger
    assert len(rows)
    return rows[rows["counted"] != rows["found"]]


def test_nothing_is_missing_before(by_hand: ByHand) -> None:
    assert len(broken(by_hand)) == 0


def test_a_forgotten_key_is_not_missed(by_hand: ByHand) -> None:
    with Lease(by_hand.tables, "forget", Clock()):
        forget(by_hand.tables, by_hand.pipeline, ("zoe",), NOW)
    assert len(broken(by_hand)) == 0
    by_hand.epoch(("ann", at("13:00"), 1), watermark=at("14:00"))
    assert len(broken(by_hand)) == 0


def test_pruned_late_rows_are_not_missed_and_results_are_still_counted(by_hand: ByHand) -> None:
    prune(by_hand.tables, NOW, NOW)
    assert len(broken(by_hand)) == 0
    by_hand.tables.open("results").delete("user = 'ann'")
    assert set(broken(by_hand)["what"]) == {"fired_on_time", "elements in windows"}


def test_a_row_that_somebody_deleted_after_a_key_was_forgotten_is_missed(by_hand: ByHand) -> None:
    with Lease(by_hand.tables, "forget", Clock()):
        forget(by_hand.tables, by_hand.pipeline, ("zoe",), NOW)
    by_hand.epoch(("ann", at("13:00"), 1), watermark=at("14:00"))
    by_hand.tables.open("results").delete("epoch = 4")
    assert set(broken(by_hand)["what"]) == {"fired_on_time"}


def test_a_restore_leaves_counts_that_add_up(by_hand: ByHand) -> None:
    restore(by_hand.tables, find_snapshot(by_hand.tables, "1"), NOW)
    assert len(broken(by_hand)) == 0


@pytest.mark.first(2)
@pytest.mark.parametrize("targets", [("1",), ("2",), ("1", "2"), ("2", "1", "3")], ids="-".join)
def test_a_restore_over_a_prune_leaves_counts_that_add_up(by_hand: ByHand, targets: tuple[str, ...]) -> None:
    """Late rows of the second epoch went; whatever line the head is on, they are not missed."""
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("12:00"))
    prune(by_hand.tables, NOW, NOW)
    for target in targets:
        restore(by_hand.tables, find_snapshot(by_hand.tables, target), NOW)
        assert len(broken(by_hand)) == 0
    by_hand.epoch(("ann", at("13:00"), 1), ("ann", at("10:00"), 1), watermark=at("14:00"))
    assert len(broken(by_hand)) == 0
    by_hand.tables.open("late").delete()
    assert set(broken(by_hand)["what"]) == {"late"}, "rows of after the prune are missed"


@pytest.mark.first(1)
@pytest.mark.parametrize("keep_stale", [False, True])
def test_rows_that_were_pruned_on_a_line_that_was_left_are_not_missed(by_hand: ByHand, keep_stale: bool) -> None:
    by_hand.epoch(("ann", at("13:00"), 1), watermark=at("13:00"))
    prune(by_hand.tables, NOW, NOW)
    restore(by_hand.tables, find_snapshot(by_hand.tables, "3"), NOW, keep_stale)
    assert len(broken(by_hand)) == 0
    restore(by_hand.tables, find_snapshot(by_hand.tables, "4"), NOW)
    assert len(broken(by_hand)) == 0
    told = by_hand.rows("epochs").filter(~pc.field("stale"))
    assert sorted(told["epoch"].to_pylist()) == [1, 2, 3, 4, 6], "each epoch once"
    by_hand.tables.open("results").delete("user = 'ann'")
    assert len(broken(by_hand))


def test_an_older_epoch_does_not_miss_what_was_pruned_since(by_hand: ByHand) -> None:
    by_hand.epoch(("ann", at("13:00"), 1), watermark=at("13:00"))
    prune(by_hand.tables, NOW, NOW)
    by_hand.epoch(("ann", at("14:00"), 1), watermark=at("14:00"))
    for epoch in (2, 3, 5):
        assert len(broken(by_hand, epoch)) == 0, f"epoch {epoch}"

"""Checks and reports beside a running driver see an epoch that is published whole, or none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.definition import results
from tidegate.pipelines.errors import OTHER, Refused, TidegateError
from tidegate.pipelines.ledger.manifest import StaleInterval
from tidegate.pipelines.ledger.snapshots.publish import publish, publish_table
from tidegate.pipelines.ledger.snapshots.published import pin_tables


def test_between_commit_and_publish_the_newest_is_the_epoch_before(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path)
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("12:00"))
    before = pin_tables(by_hand.tables)
    second = by_hand.committed(by_hand.planned([("ann", at("13:00"), 2)], at("15:00")))
    assert pin_tables(by_hand.tables).manifest == before.manifest
    publish_table(by_hand.tables, second, results.NAME)
    half = pin_tables(by_hand.tables)
    assert half.manifest == before.manifest
    assert half.results == before.results, "what the epoch published already belongs to it alone"
    with pytest.raises(Refused, match="epoch 2 of sessions is not published yet"):
        pin_tables(by_hand.tables, second.epoch)
    publish(by_hand.tables, second)
    assert pin_tables(by_hand.tables).manifest == second


def test_before_the_first_epoch_is_published_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path)
    first = by_hand.committed(by_hand.planned([("ann", at("10:00"), 1)], at("12:00")))
    with pytest.raises(Refused, match="epoch 1 of sessions is not published yet"):
        pin_tables(by_hand.tables)
    publish(by_hand.tables, first)
    assert pin_tables(by_hand.tables).manifest == first


def test_while_rows_are_being_taken_away_nothing_is_looked_at(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path)
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("12:00"))
    first = by_hand.head()
    by_hand.epoch(("ann", at("13:00"), 2), watermark=at("15:00"))
    again = StaleInterval(start=0, end=1, epochs=(2,))
    third = by_hand.committed(by_hand.planned([("ann", at("13:05"), 2)], at("15:00"), parent=first, stale=(again,)))
    publish_table(by_hand.tables, third, results.NAME)
    for epoch in (None, 1):
        with pytest.raises(TidegateError, match=r"epoch 3 of sessions .* is removing rows right now") as refused:
            pin_tables(by_hand.tables, epoch)
        assert refused.value.exit_code == OTHER, "a moment later it is done: worth a retry"
    publish(by_hand.tables, third)
    assert pin_tables(by_hand.tables).epochs["epoch"].to_pylist() == [1, 3]

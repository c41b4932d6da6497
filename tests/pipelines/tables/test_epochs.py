"""The newest rows of table epochs, however many there are."""

from __future__ import annotations

import pytest

from pipelines.snapshots.find import find_snapshot
from pipelines.snapshots.restore import restore
from pipelines.storage import Warehouse
from pipelines.tables import epochs
from pipelines.tables.compaction import compact
from tests.lake import at
from tests.pipelines.by_hand import ByHand


def run(by_hand: ByHand, first: int, last: int) -> None:
    for number in range(first, last + 1):
        by_hand.epoch(("ann", at(f"{number:02d}:00"), number), watermark=at(f"{number:02d}:00"))


def newest(by_hand: ByHand, limit: int | None, with_stale: bool = False) -> list[int]:
    found = epochs.newest(by_hand.warehouse, by_hand.tables.open(epochs.NAME), limit, with_stale)
    return list(found["epoch"].to_pylist())


def test_they_come_the_newest_first_from_few_files_and_from_many(by_hand: ByHand) -> None:
    run(by_hand, 1, 6)
    compact(by_hand.tables, epochs.NAME)
    run(by_hand, 7, 9)
    assert newest(by_hand, None) == [9, 8, 7, 6, 5, 4, 3, 2, 1]
    assert newest(by_hand, 2) == [9, 8]
    assert newest(by_hand, 5) == [9, 8, 7, 6, 5]
    assert newest(by_hand, 50) == [9, 8, 7, 6, 5, 4, 3, 2, 1]


def test_files_with_older_ones_alone_are_not_read(by_hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    run(by_hand, 1, 6)
    read: list[str] = []
    known = Warehouse.read_files

    def reading(warehouse: Warehouse, path: str, names: list[str], *arguments: object) -> object:
        read.extend(names)
        return known(warehouse, path, names, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Warehouse, "read_files", reading)
    assert newest(by_hand, 2) == [6, 5]
    assert len(set(read)) == 2


def test_epochs_whose_results_were_replaced_count_on_request(by_hand: ByHand) -> None:
    run(by_hand, 1, 4)
    restore(by_hand.tables, find_snapshot(by_hand.tables, "2"), 0, keep_stale=True)
    assert newest(by_hand, 2) == [5, 2]
    assert newest(by_hand, 3, with_stale=True) == [5, 4, 3]

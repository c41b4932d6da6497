"""The newest rows of table epochs, however many there are."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tests.lake import Clock, at
from tests.pipelines.by_hand import START_OF_DRIVER, ByHand
from tidegate.pipelines.correct.source_rows import JudgedAt
from tidegate.pipelines.definition import counters, epochs
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.published import newest_epoch_rows, pin_epoch
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Retention, prune, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables.commits import commit
from tidegate.pipelines.ledger.tables.compaction import COMPACTION, compact
from tidegate.pipelines.ledger.tables.files import add_action, remove_action, write_rows
from tidegate.pipelines.run.work_folder import DAY
from tidegate.pipelines.storage.warehouse import Warehouse, active_files, arrow_schema
from tidegate.windowing.operators.counters import Counters


def run(by_hand: ByHand, first: int, last: int) -> None:
    for number in range(first, last + 1):
        by_hand.epoch(("ann", at(f"{number:02d}:00"), number), watermark=at(f"{number:02d}:00"))


def newest(by_hand: ByHand, limit: int | None, with_stale: bool = False) -> list[int]:
    found = newest_epoch_rows(by_hand.warehouse, by_hand.tables.open(epochs.NAME), limit, with_stale)
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


def kept(by_hand: ByHand, days: float, snapshots: int = 1) -> list[int]:
    """Return the epochs whose rows are kept for this many days, after a cleanup that keeps some of the newest
    snapshots.
    """
    now = START_OF_DRIVER + 10 * DAY
    with Lease(by_hand.tables, "vacuum", Clock()):
        vacuum(by_hand.tables, Retention(snapshots, timedelta(0), epochs=timedelta(days=days)), now)
    return sorted(by_hand.rows(epochs.NAME)["epoch"].to_pylist())


def two_files(by_hand: ByHand) -> None:
    """Five epochs in one file, and five in another; they began a minute apart."""
    run(by_hand, 1, 5)
    compact(by_hand.tables, epochs.NAME)
    run(by_hand, 6, 10)
    handle = by_hand.tables.open(epochs.NAME)
    younger = [file for file in active_files(handle) if file["min.epoch"] > 5]
    rows = by_hand.warehouse.read_files(
        by_hand.tables.path(epochs.NAME), [file["path"] for file in younger], arrow_schema(handle)
    )
    (file,) = write_rows(by_hand.warehouse, by_hand.tables.path(epochs.NAME), "epochs-compacted", rows)
    actions = [add_action(file), *map(remove_action, younger)]
    commit(by_hand.warehouse, handle, actions, {COMPACTION: epochs.NAME})


def test_old_rows_go_file_by_file(by_hand: ByHand) -> None:
    two_files(by_hand)
    assert kept(by_hand, days=11) == list(range(1, 11))
    assert kept(by_hand, days=10 - 5 / 1440) == list(range(1, 11)), "epoch 5 began at that moment"
    assert kept(by_hand, days=10 - 5.5 / 1440) == list(range(6, 11))
    assert kept(by_hand, days=0) == list(range(6, 11)), "the newest snapshot's row is in that file"
    assert newest(by_hand, None) == [10, 9, 8, 7, 6]
    assert pin_epoch(by_hand.tables).epochs["epoch"].to_pylist() == [6, 7, 8, 9, 10]


def test_rows_of_snapshots_that_can_be_restored_stay(by_hand: ByHand) -> None:
    two_files(by_hand)
    assert kept(by_hand, days=0, snapshots=6) == list(range(1, 11))
    restore(by_hand.tables, find_snapshot(by_hand.tables, "5"), 0)
    assert sorted(by_hand.rows(epochs.NAME)["epoch"].to_pylist()) == [1, 2, 3, 4, 5, 11]


def test_late_rows_of_epochs_that_left_the_table_are_pruned_as_ever(by_hand: ByHand) -> None:
    run(by_hand, 1, 4)
    by_hand.epoch(("zoe", at("01:00"), 1), watermark=at("05:00"))
    compact(by_hand.tables, epochs.NAME)
    run(by_hand, 6, 7)
    assert by_hand.rows("late")["epoch"].to_pylist() == [5]
    assert kept(by_hand, days=1) == [7]
    assert prune(by_hand.tables, START_OF_DRIVER + 7 * 60_000, 0) == {"late": 0, "rejects": 0}
    assert prune(by_hand.tables, START_OF_DRIVER + 7 * 60_000 + 1, 0) == {"late": 1, "rejects": 0}


def test_rows_whose_epoch_is_gone_were_judged_by_no_smaller_watermark_than_they_were(by_hand: ByHand) -> None:
    run(by_hand, 1, 6)
    made = by_hand.rows(epochs.NAME).sort_by("epoch")
    whole, rest = JudgedAt(made, 0), JudgedAt(made.slice(3), 0)
    assert [rest(version) for version in (5, 6)] == [whole(version) for version in (5, 6)]
    assert all(rest(version) >= whole(version) for version in range(7))


def test_the_list_has_all_that_operators_count() -> None:
    assert set(Counters().by_name()) <= {counter.name for counter in counters.COUNTERS}


def test_names_are_unique_and_each_counter_says_what_it_counts() -> None:
    names = [counter.name for counter in counters.COUNTERS]
    assert len(set(names)) == len(names)
    assert all(counter.meaning for counter in counters.COUNTERS)


def test_table_epochs_keeps_every_counter_that_is_kept_and_no_other() -> None:
    kept = {counter.name for counter in counters.KEPT}
    fields = {field.name: field for field in epochs.SCHEMA}
    assert kept <= set(fields)
    assert not {counter.name for counter in counters.COUNTERS if not counter.is_kept} & set(fields)
    for counter in counters.KEPT:
        assert not fields[counter.name].nullable
        assert fields[counter.name].metadata[b"comment"].decode() == counter.meaning


def test_each_range_of_key_groups_keeps_the_counters_of_shards_in_their_order() -> None:
    shard = epochs.SCHEMA.field("shards").type.value_type
    assert shard.names == ["first", "last", *counters.OF_SHARDS]
    assert set(counters.OF_SHARDS) <= set(counters.OF_TASKS)


def test_what_becomes_of_rows_adds_up_without_the_rows_themselves() -> None:
    assert counters.FATES == ("on_time", "late", "no_window", "rejected", "dropped")
    assert counters.filtered({"on_time": 1, "late": 2, "no_window": 4, "rejected": 8, "dropped": 16}) == 28
    assert counters.fired({"fired_early": 1, "fired_on_time": 2, "fired_late": 4}) == 7

from __future__ import annotations

import pytest

from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables import compaction
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.pipelines.storage.warehouse import active_files


def test_many_small_files_become_one_and_no_row_changes(by_hand: ByHand) -> None:
    by_hand.hours(8, 9, 10, 11)
    before = by_hand.rows("results").sort_by("epoch")
    assert compact(by_hand.tables, "results") == (3, 1)
    assert by_hand.rows("results").sort_by("epoch") == before
    (file,) = active_files(by_hand.tables.open("results"))
    assert (file["num_records"], file["min.epoch"], file["max.epoch"]) == (3, 2, 4)


def test_a_table_of_one_file_is_left_alone(by_hand: ByHand) -> None:
    by_hand.hours(8, 9)
    version = by_hand.tables.open("results").version()
    assert compact(by_hand.tables, "results") == (1, 1)
    assert compact(by_hand.tables, "late") == (0, 0)
    assert by_hand.tables.open("results").version() == version


def test_files_are_put_together_only_up_to_a_size(by_hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand.hours(*range(8, 16))
    size = active_files(by_hand.tables.open("results"))[0]["size_bytes"]
    monkeypatch.setattr(compaction, "FILE_SIZE", int(size * 3.5))
    before, after = compact(by_hand.tables, "results")
    assert (before, after) == (7, 3)
    assert len(by_hand.rows("results")) == 7


def test_epochs_go_on_over_a_compacted_table_and_publish_once(by_hand: ByHand) -> None:
    by_hand.hours(8, 9, 10)
    compact(by_hand.tables, "results")
    assert by_hand.tables.open("results").transaction_version(by_hand.tables.application) == 3
    by_hand.hours(11)
    assert sorted(by_hand.rows("results")["total"].to_pylist()) == [8, 9, 10]


def test_a_restore_removes_exactly_its_rows_from_a_file_that_holds_others(by_hand: ByHand) -> None:
    by_hand.hours(8, 9, 10, 11)
    compact(by_hand.tables, "results")
    restore(by_hand.tables, find_snapshot(by_hand.tables, "3"), 0)
    assert sorted(by_hand.rows("results")["total"].to_pylist()) == [8, 9]


def test_it_is_no_change_of_data_for_those_who_follow_the_table(by_hand: ByHand) -> None:
    by_hand.hours(8, 9, 10)
    compact(by_hand.tables, "results")
    changed = by_hand.tables.open("results")
    log = (by_hand.folder / "warehouse/sessions/results/_delta_log" / f"{changed.version():020d}.json").read_text()
    assert log.count('"dataChange":false') == 3
    assert '"dataChange":true' not in log


def test_a_commit_in_between_is_refused_and_nothing_doubles(by_hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    by_hand.hours(8, 9, 10)

    def met(*arguments: object) -> None:
        by_hand.tables.open("results").optimize.compact()

    monkeypatch.setattr(compaction, "check_written", met)
    with pytest.raises(Refused, match=r"another process committed to .*results after version 2 was read"):
        compact(by_hand.tables, "results")
    assert len(by_hand.rows("results")) == 2

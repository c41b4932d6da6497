from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.lake import Clock, at
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.definition import state
from tidegate.pipelines.epoch.commit import commit
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.manifest import DataFile
from tidegate.pipelines.ledger.snapshots import commit as commit_of_snapshots
from tidegate.pipelines.ledger.snapshots.head import list_snapshots, read_snapshot
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Clearing, Retention, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, find_snapshot, read_savepoint
from tidegate.pipelines.ledger.tables.compaction import drop_old_epochs
from tidegate.pipelines.ledger.tables.files import check_written
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL
from tidegate.pipelines.ledger.tables.table_log import TableLog, not_ahead
from tidegate.pipelines.storage.warehouse import Warehouse, read_table
from tidegate.windowing.time import from_millis

LONG_AFTER = (time.time_ns() // 1_000_000) + 365 * 86_400_000


def hours(by_hand: ByHand, *numbers: int) -> None:
    for number in numbers:
        by_hand.epoch(("ann", at(f"{number:02d}:00"), number), watermark=at(f"{number:02d}:00"))


def keep(by_hand: ByHand, snapshots: int, age: timedelta = timedelta(0), dry_run: bool = False) -> Clearing:
    with Lease(by_hand.tables, "vacuum", Clock()):
        return vacuum(by_hand.tables, Retention(snapshots, age), LONG_AFTER, dry_run)


def on_disk(by_hand: ByHand, table: str) -> set[str]:
    return {path.name for path in Path(by_hand.tables.path(table)).glob("*.parquet")}


def content(by_hand: ByHand) -> dict[str, list[str]]:
    return {table: sorted(map(str, by_hand.rows(table).to_pylist())) for table in ALL}


def test_the_newest_snapshots_stay_by_number(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10, 11)
    clearing = keep(by_hand, 2)
    assert clearing.snapshots == (2, 1)
    assert [entry.manifest["epoch"] for entry in list_snapshots(by_hand.tables)] == [4, 3]
    for entry in list_snapshots(by_hand.tables):
        snapshot = read_snapshot(by_hand.tables, entry.version)
        assert snapshot is not None
        assert len(read_table(by_hand.warehouse, snapshot.handle)) == 2


def test_snapshots_of_a_backfill_stay_for_an_age_however_many_they_are(by_hand: ByHand) -> None:
    for number in (8, 9, 10, 11):
        end = at(f"{number:02d}:00")
        row = ("ann", end - timedelta(minutes=30), number)
        by_hand.epoch(row, watermark=end, kind="backfill", interval=(end - timedelta(hours=1), end))
    assert keep(by_hand, 1, timedelta(days=366)).snapshots == ()
    assert len(list_snapshots(by_hand.tables)) == 4


def test_nothing_that_is_published_changes(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10, 11)
    before = content(by_hand)
    keep(by_hand, 1)
    assert content(by_hand) == before
    hours(by_hand, 12)
    assert sorted(by_hand.rows("results")["total"].to_pylist()) == [8, 9, 10, 11]


def test_files_that_only_older_snapshots_had_go(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10, 11)
    clearing = keep(by_hand, 1)
    head = by_hand.head()
    assert on_disk(by_hand, "state") == {file["path"] for file in (*head.files, *head.manifest_files)}
    assert clearing.size > 0
    assert keep(by_hand, 1).files == {table: {} for table in ALL}


def test_files_that_belong_to_nothing_go(by_hand: ByHand) -> None:
    hours(by_hand, 8)
    by_hand.planned([("zoe", at("10:00"), 1)], at("11:00")).operate()
    keep(by_hand, 9)
    listed = {file["path"] for entry in (by_hand.head(),) for file in (*entry.files, *entry.manifest_files)}
    assert on_disk(by_hand, "state") == listed


def test_a_dry_run_tells_the_same_and_changes_nothing(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10)
    versions = {table: by_hand.tables.open(table).version() for table in ALL}
    files = {table: on_disk(by_hand, table) for table in ALL}
    told = keep(by_hand, 1, dry_run=True)
    assert {table: by_hand.tables.open(table).version() for table in ALL} == versions
    assert {table: on_disk(by_hand, table) for table in ALL} == files
    assert keep(by_hand, 1) == told


def test_every_retained_snapshot_can_be_restored_with_its_results(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10, 11, 12)
    keep(by_hand, 3)
    for epoch, fired in (("4", 3), ("3", 2), ("5", 4)):
        restore(by_hand.tables, find_snapshot(by_hand.tables, epoch), 0)
        assert len(by_hand.rows("results")) == fired
    with pytest.raises(UsageError, match="'2' is not a snapshot"):
        find_snapshot(by_hand.tables, "2")


def test_results_of_a_line_that_was_left_stay_as_long_as_its_snapshots(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10)
    restore(by_hand.tables, find_snapshot(by_hand.tables, "1"), 0)
    keep(by_hand, 4)
    restore(by_hand.tables, find_snapshot(by_hand.tables, "3"), 0)
    assert sorted(by_hand.rows("results")["total"].to_pylist()) == [8, 9]


def test_a_savepoint_outlives_everything(by_hand: ByHand) -> None:
    hours(by_hand, 8)
    create_savepoint(by_hand.tables, by_hand.head(), "first", 0)
    hours(by_hand, 9, 10, 11)
    keep(by_hand, 1)
    assert read_savepoint(by_hand.tables, "first").manifest.epoch == 1
    restore(by_hand.tables, find_snapshot(by_hand.tables, "savepoint:first"), 0)
    assert len(by_hand.rows("results")) == 0
    hours(by_hand, 9)
    assert by_hand.rows("results")["total"].to_pylist() == [8]


def test_what_is_not_yet_published_is_published_before_anything_goes(by_hand: ByHand) -> None:
    hours(by_hand, 8)
    unpublished = by_hand.committed(by_hand.planned([("ann", at("09:00"), 9)], at("09:00")))
    keep(by_hand, 1)
    assert by_hand.rows("results")["total"].to_pylist() == [8]
    publish(by_hand.tables, unpublished)
    assert len(by_hand.rows("results")) == 1


def test_a_driver_that_hung_just_before_its_commit_can_not_commit_any_more(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had checked its files, which are gone now: its commit would point to nothing for ever."""
    hours(by_hand, 8)
    hung = by_hand.planned([("ann", at("09:00"), 9)], at("09:00"))
    outcomes = hung.operate()

    def checked_and_hung(warehouse: Warehouse, path: str, files: Sequence[DataFile]) -> None:
        check_written(warehouse, path, files)
        if path == by_hand.tables.path("state"):
            keep(by_hand, 1)

    with monkeypatch.context() as planted:
        planted.setattr(commit_of_snapshots, "check_written", checked_and_hung)
        with pytest.raises(Refused, match="another driver committed"):
            commit(hung.plan, outcomes, {})
    hours(by_hand, 9)
    assert by_hand.rows("results")["total"].to_pylist() == [8]


def test_a_reader_of_the_results_has_as_long_as_the_age(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10)
    opened = by_hand.tables.open("results")
    by_hand.tables.open("results").optimize.compact()
    keep(by_hand, 1, timedelta(days=366))
    assert len(read_table(by_hand.warehouse, opened)) == 2


def test_a_clean_up_that_died_half_way_leaves_only_versions_that_can_be_read(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours(by_hand, 8, 9, 10, 11)
    left = [0]
    delete = type(by_hand.warehouse).delete_file

    def die(*arguments: str) -> None:
        left[0] += 1
        if left[0] > 4:
            raise KeyboardInterrupt
        delete(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as planted:
        planted.setattr(type(by_hand.warehouse), "delete_file", die)
        with pytest.raises(KeyboardInterrupt):
            keep(by_hand, 1)
    for entry in list_snapshots(by_hand.tables):
        snapshot = read_snapshot(by_hand.tables, entry.version)
        assert snapshot is not None
        assert len(read_table(by_hand.warehouse, snapshot.handle)) == 2
    keep(by_hand, 1)
    hours(by_hand, 12)


@pytest.mark.parametrize("kept", [1, 3])
def test_a_clean_up_that_died_after_a_checkpoint_and_before_its_note_is_repeated(by_hand: ByHand, kept: int) -> None:
    """deltalake does not write the note once the checkpoint is there."""
    hours(by_hand, 8, 9, 10, 11)
    for version in range(1, 5):
        by_hand.tables.open(state.NAME, version).create_checkpoint()
    for table in ALL:
        Path(by_hand.tables.path(table), "_delta_log", "_last_checkpoint").unlink(missing_ok=True)
    before = content(by_hand)
    assert len(keep(by_hand, kept).snapshots) == 4 - kept
    assert content(by_hand) == before
    hours(by_hand, 12)
    assert keep(by_hand, kept).snapshots != ()


def test_other_engines_read_a_table_whose_log_was_shortened(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10, 11)
    keep(by_hand, 1)
    log = Path(by_hand.tables.path("state"), "_delta_log")
    assert min(int(path.name[:20]) for path in log.glob("*.json") if path.name[:20].isdigit()) > 1
    assert len(DeltaTable(by_hand.tables.path("state")).to_pyarrow_dataset().to_table()) == 2


def test_at_least_the_newest_snapshot_stays(by_hand: ByHand) -> None:
    with pytest.raises(UsageError, match="the newest snapshot is never removed"):
        Retention(0, timedelta(days=1))
    with pytest.raises(Refused, match="no snapshot yet"):
        keep(by_hand, 1)


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_one_commit_that_was_dated_ahead_does_not_stop_the_clean_up(by_hand: ByHand, ahead: int) -> None:
    now = time.time_ns() // 1_000_000
    for number in (1, 2, 3, 4):
        hours(by_hand, 7 + number)
        by_hand.dated(from_millis(now - (10 - number) * 3_600_000 if number != ahead else now + 365 * 86_400_000))
    with Lease(by_hand.tables, "vacuum", Clock()):
        vacuum(by_hand.tables, Retention(1, timedelta(hours=2), timedelta(hours=2)), now)
    assert [entry.manifest["epoch"] for entry in list_snapshots(by_hand.tables)] == [4]
    assert TableLog(by_hand.tables, "results").versions == [by_hand.tables.open("results").version()]


def test_times_that_are_ahead_give_way_to_the_next_commit() -> None:
    assert not_ahead([10, 99, 30, 40], 50) == [10, 30, 30, 40]
    assert not_ahead([10, 99, 98, 97], 50) == [10, 50, 50, 50]
    assert not_ahead([10, 40, 20, 50], 50) == [10, 40, 20, 50], "a clock that was behind says nothing about others"
    assert not_ahead([], 50) == []


@pytest.mark.parametrize("ahead", [10**13, 300_000_000_000_000])
def test_one_epoch_whose_clock_was_ahead_does_not_keep_old_epochs(by_hand: ByHand, ahead: int) -> None:
    """The second one is beyond the year 9999."""
    for number, started_at in enumerate((1_000, ahead, 3_000, 4_000), 1):
        planned = by_hand.planned([("ann", at(f"{number:02d}:00"), 1)], at(f"{number:02d}:00"))
        plan = replace(planned.plan, started_at=started_at)
        publish(by_hand.tables, by_hand.committed(replace(planned, plan=plan)))
    assert drop_old_epochs(by_hand.tables, 3_500, 4, 10_000) == 3
    assert by_hand.rows("epochs")["epoch"].to_pylist() == [4]


def test_a_clean_up_goes_on_over_the_first_part_of_a_checkpoint_that_a_full_disk_left(by_hand: ByHand) -> None:
    hours(by_hand, 8, 9, 10, 11)
    for table in ALL:
        log = Path(by_hand.tables.path(table), "_delta_log")
        for version in range(6):
            (log / f"{version:020d}.checkpoint.parquet.tmp").write_bytes(b"PAR1")
    for _ in range(2):
        keep(by_hand, 1)
    assert [entry.manifest["epoch"] for entry in list_snapshots(by_hand.tables)] == [4]
    hours(by_hand, 12)
    assert keep(by_hand, 1).snapshots == (4,)

"""The rules for retaining snapshots, over lists of them: epoch, kind, hour of the commit, and the parent epoch."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from deltalake import DeltaTable

from tests.lake import LOCAL, Clock, Lake, at, hourly_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.airflow.tasks import WatermarkWatch
from tidegate.pipelines.definition import state, windows
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.epoch.commit import commit
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.manifest import DataFile
from tidegate.pipelines.ledger.snapshots import commit as commit_of_snapshots
from tidegate.pipelines.ledger.snapshots.head import SnapshotEntry, list_snapshots, read_snapshot
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.ledger.snapshots.publish_windows import make_windows
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import HOUR, Clearing, Retention, retained, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, find_snapshot, read_savepoint
from tidegate.pipelines.ledger.tables.compaction import drop_old_epochs
from tidegate.pipelines.ledger.tables.files import check_written
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL
from tidegate.pipelines.ledger.tables.table_log import TableLog, not_ahead
from tidegate.pipelines.observe.inspect.status import read_status
from tidegate.pipelines.observe.report.page import render
from tidegate.pipelines.observe.report.run import read_run
from tidegate.pipelines.project.cli import run
from tidegate.pipelines.storage.warehouse import Warehouse, read_table
from tidegate.windowing import Count, TumblingProcessingTimeWindows, Windows
from tidegate.windowing.errors import IllegalArgument
from tidegate.windowing.time import from_millis, show_millis

LONG_AFTER = (time.time_ns() // 1_000_000) + 365 * 86_400_000


def keep(by_hand: ByHand, snapshots: int, age: timedelta = timedelta(0), dry_run: bool = False) -> Clearing:
    with Lease(by_hand.tables, "vacuum", Clock()):
        return vacuum(by_hand.tables, Retention(snapshots, age), LONG_AFTER, dry_run)


def on_disk(by_hand: ByHand, table: str) -> set[str]:
    return {path.name for path in Path(by_hand.tables.path(table)).glob("*.parquet")}


def content(by_hand: ByHand) -> dict[str, list[str]]:
    return {table: sorted(map(str, by_hand.rows(table).to_pylist())) for table in ALL}


def test_snapshots_of_a_backfill_stay_for_an_age_however_many_they_are(by_hand: ByHand) -> None:
    """A rerun interval starts from the snapshot before it, and many intervals may run within an hour."""
    for number in (8, 9, 10, 11):
        end = at(f"{number:02d}:00")
        row = ("ann", end - timedelta(minutes=30), number)
        by_hand.epoch(row, watermark=end, kind="backfill", interval=(end - timedelta(hours=1), end))
    assert keep(by_hand, 1, timedelta(days=366)).snapshots == ()
    assert len(list_snapshots(by_hand.tables)) == 4


def test_nothing_that_is_published_changes(by_hand: ByHand) -> None:
    by_hand.hours(8, 9, 10, 11)
    before = content(by_hand)
    keep(by_hand, 1)
    assert content(by_hand) == before
    by_hand.hours(12)
    assert sorted(by_hand.rows("results")["total"].to_pylist()) == [8, 9, 10, 11]


def test_files_that_only_older_snapshots_had_go(by_hand: ByHand) -> None:
    by_hand.hours(8, 9, 10, 11)
    clearing = keep(by_hand, 1)
    head = by_hand.head()
    assert on_disk(by_hand, "state") == {file["path"] for file in (*head.files, *head.manifest_files)}
    assert clearing.size > 0
    assert keep(by_hand, 1).files == {table: {} for table in ALL}


def test_files_that_belong_to_nothing_go(by_hand: ByHand) -> None:
    by_hand.hours(8)
    by_hand.planned([("zoe", at("10:00"), 1)], at("11:00")).operate()
    keep(by_hand, 9)
    listed = {file["path"] for entry in (by_hand.head(),) for file in (*entry.files, *entry.manifest_files)}
    assert on_disk(by_hand, "state") == listed


def test_a_dry_run_tells_the_same_and_changes_nothing(by_hand: ByHand) -> None:
    by_hand.hours(8, 9, 10)
    versions = {table: by_hand.tables.open(table).version() for table in ALL}
    files = {table: on_disk(by_hand, table) for table in ALL}
    told = keep(by_hand, 1, dry_run=True)
    assert {table: by_hand.tables.open(table).version() for table in ALL} == versions
    assert {table: on_disk(by_hand, table) for table in ALL} == files
    assert keep(by_hand, 1) == told


def test_every_retained_snapshot_can_be_restored_with_its_results(by_hand: ByHand) -> None:
    by_hand.hours(8, 9, 10, 11, 12)
    keep(by_hand, 3)
    for epoch, fired in (("4", 3), ("3", 2), ("5", 4)):
        restore(by_hand.tables, find_snapshot(by_hand.tables, epoch), 0)
        assert len(by_hand.rows("results")) == fired
    with pytest.raises(UsageError, match="'2' is not a snapshot"):
        find_snapshot(by_hand.tables, "2")


def test_results_of_a_line_that_was_left_stay_as_long_as_its_snapshots(by_hand: ByHand) -> None:
    by_hand.hours(8, 9, 10)
    restore(by_hand.tables, find_snapshot(by_hand.tables, "1"), 0)
    keep(by_hand, 4)
    restore(by_hand.tables, find_snapshot(by_hand.tables, "3"), 0)
    assert sorted(by_hand.rows("results")["total"].to_pylist()) == [8, 9]


def test_a_savepoint_outlives_everything(by_hand: ByHand) -> None:
    by_hand.hours(8)
    create_savepoint(by_hand.tables, by_hand.head(), "first", 0)
    by_hand.hours(9, 10, 11)
    keep(by_hand, 1)
    assert read_savepoint(by_hand.tables, "first").manifest.epoch == 1
    restore(by_hand.tables, find_snapshot(by_hand.tables, "savepoint:first"), 0)
    assert len(by_hand.rows("results")) == 0
    by_hand.hours(9)
    assert by_hand.rows("results")["total"].to_pylist() == [8]


def test_what_is_not_yet_published_is_published_before_anything_goes(by_hand: ByHand) -> None:
    by_hand.hours(8)
    unpublished = by_hand.committed(by_hand.planned([("ann", at("09:00"), 9)], at("09:00")))
    keep(by_hand, 1)
    assert by_hand.rows("results")["total"].to_pylist() == [8]
    publish(by_hand.tables, unpublished)
    assert len(by_hand.rows("results")) == 1


def test_a_driver_that_hung_just_before_its_commit_can_not_commit_any_more(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had checked its files, which have since been removed: its commit would point to missing files for ever."""
    by_hand.hours(8)
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
    by_hand.hours(9)
    assert by_hand.rows("results")["total"].to_pylist() == [8]


def test_a_clean_up_that_died_half_way_leaves_only_versions_that_can_be_read(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand.hours(8, 9, 10, 11)
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
        assert len(read_table(by_hand.warehouse, snapshot.handle)) == 2
    keep(by_hand, 1)
    by_hand.hours(12)


@pytest.mark.first(1)
@pytest.mark.parametrize("kept", [1, 3])
def test_a_clean_up_that_died_after_a_checkpoint_and_before_its_note_is_repeated(by_hand: ByHand, kept: int) -> None:
    """deltalake does not write `_last_checkpoint` if the checkpoint already exists."""
    by_hand.hours(8, 9, 10, 11)
    for version in range(1, 5):
        by_hand.tables.open(state.NAME, version).create_checkpoint()
    for table in ALL:
        Path(by_hand.tables.path(table), "_delta_log", "_last_checkpoint").unlink(missing_ok=True)
    before = content(by_hand)
    assert len(keep(by_hand, kept).snapshots) == 4 - kept
    assert content(by_hand) == before
    by_hand.hours(12)
    assert keep(by_hand, kept).snapshots != ()


@pytest.mark.first(1)
@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_one_commit_that_was_dated_ahead_does_not_stop_the_clean_up(by_hand: ByHand, ahead: int) -> None:
    now = time.time_ns() // 1_000_000
    for number in (1, 2, 3, 4):
        by_hand.hours(7 + number)
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
    by_hand.hours(8, 9, 10, 11)
    for table in ALL:
        log = Path(by_hand.tables.path(table), "_delta_log")
        for version in range(6):
            (log / f"{version:020d}.checkpoint.parquet.tmp").write_bytes(b"PAR1")
    for _ in range(2):
        keep(by_hand, 1)
    assert [entry.manifest["epoch"] for entry in list_snapshots(by_hand.tables)] == [4]
    by_hand.hours(12)
    assert keep(by_hand, 1).snapshots == (4,)


def test_a_table_that_was_recreated_since_the_last_cleanup_has_fewer_versions_than_it_noted(by_hand: ByHand) -> None:
    by_hand.hours(8)
    make_windows(by_hand.tables, ("user",), WindowsTable())
    by_hand.hours(9, 10, 11)
    keep(by_hand, 1)
    by_hand.tables.warehouse.delete_folder(by_hand.tables.path(windows.NAME))
    make_windows(by_hand.tables, ("user",), WindowsTable())
    keep(by_hand, 1)
    assert sorted(by_hand.rows(windows.NAME)["total"].to_pylist()) == [8, 9, 10]


NOW = 1000 * HOUR


def entry(epoch: int, hour: float, kind: str = "stream", parent: int | None = None, timeline: int = 1) -> SnapshotEntry:
    before = epoch - 1 if parent is None else parent
    told = {"epoch": epoch, "kind": kind, "parent": before or None, "timeline": timeline}
    return SnapshotEntry(epoch * 2, int(hour * HOUR), told)


def kept(entries: list[SnapshotEntry], snapshots: int, hours: float) -> list[int]:
    """Return the epochs that are retained."""
    newest_first = sorted(entries, key=lambda entry: -entry.version)
    versions = retained(newest_first, Retention(snapshots, timedelta(hours=hours)), NOW)
    return [entry.epoch for entry in reversed(newest_first) if entry.version in versions]


def stream(epochs: int, per_hour: int) -> list[SnapshotEntry]:
    """Return epochs of a stream whose newest one is from now."""
    return [entry(number, 1000 - (epochs - number) / per_hour) for number in range(1, epochs + 1)]


def test_of_a_stream_the_newest_of_each_hour_stays_and_the_newest_of_all() -> None:
    assert kept(stream(40, per_hour=10), snapshots=3, hours=2.5) == [19, 29, 38, 39, 40]


def test_a_snapshot_that_was_kept_for_its_hour_stays_until_it_is_too_old() -> None:
    """A cleanup after every epoch leaves the same epochs as a single one."""
    left: list[SnapshotEntry] = []
    for made in stream(100, per_hour=10):
        left = [*left, made]
        newest_first = sorted(left, key=lambda one: -one.version)
        now = made.committed_at
        stay = retained(newest_first, Retention(3, timedelta(hours=4)), now)
        left = [one for one in left if one.version in stay]
    assert [one.epoch for one in left] == kept(stream(100, per_hour=10), snapshots=3, hours=4)


def test_a_restore_stays_and_of_either_line_one_an_hour() -> None:
    made = [entry(1, 999.1), entry(2, 999.2), entry(3, 999.3, "restore", parent=1, timeline=2)]
    made += [entry(4, 999.4, timeline=2), entry(5, 999.5, timeline=2)]
    assert kept(made, 1, 24) == [2, 3, 5]


def test_at_least_one_snapshot_stays_and_no_time_is_negative() -> None:
    with pytest.raises(UsageError, match="snapshots to keep: 0; the newest snapshot is never removed"):
        Retention(0, timedelta(days=1))
    for faulty in ({"age": timedelta(-1)}, {"age": timedelta(1), "readers": timedelta(-1)}):
        with pytest.raises(IllegalArgument):
            Retention(1, **faulty)


PIPELINE = hourly_pipeline(
    compute=Windows(TumblingProcessingTimeWindows.of(timedelta(hours=1)), aggregate={"events": Count()}),
    max_ahead=timedelta(days=99_999),
)


@pytest.mark.first(1)
@pytest.mark.parametrize("event", [at("00:00"), at("00:00", 20_000)], ids=["long ago", "long ahead"])
def test_final_is_what_the_clock_has_passed(tmp_path: Path, capsys: pytest.CaptureFixture[str], event: Any) -> None:
    module = ModuleType("module_of_the_clock")
    module.pipeline = PIPELINE  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    toml = tmp_path / "tidegate.toml"
    entry = f'[pipelines.hours]\nobject = "{module.__name__}:pipeline"\nstart = "2024-03-01"\n'
    toml.write_text(f'warehouse = "warehouse"\n{entry}')
    lake = Lake(tmp_path)
    lake.append(("ann", event, 1))
    committed = DeltaTable(lake.path("events")).history(1)[0]["timestamp"]
    begin = committed // HOUR * HOUR
    lake.clock.now = committed
    lake.stream(LOCAL, PIPELINE)

    def why() -> Any:
        assert run(["why", "hours", "--json", "--config", str(toml)]) == 0
        return json.loads(capsys.readouterr().out)

    (window,) = why()["windows"]
    assert window["missing"] == begin + HOUR - committed
    assert window["lateness_left"] is None
    assert (window["reason"]["kind"], window["reason"]["at"]) == ("clock", begin + HOUR)
    end = from_millis(begin + HOUR)
    status = read_status(toml, "hours")
    assert not status.is_past(end)
    assert status.is_past(from_millis(committed))
    assert status.lag(from_millis(committed + 999)) == pytest.approx(1.0)

    lake.clock.now = begin + HOUR
    lake.stream(LOCAL, PIPELINE)
    assert why()["windows"] == []
    assert why()["final_through"] == begin + HOUR - 1
    assert read_status(toml, "hours").is_past(end)
    page = render(read_run(lake.tables(PIPELINE)))
    assert f'<dt>Clock</dt><dd id="watermark">{show_millis(begin + HOUR - 1)}</dd>' in page
    assert '<dd id="lag">-</dd>' in page
    assert "Watermark lag behind the clock" not in page
    assert "Red line: the clock." in page

    late = from_millis(begin + 3 * HOUR)
    watch = WatermarkWatch(
        task_id="watermark", pipeline="hours", config=str(toml), max_lag=timedelta(hours=1), clock=lambda: late
    )
    with pytest.raises(AirflowFailException, match=r"clock of epoch 2 is 2:00:00 behind.* Is the stream not running"):
        watch.execute({"params": {}})  # type: ignore[arg-type]

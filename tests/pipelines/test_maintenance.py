"""Maintenance of a stream's tables between epochs: there are never many files, and no needed file is removed."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest

from tests.lake import DAY0, LOCAL, Clock, Lake, at, hourly_pipeline
from tests.pipelines.by_hand import ByHand
from tests.pipelines.standing import check_windows
from tests.recovery.arrivals import FILE_BY_FILE, PIPELINE, copy_of, differences, outcome, run, source_of
from tidegate.pipelines.definition.config import WindowsTable
from tidegate.pipelines.errors import FilesMissing, Refused
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.head import list_snapshots, read_snapshot
from tidegate.pipelines.ledger.snapshots.retention import Retention
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.pipelines.ledger.tables.pipeline_tables import PipelineTables
from tidegate.pipelines.ledger.tables.table_log import TableLog
from tidegate.pipelines.run import stream as stream_module
from tidegate.pipelines.run.limits import EpochLimits
from tidegate.pipelines.run.stream import Maintenance, Stream
from tidegate.pipelines.storage.warehouse import active_files, read_table

EVERY_THIRD = Maintenance(Retention(2, timedelta(0)), epochs=3)


def hours(by_hand: ByHand, maintenance: Maintenance, *numbers: int) -> None:
    clock = Clock()
    clock.now += 60_000
    for number in numbers:
        manifest = by_hand.epoch((f"user{number}", at(f"{number:02d}:00"), number), watermark=at(f"{number:02d}:00"))
        with Lease(by_hand.tables, "stream", clock):
            maintenance.after(by_hand.tables, manifest.epoch, clock.now)


def test_the_snapshots_that_are_to_stay_can_be_read(by_hand: ByHand) -> None:
    hours(by_hand, EVERY_THIRD, *range(1, 7))
    assert [entry.manifest["epoch"] for entry in list_snapshots(by_hand.tables)] == [6, 5]
    for entry in list_snapshots(by_hand.tables):
        snapshot = read_snapshot(by_hand.tables, entry.version)
        assert len(read_table(by_hand.warehouse, snapshot.handle)) == 2


def test_it_is_done_when_its_epochs_have_gone_by_and_not_before(by_hand: ByHand) -> None:
    hours(by_hand, EVERY_THIRD, 1, 2)
    assert len(list_snapshots(by_hand.tables)) == 2
    hours(by_hand, EVERY_THIRD, 3)
    assert [entry.manifest["epoch"] for entry in list_snapshots(by_hand.tables)] == [3, 2]


@pytest.mark.long
def test_snapshots_are_removed_once_a_tenth_more_than_what_stays_has_gathered(by_hand: ByHand) -> None:
    """Reading the whole log is not worth it for a snapshot or two."""
    twenty = Maintenance(Retention(20, timedelta(0)), epochs=1)
    hours(by_hand, twenty, *range(1, 22))
    assert len(list_snapshots(by_hand.tables)) == 21
    hours(by_hand, twenty, 22)
    assert len(list_snapshots(by_hand.tables)) == 20


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (Refused("somebody commits to results at this moment"), "somebody commits to results at this moment"),
        (FilesMissing("a file of epoch 2 is gone."), "a file of epoch 2 is gone"),
        (
            OSError(28, "No space left on device"),
            r"maintenance of the tables of sessions failed: .*No space left on device",
        ),
    ],
    ids=["another at the tables", "a missing file", "a full disk"],
)
def test_what_keeps_it_from_its_work_is_told_and_the_stream_goes_on(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, trouble: Exception, told: str
) -> None:
    def met(*arguments: object) -> None:
        raise trouble

    with monkeypatch.context() as planted:
        planted.setattr(stream_module, "compact", met)
        hours(by_hand, EVERY_THIRD, 1, 2, 3, 4)
    assert by_hand.head().manifest.epoch == 4
    (warning,) = caplog.records
    assert re.search(f"after epoch 3: {told}. .*The stream tries again after 3 more epochs", warning.getMessage())
    hours(by_hand, EVERY_THIRD, 5, 6)
    assert len(active_files(by_hand.tables.open("results"))) == 1


def test_an_error_of_ours_is_not_taken_for_trouble_with_the_tables(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*arguments: object) -> None:
        raise KeyError("epoch")

    monkeypatch.setattr(stream_module, "compact", wrong)
    with pytest.raises(KeyError):
        hours(by_hand, EVERY_THIRD, 1, 2, 3)


def test_a_stream_that_is_kept_up_after_each_epoch_gives_what_it_gives_without(tmp_path: Path) -> None:
    plain = source_of(tmp_path / "plain", commits=2)
    kept = copy_of(plain, tmp_path / "kept")
    run(LOCAL, plain)
    with kept.driver(LOCAL, PIPELINE) as driver:  # type: ignore[arg-type]
        always = Maintenance(Retention(1, timedelta(0)), epochs=1)
        Stream(driver, lambda manifest: None, EpochLimits(files=1), always).run_available()
    assert differences(outcome(kept), outcome(plain)) == {}


class Rewriting(Maintenance):
    """Delta writes a checkpoint after epoch 3, as at every tenth version, and we rewrite it after epoch 4."""

    def after(self, tables: PipelineTables, epoch: int, *others: object) -> bool:
        """Do what maintenance does to table results at that point."""
        if epoch == 3:
            compact(tables, "results", 2)
            tables.open("results").create_checkpoint()
        if epoch == 4:
            TableLog(tables, "results").write_checkpoint(tables.open("results").version())
        return True


def test_a_handle_from_before_a_checkpoint_was_rewritten_is_not_published_to(lake: Lake) -> None:
    pipeline, maintenance = hourly_pipeline(parallelism=1), Rewriting(Retention(2, timedelta(0)))
    for hours in (0, 9, 18, 18, 27):
        lake.append(("ann", DAY0 + timedelta(hours=hours), 1))
    with lake.driver(LOCAL, pipeline) as driver:
        driver.windows = WindowsTable()
        Stream(driver, lambda manifest: None, FILE_BY_FILE, maintenance=maintenance).run_available()
    check_windows(lake.tables(pipeline))

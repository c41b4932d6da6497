"""Cached handles give the same as opening the tables: our own commits advance them, and those of others don't."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.lake import DAY0, at
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots.head import Snapshot, following, read_snapshot
from tidegate.pipelines.ledger.snapshots.publish import publish_table
from tidegate.pipelines.ledger.tables.pipeline_tables import Handles
from tidegate.pipelines.storage.delta_log import entry_name
from tidegate.pipelines.storage.warehouse import active_files

EPOCHS = 12
"""Delta writes a checkpoint with the tenth commit."""


def epoch(by_hand: ByHand, number: int, parent: Snapshot | None) -> Snapshot | None:
    """Commit an epoch on a snapshot, and return the snapshot that its handle gives."""
    at = DAY0 + timedelta(hours=number)
    plan = by_hand.planned([(f"user{number % 3}", at, number)], at - timedelta(hours=2), parent=parent)
    manifest = by_hand.committed(plan)
    return None if plan.plan.head is None else following(plan.plan.head, manifest)


def test_the_head_after_our_own_commit_is_what_the_table_has(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path)
    epoch(by_hand, 0, None)
    for number in range(1, EPOCHS):
        moved, opened = epoch(by_hand, number, None), read_snapshot(by_hand.tables)
        assert (moved.version, moved.manifest) == (opened.version, opened.manifest)
        key = lambda file: str(file["path"])  # noqa: E731
        assert sorted(moved.files, key=key) == sorted(opened.files, key=key)
        assert moved.manifest_files == opened.manifest_files


def test_after_a_commit_of_others_there_is_none(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path)
    epoch(by_hand, 0, None)
    head = by_hand.head()
    manifest = by_hand.committed(by_hand.planned([("ann", DAY0, 1)], DAY0, parent=head))
    DeltaTable(by_hand.tables.path("state")).alter.set_table_properties({"delta.appendOnly": "false"})
    assert following(head, manifest) is None
    assert following(by_hand.head(), manifest) is None, "nobody committed after it"


def test_tables_are_published_to_through_kept_handles_as_through_new_ones(tmp_path: Path) -> None:
    kept, opened, handles = ByHand(tmp_path / "kept"), ByHand(tmp_path / "opened"), Handles()
    for number in range(EPOCHS):
        for by_hand, given in ((kept, handles), (opened, None)):
            at = DAY0 + timedelta(hours=number)
            manifest = by_hand.committed(by_hand.planned([("ann", at, number)], at - timedelta(minutes=1)))
            for table in ("results", "late", "rejects", "epochs"):
                publish_table(by_hand.tables, manifest, table, given)
                assert not publish_table(by_hand.tables, manifest, table, given), "it has the epoch already"
    for table in ("results", "epochs"):
        one, other = (by_hand.tables.open(table) for by_hand in (kept, opened))
        assert one.version() == other.version()
        assert len(active_files(one)) == len(active_files(other)) > 1


def test_a_property_that_others_gave_a_table_is_found_although_its_handle_was_kept(tmp_path: Path) -> None:
    by_hand, handles = ByHand(tmp_path), Handles()

    def publish(number: int) -> None:
        at = DAY0 + timedelta(hours=number)
        manifest = by_hand.committed(by_hand.planned([("ann", at, number)], at - timedelta(minutes=1)))
        publish_table(by_hand.tables, manifest, "epochs", handles)

    publish(0)
    publish(1)
    DeltaTable(by_hand.tables.path("epochs")).alter.set_table_properties({"delta.appendOnly": "true"})
    with pytest.raises(Refused, match=r"property delta\.appendOnly=true"):
        publish(2)


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_cached_handle_is_not_used_for_a_missing_or_older_table(three_epochs: ByHand, is_gone: bool) -> None:
    handles = Handles()
    three_epochs.tables.newest("results")
    kept = [handles.open(three_epochs.tables, "results") for _ in range(3)]
    assert kept[1] is kept[2]
    if not is_gone:
        the_version_before(three_epochs)
        assert handles.open(three_epochs.tables, "results").version() == kept[2].version() - 1
        return
    shutil.rmtree(three_epochs.tables.path("results"))
    with pytest.raises(Refused, match="is gone"):
        handles.open(three_epochs.tables, "results")


@pytest.fixture
def three_epochs(tmp_path: Path) -> ByHand:
    made = ByHand(tmp_path)
    for number in range(3):
        made.epoch(("ann", at(f"1{number}:00"), number), watermark=at(f"1{number}:00"))
    return made


def log_of_results(by_hand: ByHand) -> Path:
    return Path(by_hand.tables.path("results"), "_delta_log")


def test_a_table_that_nobody_committed_to_is_opened_once(three_epochs: ByHand) -> None:
    first = three_epochs.tables.newest("results")
    assert three_epochs.tables.newest("results") is first
    assert first.version() == three_epochs.tables.open("results").version()


def a_commit(by_hand: ByHand) -> None:
    handle = by_hand.tables.open("results")
    handle.create_write_transaction([], "append", handle.schema())


def a_copy_in_its_place(by_hand: ByHand) -> None:
    path = Path(by_hand.tables.path("results"))
    shutil.copytree(path, path.with_name("copy"))
    shutil.rmtree(path)
    path.with_name("copy").rename(path)


def the_version_before(by_hand: ByHand) -> None:
    (log_of_results(by_hand) / entry_name(by_hand.tables.open("results").version())).unlink()


def a_checkpoint(by_hand: ByHand) -> None:
    by_hand.tables.open("results").create_checkpoint()


def a_reader_that_moved_it(by_hand: ByHand) -> None:
    by_hand.tables.newest("results").load_as_version(1)


@pytest.mark.parametrize(
    "change", [a_commit, a_copy_in_its_place, the_version_before, a_checkpoint, a_reader_that_moved_it]
)
def test_after_a_change_it_is_opened_again(three_epochs: ByHand, change: Callable[[ByHand], None]) -> None:
    before = three_epochs.tables.newest("results")
    change(three_epochs)
    after = three_epochs.tables.newest("results")
    assert after is not before
    assert after.version() == DeltaTable(three_epochs.tables.path("results")).version()


def test_an_entry_that_is_damaged_is_refused_as_opening_does(three_epochs: ByHand) -> None:
    three_epochs.tables.newest("results")
    (log_of_results(three_epochs) / entry_name(1)).write_text("{")
    with pytest.raises(Refused, match="can't be opened"):
        three_epochs.tables.open("results")
    with pytest.raises(Refused, match="can't be opened"):
        three_epochs.tables.newest("results")


def test_a_table_that_is_gone_is_told(three_epochs: ByHand) -> None:
    three_epochs.tables.newest("results")
    shutil.rmtree(three_epochs.tables.path("results"))
    with pytest.raises(Refused, match="is gone"):
        three_epochs.tables.newest("results")


def test_a_property_with_which_our_commits_would_be_wrong_is_refused(three_epochs: ByHand) -> None:
    three_epochs.tables.newest("results")
    three_epochs.tables.open("results").alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    with pytest.raises(Refused, match="enableChangeDataFeed"):
        three_epochs.tables.newest("results")


def test_a_handle_that_readers_share_is_not_moved_on_by_who_publishes(three_epochs: ByHand) -> None:
    shared, handles = three_epochs.tables.newest("results"), Handles()
    version = shared.version()
    for _ in range(3):
        handle = handles.open(three_epochs.tables, "results")
        assert handle.version() == three_epochs.tables.open("results").version()
        handle.create_write_transaction([], "append", handle.schema())
        handles.keep("results", handle)
    assert shared.version() == version

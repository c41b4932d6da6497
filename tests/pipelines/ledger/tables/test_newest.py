"""Readers of one process share a table's handle until anything in the table's log changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.tables.pipeline_tables import Handles
from tidegate.pipelines.storage.delta_log import entry_name


@pytest.fixture
def by_hand(tmp_path: Path) -> ByHand:
    made = ByHand(tmp_path)
    for number in range(3):
        made.epoch(("ann", at(f"1{number}:00"), number), watermark=at(f"1{number}:00"))
    return made


def log(by_hand: ByHand) -> Path:
    return Path(by_hand.tables.path("results"), "_delta_log")


def test_a_table_that_nobody_committed_to_is_opened_once(by_hand: ByHand) -> None:
    first = by_hand.tables.look("results")
    assert by_hand.tables.look("results") is first
    assert first.version() == by_hand.tables.open("results").version()


def a_commit(by_hand: ByHand) -> None:
    handle = by_hand.tables.open("results")
    handle.create_write_transaction([], "append", handle.schema())


def a_copy_in_its_place(by_hand: ByHand) -> None:
    path = Path(by_hand.tables.path("results"))
    shutil.copytree(path, path.with_name("copy"))
    shutil.rmtree(path)
    path.with_name("copy").rename(path)


def the_version_before(by_hand: ByHand) -> None:
    (log(by_hand) / entry_name(by_hand.tables.open("results").version())).unlink()


def a_checkpoint(by_hand: ByHand) -> None:
    by_hand.tables.open("results").create_checkpoint()


def a_reader_that_moved_it(by_hand: ByHand) -> None:
    by_hand.tables.look("results").load_as_version(1)


@pytest.mark.parametrize(
    "change", [a_commit, a_copy_in_its_place, the_version_before, a_checkpoint, a_reader_that_moved_it]
)
def test_after_a_change_it_is_opened_again(by_hand: ByHand, change: Callable[[ByHand], None]) -> None:
    before = by_hand.tables.look("results")
    change(by_hand)
    after = by_hand.tables.look("results")
    assert after is not before
    assert after.version() == DeltaTable(by_hand.tables.path("results")).version()


def test_an_entry_that_is_damaged_is_refused_as_opening_does(by_hand: ByHand) -> None:
    by_hand.tables.look("results")
    (log(by_hand) / entry_name(1)).write_text("{")
    with pytest.raises(Refused, match="can't be opened"):
        by_hand.tables.open("results")
    with pytest.raises(Refused, match="can't be opened"):
        by_hand.tables.look("results")


def test_a_table_that_is_gone_is_told(by_hand: ByHand) -> None:
    by_hand.tables.look("results")
    shutil.rmtree(by_hand.tables.path("results"))
    with pytest.raises(Refused, match="is gone"):
        by_hand.tables.look("results")


def test_a_property_with_which_our_commits_would_be_wrong_is_refused(by_hand: ByHand) -> None:
    by_hand.tables.look("results")
    by_hand.tables.open("results").alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    with pytest.raises(Refused, match="enableChangeDataFeed"):
        by_hand.tables.look("results")


def test_a_handle_that_readers_share_is_not_moved_on_by_who_publishes(by_hand: ByHand) -> None:
    shared, handles = by_hand.tables.look("results"), Handles()
    version = shared.version()
    for _ in range(3):
        handle = handles.open(by_hand.tables, "results")
        assert handle.version() == by_hand.tables.open("results").version()
        handle.create_write_transaction([], "append", handle.schema())
        handles.keep("results", handle)
    assert shared.version() == version

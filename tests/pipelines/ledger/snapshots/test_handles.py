"""Handles that move on with our own commits give what opening the tables gives; after those of others they do not."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.lake import DAY0
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots.head import Snapshot, following, read_snapshot
from tidegate.pipelines.ledger.snapshots.publish import publish_table
from tidegate.pipelines.ledger.tables.pipeline_tables import Handles
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
        assert moved is not None
        assert opened is not None
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

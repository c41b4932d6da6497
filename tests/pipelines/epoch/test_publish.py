from __future__ import annotations

from pathlib import Path

import pytest

from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tests.remedies import remedy_of
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest, StaleInterval
from tidegate.pipelines.ledger.snapshots import publish as step
from tidegate.pipelines.ledger.snapshots.head import Snapshot
from tidegate.pipelines.ledger.snapshots.publish import publish, publish_table
from tidegate.pipelines.ledger.tables.commits import Outrun
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED
from tidegate.pipelines.remedy import Act


def fired(by_hand: ByHand, parent: Snapshot | None = None) -> Manifest:
    """An epoch that is committed but not published; ann's session of 10:00 fires in it."""
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    return by_hand.committed(by_hand.planned([("bob", at("09:00"), 1)], at("11:00"), parent=parent))


@pytest.mark.parametrize("done", range(len(PUBLISHED) + 1))
def test_a_publish_that_ended_after_any_table_is_taken_up_where_it_stopped(by_hand: ByHand, done: int) -> None:
    manifest = fired(by_hand)
    for table in PUBLISHED[:done]:
        publish_table(by_hand.tables, manifest, table)
    publish(by_hand.tables, manifest)
    assert (len(by_hand.rows("results")), len(by_hand.rows("late")), len(by_hand.rows("epochs"))) == (1, 1, 2)


def test_a_zombie_can_not_publish_after_its_timeline_was_left(by_hand: ByHand) -> None:
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    parent = by_hand.head()
    hung = by_hand.committed(by_hand.planned([("zoe", at("10:00"), 1)], at("11:00")))
    by_hand.epoch(("bob", at("10:00"), 1), watermark=at("11:00"), parent=parent)
    publish(by_hand.tables, hung)
    assert sorted(by_hand.rows("results")["user"].to_pylist()) == ["ann", "bob"]
    assert set(by_hand.rows("results")["epoch"].to_pylist()) == {3}


def test_the_first_epoch_of_a_timeline_goes_to_every_table_even_with_nothing_in_it(by_hand: ByHand) -> None:
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    parent = by_hand.head()
    by_hand.epoch(watermark=at("10:01"))
    before = {table: by_hand.tables.open(table).version() for table in PUBLISHED}
    by_hand.epoch(watermark=at("10:02"), parent=parent)
    assert {table: by_hand.tables.open(table).version() - before[table] for table in PUBLISHED} == dict.fromkeys(
        PUBLISHED, 1
    )


def test_a_harmless_commit_in_between_is_met_by_looking_again(by_hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = fired(by_hand)
    commits = step._commit

    def met(*arguments: object) -> None:
        monkeypatch.setattr(step, "_commit", commits)
        by_hand.tables.open("results").alter.set_table_description("harmless")
        commits(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(step, "_commit", met)
    assert publish_table(by_hand.tables, manifest, "results")
    assert len(by_hand.rows("results")) == 1


def test_a_publish_that_never_gets_through_says_what_to_stop(by_hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = fired(by_hand)

    def always(*arguments: object) -> None:
        raise Outrun("met another")

    monkeypatch.setattr(step, "_commit", always)
    with pytest.raises(Refused, match=r"epoch 2 can't be published to .*results.*stop the other writer"):
        publish(by_hand.tables, manifest)


def test_a_file_that_is_gone_is_not_committed_and_the_way_out_is_named(by_hand: ByHand) -> None:
    manifest = fired(by_hand)
    (file,) = manifest.publish["results"].files
    Path(by_hand.tables.path("results"), file.path).unlink()
    with pytest.raises(Refused, match=r"publishing epoch 2 is impossible: .*missing") as refused:
        publish(by_hand.tables, manifest)
    assert remedy_of(refused, Act.RESTORE).at == 1
    assert len(by_hand.rows("results")) == 0


def test_rows_of_stale_epochs_are_marked_and_no_other_row_is_touched(by_hand: ByHand) -> None:
    by_hand.epoch(("ann", at("09:00"), 1), watermark=at("10:00"))
    by_hand.epoch(("bob", at("10:00"), 1), watermark=at("11:00"))
    parent = by_hand.head()
    by_hand.epoch(("cem", at("11:00"), 1), watermark=at("12:00"))
    by_hand.epoch(
        ("cem", at("11:05"), 1),
        watermark=at("12:00"),
        parent=parent,
        stale=(StaleInterval(start=0, end=1, epochs=(3,)),),
    )
    rows = {(row["user"], row["epoch"]): row["stale"] for row in by_hand.rows("results").to_pylist()}
    assert rows == {("ann", 1): False, ("bob", 2): False, ("cem", 3): True, ("cem", 4): False}


def test_the_row_of_an_epoch_holds_its_counters(by_hand: ByHand) -> None:
    publish(by_hand.tables, fired(by_hand))
    row = by_hand.rows("epochs").sort_by("epoch").to_pylist()[-1]
    assert (row["epoch"], row["parent"], row["kind"]) == (2, 1, "stream")
    assert (row["events_in"], row["on_time"], row["late"], row["fired_on_time"]) == (1, 0, 1, 1)
    assert row["watermark"] == at("11:00")

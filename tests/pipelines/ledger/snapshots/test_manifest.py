from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable

from tests.lake import at, session_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.definition.recorded import Position
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.manifest import Manifest, PartitionWatermark
from tidegate.pipelines.ledger.snapshots.head import lineage, list_snapshots, read_snapshot
from tidegate.pipelines.ledger.tables.files import add_action, write_rows


def two_epochs(by_hand: ByHand) -> Manifest:
    by_hand.epoch(("ann", at("10:00"), 1), ("bob", at("10:05"), 2), watermark=at("10:00"))
    return by_hand.epoch(
        ("ann", at("10:20"), 3),
        watermark=at("10:30"),
        partitions={"JFK": PartitionWatermark(watermark=5, generator={"max": 7}, idle=True, pending=9)},
    )


def test_a_manifest_is_the_same_after_its_way_through_the_table(by_hand: ByHand) -> None:
    manifest = two_epochs(by_hand)
    assert by_hand.head().manifest == manifest
    assert Manifest.parse(manifest.model_dump_json()) == manifest


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"epoch": "x"}, "can't be read: .* at epoch"),
        ({"future": 1}, "can't be read: .* at future"),
        ({"shards": [{"first": 0, "last": 1, "future": 1}]}, r"can't be read: .* at shards\.0\.future"),
    ],
)
def test_a_manifest_with_other_fields_is_refused(by_hand: ByHand, change: dict[str, object], named: str) -> None:
    text = json.dumps({**two_epochs(by_hand).model_dump(), **change})
    with pytest.raises(Refused, match=rf"{named}.*Only tidegate may change it: restore a savepoint"):
        Manifest.parse(text)


def test_what_is_no_manifest_is_refused() -> None:
    with pytest.raises(Refused, match="not a JSON object"):
        Manifest.parse("[]")


def test_a_position_is_one_in_its_own_source_table_only(by_hand: ByHand) -> None:
    manifest = two_epochs(by_hand)
    assert manifest.position_in("events") == manifest.positions["events"]
    with pytest.raises(Refused, match=r"reads source 'others'.*position in 'events'.*another name"):
        manifest.position_in("others")


@pytest.mark.parametrize(
    "text",
    [
        '{"version":3,"frontier":null,"files":0,"table_id":"6a1f"}',
        '{"version":3,"frontier":1709251200000,"files":2,"table_id":null}',
        '{"version":3,"frontier":null,"files":0,"digest":"90b2","lines":[1,{"a":null}]}',
    ],
    ids=["Delta", "Delta, without an id", "another source"],
)
def test_a_position_is_written_as_it_was_read_with_the_fields_of_its_source(text: str) -> None:
    position = Position.model_validate_json(text)
    assert position.model_dump_json() == text
    assert Position(**json.loads(text)) == position
    moved = json.loads(position.model_copy(update={"version": 4}).model_dump_json())
    assert moved == {**json.loads(text), "version": 4}


def test_a_source_has_no_field_of_a_name_of_ours() -> None:
    with pytest.raises(ValueError, match="can't add a field 'files'"):
        Position(version=3, own={"files": 7})


def test_the_manifest_outlives_the_clean_up_of_the_log(by_hand: ByHand) -> None:
    """The cleanup removes commits from the log; a paused pipeline must continue without them."""
    manifest = two_epochs(by_hand)
    handle = by_hand.tables.open("state")
    handle.create_checkpoint()
    log = Path(by_hand.tables.path("state")) / "_delta_log"
    for version in range(handle.version() + 1):
        (log / f"{version:020d}.json").unlink()
    assert by_hand.head().manifest == manifest
    assert list_snapshots(by_hand.tables) == []


def test_the_manifest_is_found_below_commits_of_others(by_hand: ByHand) -> None:
    manifest = two_epochs(by_hand)
    handle = by_hand.tables.open("state")
    handle.alter.set_table_description("somebody was here")
    assert read_snapshot(by_hand.tables) is not None
    assert by_hand.head().manifest == manifest
    by_hand.tables.open("state").optimize.compact()
    assert by_hand.head().manifest == manifest


def test_an_epoch_goes_on_from_a_compacted_snapshot_without_doubling_a_window(by_hand: ByHand) -> None:
    two_epochs(by_hand)
    by_hand.tables.open("state").optimize.compact()
    by_hand.epoch(("cem", at("10:40"), 1), watermark=at("10:31"))
    state = by_hand.rows("state")
    windows = state.filter(pa.compute.not_equal(state["key_group"], -1))
    assert sorted(windows["user"].to_pylist()) == ["ann", "bob", "cem"]
    assert len(state) == 4


def test_state_without_a_manifest_is_refused(by_hand: ByHand) -> None:
    two_epochs(by_hand)
    by_hand.tables.open("state").delete("key_group = -1")
    with pytest.raises(Refused, match="has state but no manifest"):
        read_snapshot(by_hand.tables)


def test_two_manifests_are_refused(by_hand: ByHand) -> None:
    two_epochs(by_hand)
    tables, handle = by_hand.tables, by_hand.tables.open("state")
    rows = by_hand.rows("state")
    (file,) = write_rows(
        tables.warehouse, tables.path("state"), "x", rows.filter(pa.compute.equal(rows["key_group"], -1))
    )
    handle.create_write_transaction(
        [add_action(file)], "append", handle.schema(), commit_properties=CommitProperties(max_commit_retries=0)
    )
    with pytest.raises(Refused, match="has 2 manifests, not one"):
        read_snapshot(tables)


def test_the_history_shows_a_short_copy_to_every_engine(by_hand: ByHand) -> None:
    manifest = two_epochs(by_hand)
    newest = DeltaTable(by_hand.tables.path("state")).history(1)[0]
    assert newest["tidegate"] == manifest.short()
    assert newest["tidegate"]["parent"] == 1


def test_the_line_of_a_snapshot_leads_past_what_was_replaced(by_hand: ByHand) -> None:
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    parent = by_hand.head()
    by_hand.epoch(("ann", at("10:20"), 3), watermark=at("10:30"))
    head = by_hand.epoch(("ann", at("10:21"), 3), watermark=at("10:30"), parent=parent)
    assert (head.timeline, head.epoch, head.parent) == (2, 3, 1)
    assert [entry.manifest["epoch"] for entry in lineage(by_hand.tables, head.epoch)] == [3, 1]


def test_an_epoch_that_touches_one_shard_leaves_the_files_of_the_others(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, session_pipeline(), parallelism=8)
    users = [(f"user{n}", at("10:00"), 1) for n in range(40)]
    by_hand.epoch(*users, watermark=at("10:00"))
    before = {file["path"] for file in by_hand.head().files}
    by_hand.epoch(("user0", at("10:01"), 1), watermark=at("10:01"))
    after = {file["path"] for file in by_hand.head().files}
    assert len(before) == 8
    assert len(before & after) == 7


def test_a_manifest_that_forgets_keys_is_the_same_after_its_way_through_json(by_hand: ByHand) -> None:
    manifest = two_epochs(by_hand)
    work = manifest.publish["results"].model_copy(update={"forgotten": ("a digest",)})
    forgotten = manifest.model_copy(update={"publish": {**manifest.publish, "results": work}})
    assert not work.is_empty
    assert Manifest.parse(forgotten.model_dump_json()) == forgotten

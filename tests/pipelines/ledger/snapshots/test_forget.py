from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.lake import Clock, at, session_pipeline
from tests.pipelines.by_hand import ByHand
from tests.remedies import remedy_of
from tidegate.pipelines.errors import Refused, UsageError
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.manifest import PartitionWatermark, Publish, Reopening
from tidegate.pipelines.ledger.snapshots import forget as step
from tidegate.pipelines.ledger.snapshots import savepoint as savepoints
from tidegate.pipelines.ledger.snapshots.forget import Forgotten, forget
from tidegate.pipelines.ledger.snapshots.head import list_snapshots
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import Retention, prune, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, find_snapshot, read_savepoint
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.keys import digest_of, key_of_texts
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, PipelineTables
from tidegate.pipelines.ledger.tables.quality import QualityRow
from tidegate.pipelines.remedy import Act

NOW = 2_000_000_000_000
TABLES = ("state", "results", "late")


def lived_in(by_hand: ByHand) -> None:
    """Zoe is in state, results and late, in compacted files and in a savepoint; so is ann."""

    def fill(by_hand: ByHand) -> None:
        by_hand.epoch(("zoe", at("10:00"), 1), ("ann", at("10:00"), 2), watermark=at("10:00"))
        create_savepoint(by_hand.tables, by_hand.head(), "before", 1)
        by_hand.epoch(("zoe", at("11:00"), 3), ("ann", at("11:00"), 4), watermark=at("11:00"))
        by_hand.epoch(("zoe", at("09:00"), 5), ("ann", at("09:00"), 6), watermark=at("11:00"))

    by_hand.filled("zoe", fill)


def erase(by_hand: ByHand, *key: str) -> Forgotten:
    with Lease(by_hand.tables, "forget", Clock()):
        return forget(by_hand.tables, by_hand.pipeline, [key], NOW)


def bytes_on_disk(by_hand: ByHand) -> bytes:
    """Return every byte under the warehouse: the statistics of Parquet files contain short strings unchanged."""
    return b"".join(path.read_bytes() for path in Path(by_hand.warehouse.uri).rglob("*") if path.is_file())


def users(by_hand: ByHand, table: str) -> list[str]:
    return sorted(user for user in by_hand.rows(table)["user"].to_pylist() if user is not None)


def test_the_key_is_gone_from_every_table_and_others_stay(by_hand: ByHand) -> None:
    lived_in(by_hand)
    forgotten = erase(by_hand, "zoe")
    assert forgotten.rows == {"results": 1, "late": 1, "rejects": 0, "state": 1, "savepoint before": 1}
    assert {table: users(by_hand, table) for table in TABLES} == {table: ["ann"] for table in TABLES}
    restore(by_hand.tables, find_snapshot(by_hand.tables, "savepoint:before"), NOW)
    assert users(by_hand, "state") == ["ann"]


def partitions(*names: str) -> dict[str, PartitionWatermark]:
    return {name: PartitionWatermark(watermark=5, last_commit=7) for name in names}


@pytest.mark.long
def test_no_byte_of_it_is_left_where_keys_are_source_partitions(by_hand: ByHand) -> None:
    by_hand.pipeline = session_pipeline(watermark_by="user")
    here = partitions("zoe", "ann")
    by_hand.epoch(("zoe", at("10:00"), 1), ("ann", at("10:00"), 2), watermark=at("10:00"), partitions=here)
    create_savepoint(by_hand.tables, by_hand.head(), "before", 1)
    by_hand.epoch(("ann", at("12:00"), 2), watermark=at("12:00"), partitions=here)
    create_savepoint(by_hand.tables, by_hand.head(), "named-only", 2)
    erase(by_hand, "zoe")
    assert b"zoe" not in bytes_on_disk(by_hand)
    assert set(by_hand.head().manifest.partitions) == {"ann"}
    for name in ("before", "named-only"):
        saved = read_savepoint(by_hand.tables, name).manifest
        assert set(saved.partitions) == {"ann"}
        assert sum(shard.rows for shard in saved.shards) == 1
    restore(by_hand.tables, find_snapshot(by_hand.tables, "savepoint:before"), NOW)
    assert users(by_hand, "state") == ["ann"]


def test_a_source_partition_is_told_by_its_value_and_its_side(by_hand: ByHand) -> None:
    by_hand.pipeline = session_pipeline(key=("value", "user"), watermark_by="value")
    here = partitions("7", "8", "null")
    by_hand.epoch(("zoe", at("10:00"), 7), ("ann", at("10:00"), 8), watermark=at("10:00"), partitions=here)
    erase(by_hand, "07", "zoe")
    assert set(by_hand.head().manifest.partitions) == {"8", "null"}


def test_a_source_partition_stays_while_other_keys_have_rows_in_it(by_hand: ByHand) -> None:
    """Without it, the watermark would overtake the rows of the others, which would be late."""
    by_hand.pipeline = session_pipeline(key=("value", "user"), watermark_by="value")
    here = partitions("7", "8")
    rows = (("zoe", at("10:00"), 7), ("bob", at("10:00"), 7), ("ann", at("10:00"), 8))
    by_hand.epoch(*rows, watermark=at("10:00"), partitions=here)
    create_savepoint(by_hand.tables, by_hand.head(), "before", 1)
    erase(by_hand, "7", "zoe")
    for manifest in (by_hand.head().manifest, read_savepoint(by_hand.tables, "before").manifest):
        assert set(manifest.partitions) == {"7", "8"}
    erase(by_hand, "7", "bob")
    for manifest in (by_hand.head().manifest, read_savepoint(by_hand.tables, "before").manifest):
        assert set(manifest.partitions) == {"8"}


@pytest.mark.long
def test_no_byte_is_left_where_somebody_compacted_the_state(by_hand: ByHand) -> None:
    """The manifest is then in a file with rows of keys."""
    lived_in(by_hand)
    by_hand.tables.open("state").optimize.compact()
    create_savepoint(by_hand.tables, by_hand.head(), "compacted", 3)
    erase(by_hand, "nobody")
    assert users(by_hand, "state") == ["ann", "zoe"]
    erase(by_hand, "zoe")
    assert b"zoe" not in bytes_on_disk(by_hand)
    assert [by_hand.head().manifest.kind, users(by_hand, "state")] == ["forget", ["ann"]]
    assert read_savepoint(by_hand.tables, "compacted").manifest.kind == "stream"


def seen(by_hand: ByHand, observed: str) -> None:
    moment = datetime(2024, 3, 1, tzinfo=UTC)
    row = QualityRow("1", moment, 1, 1, "windows", "no overlap", "", "critical", False, observed, 9, 1, 1)
    quality.append(by_hand.tables, [row])


def test_the_examples_of_checks_are_forgotten_and_their_counts_stay(by_hand: ByHand) -> None:
    lived_in(by_hand)
    for observed in ("3 of 9 rows break it, such as {'user': 'zoe'}", "['ann', 'zoe']", "2 of 9 rows break it"):
        seen(by_hand, observed)
    erase(by_hand, "zoe")
    assert b"zoe" not in bytes_on_disk(by_hand)
    kept = quality.read(by_hand.tables)["observed"].to_pylist()
    assert sorted(kept) == ["", "2 of 9 rows break it", "3 of 9 rows break it"]
    seen(by_hand, "1 of 9 rows break it")
    assert len(quality.read(by_hand.tables)) == 4


def test_the_examples_of_a_key_with_a_null_are_forgotten(by_hand: ByHand) -> None:
    by_hand.pipeline = session_pipeline(key=("user", "value"), null_keys="keep")
    by_hand.epoch(("zoe", at("10:00"), 3), watermark=at("10:00"))
    seen(by_hand, "3 of 9 rows break it, such as {'user': 'zoe', 'value': None}")
    assert erase(by_hand, "zoe", r"\N").epoch is None
    assert quality.read(by_hand.tables)["observed"].to_pylist() == ["3 of 9 rows break it"]


def test_a_savepoint_that_is_made_while_a_key_is_forgotten_is_taken_back(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files were copied before, and it appears only after `forget` has looked for savepoints."""
    lived_in(by_hand)
    copied = savepoints.copy_files

    def copy_and_wait(*arguments: Any, **options: Any) -> Any:
        files = copied(*arguments, **options)
        erase(by_hand, "zoe")
        return files

    with monkeypatch.context() as planted:
        planted.setattr(savepoints, "copy_files", copy_and_wait)
        with pytest.raises(Refused, match="a key that it may hold was forgotten: savepoint 'slow' was not created"):
            create_savepoint(by_hand.tables, by_hand.head(), "slow", 3)
    assert b"zoe" not in bytes_on_disk(by_hand)
    assert create_savepoint(by_hand.tables, by_hand.head(), "slow", 3).manifest.kind == "forget"


@pytest.mark.first(1)
@pytest.mark.parametrize("killed_before", ["check_written", "_check_copy"])
def test_a_savepoint_that_was_killed_while_a_key_is_forgotten_leaves_nothing_of_it(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch, killed_before: str
) -> None:
    """Its files were copied after `forget` had looked for copies the first time, and before older snapshots were
    removed. Without its table the copy is incomplete; with it, nothing checks any more whether a key was forgotten.
    """
    lived_in(by_hand)
    holds_it, cleaned = by_hand.head(), step.keep_newest_only

    def killed(*arguments: Any) -> None:
        raise KeyboardInterrupt

    def copy_and_clean(tables: PipelineTables) -> None:
        with monkeypatch.context() as planted:
            planted.setattr(savepoints, killed_before, killed)
            with pytest.raises(KeyboardInterrupt):
                create_savepoint(tables, holds_it, "slow", 3)
        cleaned(tables)

    monkeypatch.setattr(step, "keep_newest_only", copy_and_clean)
    erase(by_hand, "zoe")
    assert b"zoe" not in bytes_on_disk(by_hand)


def test_the_pipeline_goes_on_afterwards(by_hand: ByHand) -> None:
    lived_in(by_hand)
    forgotten = erase(by_hand, "zoe")
    assert by_hand.head().manifest.timeline == 1
    manifest = by_hand.epoch(("ann", at("11:10"), 1), watermark=at("12:00"))
    assert (manifest.epoch, manifest.parent) == (forgotten.epoch + 1, forgotten.epoch)
    assert users(by_hand, "results") == ["ann", "ann"]
    assert not by_hand.head().manifest.publish["results"].forgotten


def versions(by_hand: ByHand) -> dict[str, int]:
    return {table: by_hand.tables.open(table).version() for table in ALL}


def test_a_key_that_never_existed_costs_no_snapshot_and_no_commit(by_hand: ByHand) -> None:
    lived_in(by_hand)
    seen(by_hand, "3 of 9 rows break it, such as {'user': 'zoe'}")
    snapshots, before = list_snapshots(by_hand.tables), versions(by_hand)
    disk = bytes_on_disk(by_hand)
    with Lease(by_hand.tables, "forget", Clock()):
        disk_with_lease = bytes_on_disk(by_hand)
        forgotten = forget(by_hand.tables, by_hand.pipeline, [("nobody",)], NOW)
        assert bytes_on_disk(by_hand) == disk_with_lease != disk
    assert forgotten == Forgotten(None, dict.fromkeys(("results", "late", "rejects", "state", "savepoint before"), 0))
    assert (list_snapshots(by_hand.tables), versions(by_hand)) == (snapshots, before)


@pytest.mark.long
def test_a_key_of_which_only_an_older_snapshot_has_a_row_is_erased(by_hand: ByHand) -> None:
    """Its window is not in the results either, as after a restore that removed them."""
    lived_in(by_hand)
    by_hand.epoch(("bob", at("11:30"), 7), watermark=at("11:30"))
    restore(by_hand.tables, find_snapshot(by_hand.tables, "3"), NOW)
    assert "bob" not in {user for table in TABLES for user in users(by_hand, table)}
    assert b"bob" in bytes_on_disk(by_hand)
    assert erase(by_hand, "bob").epoch == 6
    assert b"bob" not in bytes_on_disk(by_hand)


def test_a_key_that_only_an_older_manifest_names_is_erased(by_hand: ByHand) -> None:
    by_hand.pipeline = session_pipeline(watermark_by="user")
    by_hand.epoch(("ann", at("10:00"), 2), watermark=at("10:00"), partitions=partitions("zoe", "ann"))
    by_hand.epoch(("ann", at("12:00"), 2), watermark=at("12:00"), partitions=partitions("ann"))
    assert b"zoe" in bytes_on_disk(by_hand)
    erase(by_hand, "zoe")
    assert b"zoe" not in bytes_on_disk(by_hand)


def test_a_key_that_only_a_savepoint_holds_is_erased(by_hand: ByHand) -> None:
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    by_hand.epoch(("zoe", at("10:00"), 1), watermark=at("10:00"))
    create_savepoint(by_hand.tables, by_hand.head(), "second", 1)
    restore(by_hand.tables, find_snapshot(by_hand.tables, "1"), NOW)
    with Lease(by_hand.tables, "vacuum", Clock()):
        vacuum(by_hand.tables, Retention(snapshots=1, age=0), NOW)
    assert b"zoe" in bytes_on_disk(by_hand)
    assert erase(by_hand, "zoe").rows["savepoint second"] == 1
    assert b"zoe" not in bytes_on_disk(by_hand)


def test_an_example_of_a_check_is_cut_where_it_alone_names_the_key(by_hand: ByHand) -> None:
    lived_in(by_hand)
    seen(by_hand, "3 of 9 rows break it, such as {'user': 'bob'}")
    snapshots = list_snapshots(by_hand.tables)
    assert erase(by_hand, "bob").epoch is None
    assert b"bob" not in bytes_on_disk(by_hand)
    assert list_snapshots(by_hand.tables) == snapshots


def test_the_manifest_names_a_digest_of_its_own_and_never_the_key(by_hand: ByHand) -> None:
    lived_in(by_hand)
    marks = []
    for _ in range(2):
        erase(by_hand, "zoe")
        manifest = by_hand.head().manifest
        marks += manifest.publish["results"].forgotten
        assert "zoe" not in manifest.model_dump_json()
        by_hand.epoch(("zoe", at("11:10"), 1), watermark=at("11:00"))
    assert len(marks) == len(set(marks)) == 2, "the digest of a key that anybody may guess is never the same"


@pytest.mark.long
def test_a_savepoint_of_an_erasure_names_the_key_only_until_it_is_erased_again(by_hand: ByHand) -> None:
    lived_in(by_hand)
    erase(by_hand, "zoe")
    create_savepoint(by_hand.tables, by_hand.head(), "after", 1)
    assert read_savepoint(by_hand.tables, "after").manifest.publish["results"].forgotten
    for number in (12, 13):
        by_hand.epoch(("ann", at(f"{number}:10"), 1), watermark=at(f"{number}:20"))
    with Lease(by_hand.tables, "vacuum", Clock()):
        vacuum(by_hand.tables, Retention(snapshots=1, age=0), by_hand.head().manifest.started_at)
    assert erase(by_hand, "ann").epoch is not None
    assert read_savepoint(by_hand.tables, "after").manifest.publish["results"].forgotten, "of another key"
    assert erase(by_hand, "zoe").epoch is not None
    assert not read_savepoint(by_hand.tables, "after").manifest.publish["results"].forgotten


def test_the_digests_that_identify_a_key_in_reopened_rows_are_removed(by_hand: ByHand) -> None:
    lived_in(by_hand)
    schema = by_hand.head().key
    zoe, ann = (digest_of(key_of_texts(schema, (text,))) for text in ("zoe", "ann"))
    reopened = (
        Reopening(epoch=1, digest=zoe),
        Reopening(epoch=2, digest=ann, spans=((zoe, 1, 2), (ann, 1, 2))),
        Reopening(epoch=3),
    )
    rest = step._without_names(Publish(reopened=reopened), [key_of_texts(schema, ("zoe",))])
    kept = (Reopening(epoch=2, digest=ann, spans=((ann, 1, 2),)), Reopening(epoch=3))
    assert rest == Publish(reopened=kept)


def test_a_derived_key_can_not_be_told_in_late_rows_so_nothing_is_erased(by_hand: ByHand) -> None:
    lived_in(by_hand)
    by_hand.pipeline = session_pipeline(columns={"user": "upper(user)"})
    versions = {table: by_hand.tables.open(table).version() for table in ALL}
    with pytest.raises(Refused, match=r"derived key columns user, so .* nothing was erased") as refused:
        erase(by_hand, "zoe")
    assert remedy_of(refused, Act.PRUNE_LATE)
    assert {table: by_hand.tables.open(table).version() for table in ALL} == versions
    prune(by_hand.tables, NOW, NOW)
    assert erase(by_hand, "zoe").rows["results"] == 1


def test_late_rows_of_an_unpublished_epoch_are_seen_too(by_hand: ByHand) -> None:
    by_hand.epoch(("zoe", at("10:00"), 1), ("ann", at("10:00"), 2), watermark=at("12:00"))
    by_hand.committed(by_hand.planned([("zoe", at("09:00"), 5)], at("12:00")))
    by_hand.pipeline = session_pipeline(columns={"user": "upper(user)"})
    with pytest.raises(Refused, match="nothing was erased"):
        erase(by_hand, "zoe")
    assert users(by_hand, "results") == ["ann", "zoe"]


def test_what_is_no_key_of_the_pipeline_is_a_usage_error(by_hand: ByHand) -> None:
    lived_in(by_hand)
    for key in ((), ("zoe", "ann")):
        with pytest.raises(UsageError, match="has the columns user: give one value for each"):
            erase(by_hand, *key)


def test_keys_of_other_types_are_given_as_text(by_hand: ByHand) -> None:
    by_hand.pipeline = session_pipeline(key=("value",))
    by_hand.epoch(("zoe", at("10:00"), 7), ("ann", at("10:00"), 8), watermark=at("10:00"))
    with pytest.raises(UsageError, match="'seven' is not a value of key column 'value', which has type bigint"):
        erase(by_hand, "seven")
    assert erase(by_hand, "7").rows["state"] == 1
    assert users_of_state(by_hand) == [8]


def users_of_state(by_hand: ByHand) -> list[int]:
    return [value for value in by_hand.rows("state")["value"].to_pylist() if value is not None]


def test_a_key_of_several_columns_is_given_in_order(by_hand: ByHand) -> None:
    by_hand.pipeline = session_pipeline(key=("user", "value"))
    by_hand.epoch(("zoe", at("10:00"), 7), ("zoe", at("10:00"), 8), watermark=at("10:00"))
    by_hand.epoch(watermark=at("11:00"))
    assert erase(by_hand, "zoe", "7").rows["results"] == 1
    assert by_hand.rows("results")["value"].to_pylist() == [8]

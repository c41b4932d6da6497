from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.lake import at, session_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.errors import Refused, TidegateError, UsageError
from tidegate.pipelines.ledger.snapshots import savepoint as step
from tidegate.pipelines.ledger.snapshots.forget import forget
from tidegate.pipelines.ledger.snapshots.head import state_rows
from tidegate.pipelines.ledger.snapshots.savepoint import (
    broken_savepoints,
    create_savepoint,
    delete_savepoint,
    list_savepoints,
    read_savepoint,
)
from tidegate.pipelines.storage.warehouse import Warehouse

NOW = 1_800_000_000_000


def two_epochs(by_hand: ByHand) -> None:
    by_hand.epoch(("ann", at("10:00"), 1), ("bob", at("10:05"), 2), watermark=at("10:00"))
    by_hand.epoch(("ann", at("10:20"), 3), watermark=at("10:20"))


def test_a_savepoint_holds_the_rows_and_the_manifest_of_its_snapshot(by_hand: ByHand) -> None:
    two_epochs(by_hand)
    entry = create_savepoint(by_hand.tables, by_hand.head(), "release-1", NOW)
    found = read_savepoint(by_hand.tables, "release-1")
    assert found.manifest == by_hand.head().manifest == entry.manifest
    assert len(DeltaTable(entry.path).to_pyarrow_dataset().to_table()) == 3
    assert (entry.created_at, entry.size > 0) == (NOW, True)


@pytest.mark.parametrize("name", ["../../../secret.txt", "/etc/passwd", "file:///etc/passwd"])
def test_a_forged_log_gets_no_file_from_outside_of_its_table(by_hand: ByHand, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.txt").write_text("of the machine")
    warehouse, table = by_hand.tables.warehouse, by_hand.tables.path("state")
    for act in (
        lambda: warehouse.copy_file(table, name, str(tmp_path / "copies"), "copy.parquet"),
        lambda: warehouse.delete_file(table, name),
    ):
        with pytest.raises(Refused, match="names a file outside the table's folder"):
            act()


def test_savepoints_are_listed_newest_first(by_hand: ByHand) -> None:
    two_epochs(by_hand)
    assert list_savepoints(by_hand.tables) == []
    for now, name in enumerate(("a", "c", "b")):
        create_savepoint(by_hand.tables, by_hand.head(), name, NOW + now)
    assert [entry.name for entry in list_savepoints(by_hand.tables)] == ["b", "c", "a"]


def test_it_stands_when_the_state_table_is_gone(by_hand: ByHand) -> None:
    two_epochs(by_hand)
    create_savepoint(by_hand.tables, by_hand.head(), "a", NOW)
    manifest = by_hand.head().manifest
    shutil.rmtree(by_hand.tables.path("state"))
    found = read_savepoint(by_hand.tables, "a")
    assert found.manifest == manifest
    assert sum(file["num_records"] for file in found.files) == 2


def test_a_savepoint_copied_from_another_pipeline_is_refused(by_hand: ByHand, tmp_path: Path) -> None:
    two_epochs(by_hand)
    entry = create_savepoint(by_hand.tables, by_hand.head(), "a", NOW)
    other = ByHand(tmp_path, session_pipeline(name="others"))
    shutil.copytree(entry.path, f"{other.folder}/warehouse/others/savepoints/a")
    with pytest.raises(Refused, match="belongs to pipeline 'sessions', not to 'others'"):
        read_savepoint(other.tables, "a")


def test_a_copy_that_was_interrupted_is_no_savepoint_and_its_name_is_free(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_epochs(by_hand)

    def die(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    for place in ("check_written", "copy_files"):
        with monkeypatch.context() as planted:
            planted.setattr(step, place, die)
            with pytest.raises(KeyboardInterrupt):
                create_savepoint(by_hand.tables, by_hand.head(), "a", NOW)
        assert list_savepoints(by_hand.tables) == []
    create_savepoint(by_hand.tables, by_hand.head(), "a", NOW)
    assert len(list_savepoints(by_hand.tables)) == 1


def interrupted(by_hand: ByHand, name: str) -> Path:
    """Return the folder of the copies of a savepoint that was interrupted before its log was written."""
    folder = Path(by_hand.tables.path("savepoints"), name)
    step.copy_files(by_hand.tables, by_hand.head(), str(folder), "state", with_manifest=True)
    assert list(folder.glob("*.parquet"))
    return folder


def test_what_an_interrupted_copy_or_deletion_left_can_be_deleted(by_hand: ByHand) -> None:
    two_epochs(by_hand)
    copies = interrupted(by_hand, "copied")
    entry = create_savepoint(by_hand.tables, by_hand.head(), "deleted", NOW)
    for file in Path(entry.path).glob("*.parquet"):
        file.unlink()
    for name, folder in (("copied", copies), ("deleted", Path(entry.path))):
        delete_savepoint(by_hand.tables, name)
        assert not folder.exists()
        with pytest.raises(UsageError, match="no savepoint"):
            delete_savepoint(by_hand.tables, name)


def test_a_file_that_goes_away_while_it_is_copied_is_a_clear_refusal(by_hand: ByHand) -> None:
    two_epochs(by_hand)
    head = by_hand.head()
    Path(by_hand.tables.path("state"), head.files[0]["path"]).unlink()
    with pytest.raises(Refused, match=f"file {head.files[0]['path']} of table .* is missing"):
        create_savepoint(by_hand.tables, head, "a", NOW)
    assert list_savepoints(by_hand.tables) == []


def test_its_statistics_are_as_good_as_the_states(by_hand: ByHand) -> None:
    two_epochs(by_hand)
    create_savepoint(by_hand.tables, by_hand.head(), "a", NOW)
    found = read_savepoint(by_hand.tables, "a")
    for one, other in zip(found.files, by_hand.head().files, strict=True):
        for name in ("num_records", "min.key_group", "max.key_group", "null_count.key_group"):
            assert one[name] == other[name]
    assert len(state_rows(by_hand.warehouse, by_hand.head())) == 2
    assert isinstance(by_hand.warehouse, Warehouse)


def test_one_that_can_not_be_read_hides_no_other_and_can_be_deleted(by_hand: ByHand) -> None:
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("10:00"))
    for number, name in enumerate(("whole", "cut", "emptied", "torn")):
        create_savepoint(by_hand.tables, by_hand.head(), name, number)
    folder = Path(by_hand.tables.warehouse.path(by_hand.pipeline.name, "savepoints"))
    for file in (folder / "cut").glob("*.parquet"):
        file.write_bytes(b"PAR1")
    for file in (folder / "emptied").glob("*.parquet"):
        file.unlink()
    (folder / "torn" / "_delta_log" / f"{0:020d}.json").write_bytes(b"")
    assert [entry.name for entry in list_savepoints(by_hand.tables)] == ["whole"]
    assert [broken.name for broken in broken_savepoints(by_hand.tables)] == ["cut", "emptied", "torn"]
    with pytest.raises(UsageError, match="savepoint 'torn' of sessions exists"):
        create_savepoint(by_hand.tables, by_hand.head(), "torn", NOW)
    with pytest.raises(Refused, match=r"savepoint .*torn can't be opened"):
        read_savepoint(by_hand.tables, "torn")
    with pytest.raises(Refused, match="savepoint 'cut' can't be read, so it may hold the key"):
        forget(by_hand.tables, by_hand.pipeline, [["ann"]], 1_800_000_000_000)
    for name in ("cut", "emptied", "torn"):
        delete_savepoint(by_hand.tables, name)
    assert broken_savepoints(by_hand.tables) == []


def test_one_whose_log_entry_is_cut_at_the_end_of_a_line_is_not_taken_for_whole(by_hand: ByHand) -> None:
    two_epochs(by_hand)
    create_savepoint(by_hand.tables, by_hand.head(), "kept", NOW)
    (entry,) = Path(by_hand.tables.path("savepoints/kept"), "_delta_log").glob("*.json")
    lines = entry.read_bytes().splitlines(keepends=True)
    for end in range(1, len(lines)):
        entry.write_bytes(b"".join(lines[:end]))
        with pytest.raises(TidegateError):
            read_savepoint(by_hand.tables, "kept")
    entry.write_bytes(b"".join(lines))
    assert len(read_savepoint(by_hand.tables, "kept").files) > 0


@pytest.mark.parametrize("after", [False, True])
def test_of_two_that_make_one_of_a_name_at_once_the_first_has_it(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """The second one copies its files before the first one, or after it."""
    two_epochs(by_hand)
    known, both = step.copy_files, list[bool]()

    def copy_files(tables: Any, snapshot: Any, path: str, prefix: str, with_manifest: bool) -> Any:
        if both:
            return known(tables, snapshot, path, prefix, with_manifest)
        both.append(True)
        files = known(tables, snapshot, path, prefix, with_manifest) if after else None
        create_savepoint(by_hand.tables, by_hand.head(), "a", NOW)
        return known(tables, snapshot, path, prefix, with_manifest) if files is None else files

    monkeypatch.setattr(step, "copy_files", copy_files)
    with pytest.raises(UsageError, match="savepoint 'a' of sessions exists"):
        create_savepoint(by_hand.tables, by_hand.head(), "a", NOW)
    made = read_savepoint(by_hand.tables, "a")
    assert state_rows(by_hand.warehouse, made).equals(state_rows(by_hand.warehouse, by_hand.head()))
    files = {file["path"] for file in (*made.files, *made.manifest_files)}
    assert {*by_hand.warehouse.names(by_hand.tables.path("savepoints/a"))} == files

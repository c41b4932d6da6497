"""After a key was forgotten, no file contains it, whatever kind of file had it before and whatever the clocks said."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.copies import copy_all
from tests.key_search import files_with
from tests.lake import Clock, at
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.ledger.lease import Lease
from tidegate.pipelines.ledger.snapshots.forget import Forgotten, forget
from tidegate.pipelines.ledger.snapshots.head import list_snapshots
from tidegate.pipelines.ledger.snapshots.retention import Retention, vacuum
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint
from tidegate.pipelines.ledger.tables import quality
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.pipelines.ledger.tables.pipeline_tables import ALL, PipelineTables
from tidegate.pipelines.ledger.tables.quality import QualityRow
from tidegate.pipelines.storage.warehouse import Warehouse
from tidegate.windowing.time import from_millis

KEY = "Zebulon-Quagmire-77"
KEY_ROW = pa.table({"user": [KEY], "key_group": pa.array([1], pa.int32())})


def present() -> int:
    return time.time_ns() // 1_000_000


def lived_in(by_hand: ByHand) -> None:
    """The key is in each table that has keys, in older versions, in a savepoint, and in compacted files."""

    def fill(by_hand: ByHand) -> None:
        by_hand.epoch((KEY, at("10:00"), 1), ("ann", at("10:00"), 2), watermark=at("10:00"))
        create_savepoint(by_hand.tables, by_hand.head(), "before", 1)
        by_hand.epoch((KEY, at("11:00"), 3), ("ann", at("11:00"), 4), watermark=at("11:00"))
        by_hand.epoch((KEY, at("09:00"), 5), ("ann", at("09:00"), 6), watermark=at("11:00"))
        by_hand.epoch((KEY, at("12:00"), 7), ("ann", at("12:00"), 8), watermark=at("13:00"))
        compact(by_hand.tables, "results")

    by_hand.filled("key", fill)


def erase(by_hand: ByHand, key: str = KEY, now: int | None = None) -> Forgotten:
    with Lease(by_hand.tables, "forget", Clock()):
        return forget(by_hand.tables, by_hand.pipeline, [(key,)], present() if now is None else now)


def found(by_hand: ByHand) -> list[str]:
    return files_with(KEY, by_hand.folder)


@pytest.mark.first(1)
@pytest.mark.parametrize("ahead", [-400, 0, 400], ids=["a clock behind", "the present", "a clock ahead"])
def test_no_file_has_the_key_whatever_the_clock_says(by_hand: ByHand, ahead: int) -> None:
    lived_in(by_hand)
    assert len(found(by_hand)) > 6
    erase(by_hand, now=present() + ahead * 86_400_000)
    assert found(by_hand) == []
    assert files_with("ann", by_hand.folder)
    assert [entry.manifest["kind"] for entry in list_snapshots(by_hand.tables)] == ["forget"]


@pytest.mark.first(1)
@pytest.mark.parametrize("days", [-30_000, -1, 1, 30_000])
@pytest.mark.parametrize("epoch", [1, 2, 3])
def test_no_file_has_the_key_where_commits_were_dated_wrongly(by_hand: ByHand, days: int, epoch: int) -> None:
    for number in range(1, 4):
        by_hand.epoch(
            (KEY, at(f"1{number}:00"), number), ("ann", at(f"1{number}:00"), 1), watermark=at(f"1{number}:30")
        )
        if number == epoch:
            by_hand.dated(from_millis(present() + days * 86_400_000))
    erase(by_hand)
    assert found(by_hand) == []


def test_a_savepoint_with_tables_that_is_made_afterwards_does_not_have_it(by_hand: ByHand, tmp_path: Path) -> None:
    lived_in(by_hand)
    stray(by_hand, "results", f"results-000005-{'0' * 32}.parquet")
    erase(by_hand)
    by_hand.epoch(("ann", at("14:00"), 1), watermark=at("15:00"))
    place = PipelineTables(Warehouse(str(tmp_path / "elsewhere")), by_hand.pipeline.name)
    copy_all(by_hand.tables, place, "after", present())
    assert files_with(KEY, tmp_path) == []
    assert files_with("ann", tmp_path / "elsewhere")


def test_versions_of_tables_that_had_it_can_not_be_opened(by_hand: ByHand) -> None:
    lived_in(by_hand)
    heads = {table: by_hand.tables.open(table).version() for table in ALL}
    erase(by_hand)
    for table in ("state", "results", "late", "rejects"):
        for version in range(heads[table] + 1):
            with pytest.raises(Exception, match=r"(?i)log|version"):
                by_hand.warehouse.open(by_hand.tables.path(table), version)


def parquet(file: Path, rows: pa.Table) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, file, compression="zstd")


def stray(by_hand: ByHand, table: str, name: str) -> None:
    """A killed epoch leaves a data file that nothing lists."""
    parquet(Path(by_hand.tables.path(table), name), KEY_ROW)


def nested(by_hand: ByHand) -> None:
    rows = pa.table({"user": ["ann"], "rows": pa.array([[{"who": [KEY]}]])})
    parquet(Path(by_hand.tables.path("results"), f"results-000005-{'1' * 32}.parquet"), rows)


def dictionary(by_hand: ByHand) -> None:
    coded = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array(["ann", KEY]))
    rows = pa.table({"user": coded})
    parquet(Path(by_hand.tables.path("late"), f"late-000005-{'2' * 32}.parquet"), rows)


def metadata(by_hand: ByHand) -> None:
    rows = pa.table({"user": ["ann"]}).replace_schema_metadata({"of": KEY})
    parquet(Path(by_hand.tables.path("state"), f"state-000005-{'3' * 32}.parquet"), rows)


def torn(by_hand: ByHand) -> None:
    Path(by_hand.tables.path("rejects"), f"rejects-000005-{'4' * 32}.parquet").write_bytes(b"PAR1 " + KEY.encode())


def text(table: str, name: str, content: str = KEY) -> Callable[[ByHand], None]:
    def plant(by_hand: ByHand) -> None:
        file = Path(by_hand.tables.path(table), name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)

    return plant


def foreign_commit(by_hand: ByHand) -> None:
    """Another writer's DELETE names the key in its predicate, and its statistics are the bounds of key columns."""
    by_hand.tables.open("results").delete(f"user = '{KEY}-x'")
    log = Path(by_hand.tables.path("results"), "_delta_log")
    newest = max(log.glob("*[0-9].json"))
    described = {"commitInfo": {"timestamp": present(), "operationParameters": {"predicate": f"user = '{KEY}'"}}}
    (log / f"{int(newest.stem) + 1:020d}.json").write_text(json.dumps(described) + "\n")


def foreign_checkpoint(by_hand: ByHand) -> None:
    """Another writer's statistics of the files that have the key name it."""
    path = Path(by_hand.tables.path("late"))
    by_hand.tables.open("late").create_checkpoint()
    (file,) = path.glob("_delta_log/*.checkpoint.parquet")
    rows = pq.read_table(file)
    stats = json.dumps({"numRecords": 1, "maxValues": {"user": KEY}})
    holding = set(files_with(KEY, path))
    adds = [{**add, "stats": stats} if add and add["path"] in holding else add for add in rows["add"].to_pylist()]
    place = rows.schema.get_field_index("add")
    parquet(file, rows.set_column(place, rows.schema.field(place), pa.array(adds, rows.schema.field(place).type)))


def change_data(by_hand: ByHand) -> None:
    parquet(Path(by_hand.tables.path("results"), "_change_data", "cdc-1.parquet"), pa.table({"user": [KEY]}))


def in_savepoint(by_hand: ByHand) -> None:
    parquet(Path(by_hand.tables.path("savepoints"), "before", "state-forget-1.parquet"), KEY_ROW)


def rest_of_savepoint(by_hand: ByHand) -> None:
    parquet(Path(by_hand.tables.path("savepoints"), "half", "state-1.parquet"), KEY_ROW)


def check(by_hand: ByHand, observed: str) -> None:
    row = QualityRow("1", from_millis(1), 1, 1, "windows", "no overlap", "", "critical", False, observed, 9, 1, 1)
    quality.append(by_hand.tables, [row])


def example(by_hand: ByHand) -> None:
    check(by_hand, f"3 of 9 rows break it, such as {{'user': '{KEY}'}}")


def example_of_a_killed_check(by_hand: ByHand) -> None:
    check(by_hand, "2 of 9 rows break it")
    rows = pa.table({"observed": [f"3 of 9 rows break it, such as {KEY}"]})
    parquet(Path(by_hand.tables.path("quality"), "part-00000-1-c000.snappy.parquet"), rows)


KINDS: dict[str, Callable[[ByHand], None]] = {
    "a killed epoch's results": lambda by_hand: stray(by_hand, "results", f"results-000005-{'0' * 32}.parquet"),
    "a killed epoch's late rows": lambda by_hand: stray(by_hand, "late", f"late-000005-{'0' * 32}.parquet"),
    "a killed epoch's state": lambda by_hand: stray(by_hand, "state", f"state-000005-{'0' * 32}.parquet"),
    "a killed compaction": lambda by_hand: stray(by_hand, "results", f"results-compacted-{'0' * 32}.parquet"),
    "a nested column": nested,
    "a dictionary": dictionary,
    "the metadata of a file": metadata,
    "a part of a file": torn,
    "change data": change_data,
    "a predicate in the log": foreign_commit,
    "statistics in a checkpoint": foreign_checkpoint,
    "a checkpoint's first part": text("results", f"_delta_log/{1:020d}.checkpoint.parquet.tmp"),
    "a checksum of the log": text("results", f"_delta_log/{1:020d}.crc"),
    "a commit that was not made": text("results", "_delta_log/_commit_1.json.tmp"),
    "a damaged entry": text("results", f"_delta_log/damaged/{2:020d}.json"),
    "a request": text("requests", "reopen-1.json", json.dumps({"key": [KEY], "start": None, "end": None})),
    "an answer": text("requests", "answer-1.json", json.dumps({"error": KEY})),
    "a file of a savepoint": in_savepoint,
    "the rest of a savepoint": rest_of_savepoint,
    "an example of a check": example,
    "an example of a killed check": example_of_a_killed_check,
    "a commit of a check that was not made": text("quality", "_delta_log/_commit_1.json.tmp"),
}


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", KINDS)
def test_it_goes_from_each_kind_of_file(by_hand: ByHand, kind: str) -> None:
    lived_in(by_hand)
    check(by_hand, "1 of 9 rows break it")
    before = found(by_hand)
    KINDS[kind](by_hand)
    assert set(found(by_hand)) - set(before), "the search does not find the key in this kind of file"
    erase(by_hand)
    assert found(by_hand) == []


LEFT_BY_OUR_COMMANDS = sorted(name for name in KINDS if name.startswith(("a killed", "a part", "a request", "an ")))


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", [*LEFT_BY_OUR_COMMANDS, "a file of a savepoint", "the rest of a savepoint"])
def test_it_is_found_where_nothing_else_has_it(by_hand: ByHand, kind: str) -> None:
    lived_in(by_hand)
    check(by_hand, "1 of 9 rows break it")
    erase(by_hand)
    # Later epochs and a cleanup remove all snapshots that record that the key was forgotten.
    for number in (14, 15):
        by_hand.epoch(("ann", at(f"{number}:00"), 1), watermark=at(f"{number}:30"))
    with Lease(by_hand.tables, "vacuum", Clock()):
        vacuum(by_hand.tables, Retention(snapshots=1, age=0), present())
    KINDS[kind](by_hand)
    assert found(by_hand)
    erase(by_hand)
    assert found(by_hand) == []


MUTATIONS = [
    *((Warehouse, name) for name in ("write_parquet", "replace_file", "copy_file", "delete_file", "delete_folder")),
    *((DeltaTable, name) for name in ("create_write_transaction", "create_checkpoint")),
]


def ends_before(planted: pytest.MonkeyPatch, step: int) -> list[int]:
    """End the process, as a kill would, before a step that changes a file; return the counter of the steps."""
    done = [0]

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def act(*arguments: Any, **options: Any) -> Any:
            done[0] += 1
            if done[0] == step:
                raise KeyboardInterrupt
            return original(*arguments, **options)

        return act

    for owner, name in MUTATIONS:
        planted.setattr(owner, name, counted(getattr(owner, name)))
    return done


def steps_of_an_erasure(folder: Path) -> int:
    by_hand = ByHand(folder)
    lived_in(by_hand)
    example(by_hand)
    with Lease(by_hand.tables, "forget", Clock()), pytest.MonkeyPatch.context() as planted:
        done = ends_before(planted, -1)
        forget(by_hand.tables, by_hand.pipeline, [(KEY,)], present())
    return done[0]


@pytest.mark.parametrize("every", [50, pytest.param(1, marks=pytest.mark.long)])
def test_an_erasure_that_was_killed_at_any_step_is_finished_by_repeating_it(tmp_path: Path, every: int) -> None:
    steps = steps_of_an_erasure(tmp_path / "whole")
    assert steps > 40
    template = ByHand(tmp_path / "template")
    lived_in(template)
    example(template)
    for step in range(1, steps + 1, every):
        by_hand = ByHand(tmp_path / str(step))
        shutil.copytree(template.folder, by_hand.folder)
        with Lease(by_hand.tables, "forget", Clock()), pytest.MonkeyPatch.context() as planted:
            ends_before(planted, step)
            with pytest.raises(KeyboardInterrupt):
                forget(by_hand.tables, by_hand.pipeline, [(KEY,)], present())
        erase(by_hand)
        assert found(by_hand) == [], step
        assert sorted(set(by_hand.rows("results")["user"].to_pylist())) == ["ann"], step
        by_hand.epoch(("ann", at("15:00"), 1), watermark=at("16:30"))
        shutil.rmtree(by_hand.folder)

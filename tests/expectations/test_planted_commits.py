"""Errors planted in tables that the product wrote: whoever wrote to them, and whatever changed, is found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.expectations.broken import broken_by_rules, broken_in, failed_in_check
from tests.lake import at, hourly_pipeline, record_footer, session_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.expectations.pinned import pin
from tidegate.pipelines.definition import late, results, state
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots.recovery import recover
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables.compaction import compact
from tidegate.pipelines.storage.warehouse import active_files
from tidegate.windowing import Sum, TopN

NOW = 2_000_000_000_000

OURS = ("files", "expect_files_to_be_of_our_commits")
SAME_ROWS = ("files", "expect_files_to_keep_their_rows")
COUNTED = ("ledger", "expect_column_pair_values_to_be_equal")
REWRITTEN = ("files", "expect_nobody_else_to_rewrite_files")


def three_epochs(folder: Path, **options: Any) -> ByHand:
    by_hand = ByHand(folder, hourly_pipeline(**options))
    users = ("ann", "bob", "eve", "zoe")
    for hour in (10, 12, 14):
        times = [at(f"{hour}:10"), at(f"{hour}:40"), at(f"{hour + 1}:40")]
        rows = [(user, time, value) for value, user in enumerate(users) for time in times]
        by_hand.epoch(*rows, watermark=at(f"{hour + 1}:30"))
    return by_hand


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> ByHand:
    return three_epochs(tmp_path_factory.mktemp("three epochs"))


@pytest.fixture
def by_hand(template: ByHand, tmp_path: Path) -> ByHand:
    """Three epochs of hours."""
    shutil.copytree(template.folder, tmp_path / "lake")
    return replace(template, folder=tmp_path / "lake")


def append(by_hand: ByHand, table: str, rows: list[dict[str, Any]]) -> None:
    schema = by_hand.rows(table).schema
    write_deltalake(by_hand.tables.path(table), pa.Table.from_pylist(rows, schema=schema), mode="append")


def changes(table: str, where: str, **values: str) -> Callable[[ByHand], None]:
    def plant(by_hand: ByHand) -> None:
        told = by_hand.tables.open(table).update(predicate=where, updates=values)
        assert told["num_updated_rows"] > 0, "something was planted"

    return plant


def a_late_row_added(by_hand: ByHand) -> None:
    rows = by_hand.rows(late.NAME)
    values = {field.name: None for field in rows.schema}
    append(by_hand, late.NAME, [{**values, "user": "x", "reason": "late", "timeline": 1, "epoch": 2, "stale": False}])


ANN, BOB = (f"user = '{user}' AND epoch = 1" for user in ("ann", "bob"))
END_MOVED = changes(results.NAME, ANN, window_end="window_end + interval '17 minutes'")
SUM_CHANGED = changes(results.NAME, BOB, total="total + 30")
IDS, COUNTED = ("panes", "expect_window_ids_to_name_their_windows"), ("ledger", "expect_column_pair_values_to_be_equal")
PLANTED: list[tuple[Callable[[ByHand], object], set[tuple[str, str]]]] = [
    (END_MOVED, {("panes", "expect_final_at_to_fit_the_bounds")}),
    (END_MOVED, {IDS}),
    (
        lambda by_hand: append(by_hand, results.NAME, [{**by_hand.rows(results.NAME).to_pylist()[0], "epoch": 99}]),
        {("lineage", "expect_epochs_to_be_of_the_lineage")},
    ),
    (changes(results.NAME, ANN, user="'xyz'"), {IDS}),
    (SUM_CHANGED, set()),
    (lambda by_hand: by_hand.tables.open(results.NAME).delete(BOB), {COUNTED}),
    (a_late_row_added, {COUNTED}),
    (
        changes(state.NAME, "user = 'ann'", key_group="(key_group + 1) % 128"),
        {("state", "expect_keys_to_hash_to_their_group")},
    ),
    (changes(state.NAME, "user = 'ann'", acc_events="acc_events + 1"), {COUNTED}),
]


@pytest.mark.first(1)
@pytest.mark.parametrize(("plant", "also"), PLANTED)
def test_a_planted_error_is_found_by_its_commit_and_by_what_it_changed(
    plant: Callable[[ByHand], object], also: set[tuple[str, str]], by_hand: ByHand
) -> None:
    plant(by_hand)
    assert failed_in_check(pin(by_hand.tables, by_hand.pipeline)) >= {OURS, *also}


def test_an_error_stays_until_the_table_is_put_back_and_is_gone_then(by_hand: ByHand) -> None:
    good = by_hand.tables.open(results.NAME).version()
    SUM_CHANGED(by_hand)
    with pytest.raises(Refused, match="Compute everything again"):
        by_hand.epoch(("ann", at("16:10"), 1), watermark=at("17:30"))
    assert OURS in broken_in(by_hand.tables, by_hand.pipeline), "no epoch after it hides it"
    by_hand.tables.open(results.NAME).restore(good)
    pinned = pin(by_hand.tables, by_hand.pipeline)
    assert broken_by_rules(pinned) | broken_by_rules(pinned, "warning") == set(), "as alarms.md says"


def test_after_a_restore_that_was_told_state_that_was_set_back_is_no_error_any_more(by_hand: ByHand) -> None:
    handle = by_hand.tables.open(state.NAME)
    handle.restore(handle.version() - 1)
    with pytest.raises(Refused, match="Go back to epoch 3"):
        recover(by_hand.tables)
    restore(by_hand.tables, find_snapshot(by_hand.tables, "3"), NOW)
    assert broken_in(by_hand.tables, by_hand.pipeline) == set()
    by_hand.epoch(("ann", at("16:10"), 1), watermark=at("17:30"))
    assert broken_in(by_hand.tables, by_hand.pipeline) == set()


@pytest.mark.long
def test_a_restore_of_a_snapshot_that_lacked_rows_does_not_make_them_right(by_hand: ByHand) -> None:
    by_hand.tables.open(state.NAME).delete("key_group >= 0")
    by_hand.epoch(("ann", at("16:10"), 1), watermark=at("16:20"))
    by_hand.epoch(("ann", at("16:20"), 1), watermark=at("16:30"))
    assert OURS in broken_in(by_hand.tables, by_hand.pipeline)
    restore(by_hand.tables, find_snapshot(by_hand.tables, "4"), NOW)
    assert OURS in broken_in(by_hand.tables, by_hand.pipeline)
    restore(by_hand.tables, find_snapshot(by_hand.tables, "3"), NOW)
    assert broken_in(by_hand.tables, by_hand.pipeline) == set(), "the epoch before the damage"


def test_an_optimize_by_somebody_else_only_marks_and_one_that_changes_rows_does_not_pass(by_hand: ByHand) -> None:
    by_hand.tables.open(results.NAME).optimize.compact()
    pinned = pin(by_hand.tables, by_hand.pipeline)
    assert (broken_by_rules(pinned), broken_by_rules(pinned, "warning")) == (set(), {REWRITTEN})
    by_hand.epoch(("ann", at("16:10"), 1), watermark=at("17:30"))
    assert broken_in(by_hand.tables, by_hand.pipeline) == set()


def test_a_compaction_of_ours_does_not_make_the_rows_of_somebody_else_ours(by_hand: ByHand) -> None:
    compact(by_hand.tables, results.NAME)
    pinned = pin(by_hand.tables, by_hand.pipeline)
    assert broken_by_rules(pinned) | broken_by_rules(pinned, "warning") == set()
    by_hand.epoch(("ann", at("16:10"), 1), watermark=at("17:30"))
    SUM_CHANGED(by_hand)
    compact(by_hand.tables, results.NAME)
    assert OURS in broken_in(by_hand.tables, by_hand.pipeline)


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", ["plain", "nested"])
def test_a_file_that_was_changed_in_its_place_is_found_by_its_checksum(tmp_path: Path, kind: str) -> None:
    top = {} if kind == "plain" else {"best": TopN(2, by="value", also=["at"])}
    by_hand = three_epochs(tmp_path, aggregate={"total": Sum("value"), **top})
    assert broken_in(by_hand.tables, by_hand.pipeline) == set()
    path = Path(by_hand.tables.path(results.NAME))
    name = active_files(by_hand.tables.open(results.NAME))[0]["path"]
    rows = pq.read_table(path / name)
    place = rows.schema.get_field_index("total" if kind == "plain" else "best")
    backwards = pa.chunked_array([rows.column(place).take(pa.array(range(len(rows))[::-1])).combine_chunks()])
    assert backwards != rows.column(place)
    written = (path / name).read_bytes()
    pq.write_table(rows.set_column(place, rows.schema.field(place), backwards), path / name)
    assert broken_in(by_hand.tables, by_hand.pipeline) == {SAME_ROWS, COUNTED}, "its rows are not read"
    record_footer(path, name, written)
    assert broken_in(by_hand.tables, by_hand.pipeline) == {SAME_ROWS}
    changed = (path / name).read_bytes()
    (path / name).write_bytes(written)
    record_footer(path, name, changed)
    assert broken_in(by_hand.tables, by_hand.pipeline) == set()


def test_a_file_that_is_gone_is_told_and_not_an_error_of_the_check(by_hand: ByHand) -> None:
    SUM_CHANGED(by_hand)
    table = by_hand.tables.open(results.NAME)
    files = pin(by_hand.tables, by_hand.pipeline).files
    found = files[files["fault"] != ""]
    assert set(found["fault"]) == {"unknown", "lost"}
    assert all(by.startswith("UPDATE by delta-rs") for by in found["by"]), "it tells who did it"
    assert set(found.loc[found["fault"] == "unknown", "file"]) <= {file["path"] for file in active_files(table)}


@pytest.mark.long
def test_in_parts_as_much_is_found_as_in_one(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, session_pipeline(allowed_lateness=timedelta(hours=1)))
    users = [f"user {number}" for number in range(30)]
    for hour in (10, 12, 14):
        by_hand.epoch(*((user, at(f"{hour}:10"), 1) for user in users), watermark=at(f"{hour + 1}:30"))
    assert broken_in(by_hand.tables, by_hand.pipeline, rows_at_a_time=7) == set()
    twice = by_hand.rows(results.NAME).to_pylist()[:1]
    append(by_hand, results.NAME, twice)
    whole = broken_in(by_hand.tables, by_hand.pipeline)
    assert ("panes", "expect_compound_columns_to_be_unique") in whole
    assert broken_in(by_hand.tables, by_hand.pipeline, rows_at_a_time=7) == whole
    assert failed_in_check(pin(by_hand.tables, by_hand.pipeline, rows_at_a_time=40)) == whole

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from tests.lake import EVENTS, at, hourly_pipeline
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.definition import state
from tidegate.pipelines.definition.binding import bind
from tidegate.pipelines.epoch.commit import commit
from tidegate.pipelines.errors import FilesMissing, Refused, UsageError
from tidegate.pipelines.ledger.manifest import Manifest, fork_of, line_after
from tidegate.pipelines.ledger.snapshots import lineages
from tidegate.pipelines.ledger.snapshots import restore as step
from tidegate.pipelines.ledger.snapshots.compatibility import ready
from tidegate.pipelines.ledger.snapshots.publish import publish, publish_table
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import create_savepoint, find_snapshot
from tidegate.pipelines.ledger.snapshots.stages import NewEpoch, Published, Withdrawn
from tidegate.pipelines.ledger.tables.damage import remove_tables
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED
from tidegate.pipelines.remedy import Act
from tidegate.windowing import Aggregate, Max, Sum, TumblingEventTimeWindows, Windows

NOW = 1_800_000_000_000


def hour(by_hand: ByHand, number: int, user: str = "ann") -> Manifest:
    """Run an epoch with a session at the full hour, in which the session of the hour before fires."""
    return by_hand.epoch((user, at(f"{number:02d}:00"), number), watermark=at(f"{number:02d}:00"))


def open_sessions(by_hand: ByHand) -> list[int]:
    return sorted(value for value in by_hand.rows("state")["acc_total"].to_pylist() if value is not None)


def sessions(by_hand: ByHand) -> dict[int, bool]:
    """Sum and staleness of each session in the results."""
    return {row["total"]: row["stale"] for row in by_hand.rows("results").to_pylist()}


def back_to(by_hand: ByHand, target: str, **options: bool) -> Manifest:
    return restore(by_hand.tables, find_snapshot(by_hand.tables, target), NOW, **options)


def test_copies_of_copies_have_names_as_short_as_the_first(by_hand: ByHand) -> None:
    """A savepoint of a restored savepoint, and so on: file systems limit a name to 255 bytes."""
    by_hand.hours(8, 9)
    lengths = []
    for number in range(8):
        newest = find_snapshot(by_hand.tables, "latest")
        create_savepoint(by_hand.tables, newest, f"at-{number}", NOW)
        lengths.append(max(len(file["path"]) for file in by_hand.head().files))
        back_to(by_hand, f"savepoint:at-{number}")
    assert len({*lengths[1:]}) == 1
    assert lengths[-1] < 100


@pytest.mark.first(1)
@pytest.mark.parametrize("target", ["savepoint:compacted", "3"])
def test_a_snapshot_that_somebody_compacted_is_restored_without_its_manifest(by_hand: ByHand, target: str) -> None:
    by_hand.hours(8, 9)
    by_hand.tables.open("state").optimize.compact()
    create_savepoint(by_hand.tables, by_hand.head(), "compacted", NOW)
    by_hand.hours(10, 11)
    assert back_to(by_hand, "3" if target == "3" else "2").kind == "restore"
    back_to(by_hand, target)
    assert open_sessions(by_hand) == ([10] if target == "3" else [9])
    hour(by_hand, 12)


def test_going_on_after_a_restore_gives_what_a_run_without_the_detour_would(by_hand: ByHand, tmp_path: Path) -> None:
    by_hand.hours(8, 9, 10, 11)
    back_to(by_hand, "2")
    by_hand.hours(12, 13)
    straight = ByHand(tmp_path / "straight")
    straight.hours(8, 9, 12, 13)
    for table in ("results", "late", "state"):
        volatile = ["epoch", "timeline", "emitted_at", "manifest"]
        one, other = (
            sorted(map(str, rows.drop_columns([c for c in volatile if c in rows.column_names]).to_pylist()))
            for rows in (by_hand.rows(table), straight.rows(table))
        )
        assert one == other
    assert by_hand.head().manifest.epoch == 7


def test_the_position_in_the_source_and_event_time_go_back_too(by_hand: ByHand) -> None:
    by_hand.hours(8, 9, 10)
    then = find_snapshot(by_hand.tables, "1").manifest
    now = back_to(by_hand, "1")
    assert (now.positions, now.watermark, now.partitions) == (then.positions, then.watermark, then.partitions)


def test_a_line_that_was_left_comes_back_with_its_results(by_hand: ByHand) -> None:
    by_hand.hours(8, 9, 10)
    before = (open_sessions(by_hand), sessions(by_hand))
    back_to(by_hand, "1")
    hour(by_hand, 12)
    manifest = back_to(by_hand, "3")
    assert (manifest.epoch, manifest.parent, manifest.timeline) == (6, 3, 3)
    assert (open_sessions(by_hand), sessions(by_hand)) == before
    assert sorted(by_hand.rows("epochs")["epoch"].to_pylist()) == [1, 2, 3, 6]


def test_every_snapshot_of_a_run_can_be_restored_one_after_the_other(by_hand: ByHand) -> None:
    seen: dict[int, tuple[list[int], dict[int, bool]]] = {}
    for number in range(8, 13):
        hour(by_hand, number)
        seen[number - 7] = (open_sessions(by_hand), sessions(by_hand))
    for epoch in (3, 5, 1, 4, 2, 5):
        back_to(by_hand, str(epoch))
        assert (open_sessions(by_hand), sessions(by_hand)) == seen[epoch]


@pytest.mark.first(1)
@pytest.mark.parametrize("published", range(len(PUBLISHED)))
def test_a_restore_that_died_before_it_was_published_is_rolled_forward(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch, published: int
) -> None:
    by_hand.hours(8, 9, 10)

    def die(tables: object, manifest: Manifest) -> None:
        if manifest.kind == "restore":
            for table in PUBLISHED[:published]:
                publish_table(by_hand.tables, manifest, table)
            raise KeyboardInterrupt

    monkeypatch.setattr(step, "publish", die)
    with pytest.raises(KeyboardInterrupt):
        back_to(by_hand, "1")
    head = by_hand.head().manifest
    assert head.kind == "restore"
    publish(by_hand.tables, head)
    assert sessions(by_hand) == {}
    assert sorted(by_hand.rows("epochs")["epoch"].to_pylist()) == [1, 4]


def test_removals_that_the_manifest_does_not_list_are_forgotten_in_a_crash(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: rows would be removed after the commit, whoever made it."""
    by_hand.hours(8, 9, 10)
    restored = step.restored_epoch

    def unlisted(*arguments: object) -> NewEpoch:
        made = restored(*arguments)  # type: ignore[arg-type]
        return replace(made, published=Published(), withdrawn=Withdrawn())

    monkeypatch.setattr(step, "restored_epoch", unlisted)
    back_to(by_hand, "1")
    publish(by_hand.tables, by_hand.head().manifest)
    assert sessions(by_hand) != {}


def test_a_restore_before_an_epoch_that_can_not_be_published_any_more_goes_on(by_hand: ByHand) -> None:
    """Somebody vacuumed its files: nothing can publish it, and nothing of it may remain."""
    by_hand.hours(8, 9)
    lost = by_hand.committed(by_hand.planned([("ann", at("10:00"), 10)], at("10:00")))
    for file in lost.publish["results"].files:
        Path(by_hand.tables.path("results"), file.path).unlink()
    with pytest.raises(FilesMissing, match="publishing epoch 3 is impossible"):
        back_to(by_hand, "3")
    back_to(by_hand, "2")
    by_hand.hours(10)
    assert sessions(by_hand) == {8: False, 9: False}


def test_a_restore_first_publishes_what_a_crash_left_unpublished(by_hand: ByHand) -> None:
    by_hand.hours(8, 9)
    by_hand.committed(by_hand.planned([("ann", at("10:00"), 10)], at("10:00")))
    back_to(by_hand, "2")
    back_to(by_hand, "3")
    assert sessions(by_hand) == {8: False, 9: False}


def test_a_driver_that_hung_over_a_restore_can_neither_commit_nor_publish(by_hand: ByHand) -> None:
    by_hand.hours(8, 9)
    hung = by_hand.planned([("zoe", at("10:00"), 10)], at("10:00"))
    outcomes = hung.operate()
    back_to(by_hand, "1")
    with pytest.raises(Refused, match="another driver committed"):
        commit(hung.plan, outcomes, {})
    assert open_sessions(by_hand) == [8]


def test_a_restore_at_another_parallelism_keeps_every_window(by_hand: ByHand) -> None:
    by_hand.epoch(*[(f"user{n}", at("10:00"), n) for n in range(30)], watermark=at("10:00"))
    by_hand.epoch(watermark=at("11:00"))
    back_to(by_hand, "1")
    by_hand.parallelism = 5
    by_hand.epoch(watermark=at("11:00"))
    assert len(by_hand.rows("results")) == 30


@pytest.mark.parametrize("target", ["9", "savepoint:none", "newest", "-1", "savepoint:../x"])
def test_a_snapshot_that_is_not_there_is_a_usage_error(by_hand: ByHand, target: str) -> None:
    hour(by_hand, 8)
    said = (
        "not a snapshot of sessions: give latest|no savepoint 'none' of sessions; its savepoints: none|savepoint name"
    )
    with pytest.raises(UsageError, match=said):
        find_snapshot(by_hand.tables, target)


def test_results_that_are_no_longer_retained_can_not_come_back(
    by_hand: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_hand.hours(8, 9, 10)
    back_to(by_hand, "1")
    target = find_snapshot(by_hand.tables, "3")
    without(monkeypatch, 2)
    with pytest.raises(Refused, match="the rows that its epoch 2 published are no longer retained"):
        restore(by_hand.tables, target, NOW)
    assert by_hand.head().manifest.epoch == 4


def without(monkeypatch: pytest.MonkeyPatch, epoch: int) -> None:
    known: Callable[..., dict[int, object]] = lineages.snapshots_by_epoch  # type: ignore[attr-defined]
    monkeypatch.setattr(
        lineages,
        "snapshots_by_epoch",
        lambda tables: {each: entry for each, entry in known(tables).items() if each != epoch},
    )


def test_lines_are_ranges_of_epochs_and_fork_where_they_last_agree(by_hand: ByHand) -> None:
    by_hand.hours(8, 9, 10)
    third = by_hand.head().manifest
    assert third.line == ((1, 3),)
    fourth = back_to(by_hand, "2")
    assert fourth.line == ((1, 2), (4, 4))
    assert line_after(fourth, 5) == ((1, 2), (4, 5))
    assert line_after(None, 7) == ((7, 7),)
    assert fork_of(third.line, fourth.line) == 2
    assert fork_of(((7, 7),), ((1, 3),)) == 0
    assert fork_of(((1, 2), (4, 9)), ((1, 2), (4, 6), (10, 12))) == 6


def copied(by_hand: ByHand, folder: Path, name: str) -> ByHand:
    """Another warehouse, in which the pipeline has only a copy of a savepoint."""
    elsewhere = ByHand(folder)
    path = f"sessions/savepoints/{name}"
    shutil.copytree(by_hand.warehouse.path(path), elsewhere.warehouse.path(path))
    return elsewhere


def test_a_savepoint_starts_the_pipeline_in_a_warehouse_that_has_nothing_of_it(by_hand: ByHand, tmp_path: Path) -> None:
    by_hand.hours(8, 9)
    create_savepoint(by_hand.tables, by_hand.head(), "moving", NOW)
    elsewhere = copied(by_hand, tmp_path / "elsewhere", "moving")
    manifest = back_to(elsewhere, "savepoint:moving")
    assert (manifest.epoch, manifest.parent, manifest.timeline) == (3, 2, 2)
    assert open_sessions(elsewhere) == [9]
    hour(elsewhere, 10)
    assert sessions(elsewhere) == {9: False}
    assert manifest.positions == by_hand.head().manifest.positions


def test_a_savepoint_of_other_tables_removes_no_result(by_hand: ByHand, tmp_path: Path) -> None:
    by_hand.hours(8, 9)
    create_savepoint(by_hand.tables, by_hand.head(), "moving", NOW)
    elsewhere = copied(by_hand, tmp_path / "elsewhere", "moving")
    elsewhere.hours(1, 2)
    with pytest.raises(Refused, match="would lose the results of 2 epochs") as refused:
        back_to(elsewhere, "savepoint:moving")
    assert [way.act for way in refused.value.remedies] == [Act.RESTART]
    assert (open_sessions(elsewhere), sessions(elsewhere)) == ([2], {1: False})
    remove_tables(elsewhere.tables)
    manifest = back_to(elsewhere, "savepoint:moving")
    assert (manifest.epoch, manifest.parent) == (3, 2)
    elsewhere.hours(10, 11)
    assert sessions(elsewhere) == {9: False, 10: False}


def test_a_savepoint_from_before_a_restart_removes_no_result(by_hand: ByHand) -> None:
    by_hand.hours(8, 9)
    create_savepoint(by_hand.tables, by_hand.head(), "before", NOW)
    remove_tables(by_hand.tables)
    by_hand.hours(8, 9, 10)
    with pytest.raises(Refused, match="before a restart"):
        back_to(by_hand, "savepoint:before")
    assert sessions(by_hand) == {8: False, 9: False}


def test_a_savepoint_with_state_that_the_table_can_not_hold_is_refused(by_hand: ByHand) -> None:
    """Table state was created again from a savepoint of older code; the epochs after it are still there as stale."""
    older, newer = (
        hourly_pipeline(name="sessions", compute=_hourly(**aggregate))
        for aggregate in ({"total": Sum("value")}, {"total": Sum("value"), "most": Max("value")})
    )
    by_hand.pipeline = older
    by_hand.hours(8)
    create_savepoint(by_hand.tables, by_hand.head(), "before", NOW)
    by_hand.pipeline = newer
    ready(by_hand.tables, bind(newer, EVENTS, EVENTS), by_hand.head())
    by_hand.hours(9)
    create_savepoint(by_hand.tables, by_hand.head(), "after", NOW)
    shutil.rmtree(by_hand.tables.path(state.NAME))
    back_to(by_hand, "savepoint:before", keep_stale=True)
    with pytest.raises(Refused, match=r"does not have: acc_most.*another warehouse"):
        back_to(by_hand, "savepoint:after")


def _hourly(**aggregate: Aggregate) -> Windows:
    return Windows(TumblingEventTimeWindows.of(timedelta(hours=1)), aggregate=aggregate)

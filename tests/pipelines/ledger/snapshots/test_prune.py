from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.lake import LOCAL, Clock, Lake, at, session_pipeline
from tests.pipelines.by_hand import START_OF_DRIVER, ByHand
from tests.recovery.test_equality import commits_come_hourly
from tidegate.pipelines.definition import rejects
from tidegate.pipelines.epoch.open_input import OpenInput
from tidegate.pipelines.errors import Refused
from tidegate.pipelines.ledger.snapshots import retention as step
from tidegate.pipelines.ledger.snapshots.publish import publish
from tidegate.pipelines.ledger.snapshots.published import pin_epoch
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.retention import prune
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.windowing.time import to_millis

NOW = 2_000_000_000_000
MINUTE = 60_000


def late_in_each(by_hand: ByHand) -> None:
    """Epochs 1 to 4, a minute apart; each but the first has a late row."""
    by_hand.epoch(("ann", at("12:00"), 1), watermark=at("12:00"))
    for value in (2, 3, 4):
        by_hand.epoch(("bob", at("10:00"), value), watermark=at("12:00"))


def late_values(by_hand: ByHand) -> list[int]:
    return sorted(by_hand.rows("late")["value"].to_pylist())


def test_rows_of_epochs_that_began_before_the_moment_go(by_hand: ByHand) -> None:
    late_in_each(by_hand)
    assert prune(by_hand.tables, START_OF_DRIVER + 4 * MINUTE, NOW) == {"late": 2, "rejects": 0}
    assert late_values(by_hand) == [4]
    assert sum(by_hand.rows("epochs")["late"].to_pylist()) == 3, "what is gone is still counted"


def test_where_somebody_compacted_the_state_it_is_pruned_all_the_same(by_hand: ByHand) -> None:
    """The manifest is then in a file with rows, and must not be copied with them."""
    late_in_each(by_hand)
    by_hand.tables.open("state").optimize.compact()
    prune(by_hand.tables, NOW, NOW)
    assert by_hand.head().manifest.kind == "prune"
    assert [user for user in by_hand.rows("state")["user"].to_pylist() if user] == ["ann"]


def test_the_open_windows_stay_and_the_pipeline_goes_on(by_hand: ByHand) -> None:
    late_in_each(by_hand)
    prune(by_hand.tables, NOW, NOW)
    manifest = by_hand.head().manifest
    assert (manifest.kind, manifest.counters["open_windows"], manifest.timeline) == ("prune", 1, 1)
    by_hand.epoch(("bob", at("10:00"), 9), watermark=at("13:00"))
    assert late_values(by_hand) == [9]
    assert by_hand.rows("results")["user"].to_pylist() == ["ann"]


def test_without_old_rows_there_is_no_epoch(by_hand: ByHand) -> None:
    late_in_each(by_hand)
    assert prune(by_hand.tables, START_OF_DRIVER, NOW) == {"late": 0, "rejects": 0}
    assert by_hand.head().manifest.epoch == 4


def test_an_interrupted_run_is_rolled_forward(by_hand: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    late_in_each(by_hand)

    def die(tables: object, manifest: object) -> None:
        if getattr(manifest, "kind", "") == "prune":
            raise KeyboardInterrupt

    monkeypatch.setattr(step, "publish", die)
    with pytest.raises(KeyboardInterrupt):
        prune(by_hand.tables, NOW, NOW)
    publish(by_hand.tables, by_hand.head().manifest)
    assert late_values(by_hand) == []


def test_a_pipeline_that_never_ran_has_nothing_to_remove(by_hand: ByHand) -> None:
    with pytest.raises(Refused, match="no snapshot yet"):
        prune(by_hand.tables, NOW, NOW)


def restored(by_hand: ByHand, epoch: int, **options: bool) -> None:
    restore(by_hand.tables, find_snapshot(by_hand.tables, str(epoch)), NOW, **options)


def prunes(by_hand: ByHand) -> list[int]:
    rows = by_hand.rows("epochs")
    return sorted(rows.filter(pc.equal(rows["kind"], "prune"))["epoch"].to_pylist())


@pytest.mark.first(1)
@pytest.mark.parametrize("keep_stale", [False, True])
def test_what_was_pruned_stays_away_whatever_is_restored(by_hand: ByHand, keep_stale: bool) -> None:
    """Restores to before the prune, to the abandoned lineage, to before and after it, and to the prune itself."""
    late_in_each(by_hand)
    prune(by_hand.tables, START_OF_DRIVER + 4 * MINUTE, NOW)
    for epoch, left in ((2, []), (4, [4]), (1, []), (5, [4]), (3, []), (4, [4])):
        restored(by_hand, epoch, keep_stale=keep_stale)
        rows = by_hand.rows("late")
        assert sorted(rows.filter(pc.invert(rows["stale"]))["value"].to_pylist()) == left
        assert prunes(by_hand) == [5], "once, on whichever line it was"


def test_rows_of_a_line_that_was_left_are_pruned_too(by_hand: ByHand) -> None:
    late_in_each(by_hand)
    restored(by_hand, 2)
    assert late_values(by_hand) == [2]
    prune(by_hand.tables, NOW, NOW)
    restored(by_hand, 4)
    assert late_values(by_hand) == []


def test_a_prune_that_was_left_is_no_epoch_to_look_at(by_hand: ByHand) -> None:
    late_in_each(by_hand)
    prune(by_hand.tables, NOW, NOW)
    restored(by_hand, 2)
    with pytest.raises(Refused, match=r"epoch 5 .* was replaced"):
        pin_epoch(by_hand.tables, 5)


def test_a_row_that_was_rejected_for_lying_ahead_stays_because_optimize_would_make_it_usable(tmp_path: Path) -> None:
    """Once its file has been rewritten; it reappears with the lineage that a restore goes back to."""
    lake, pipeline = Lake(tmp_path, Clock(to_millis(at("02:00")))), session_pipeline(null_keys="reject")
    ahead = ("wild", at("20:00"), 7)
    for rows in ([("ann", at("01:00"), 1)], [ahead, (None, at("01:10"), 2)], [(None, at("01:20"), 3)]):
        lake.append(*rows)
        commits_come_hourly(lake, "events")
        lake.stream(LOCAL, pipeline)
    source = OpenInput.open(LOCAL, lake.tables(pipeline), pipeline)

    def rejected() -> list[int]:
        manifest = lake.snapshot(pipeline).manifest
        rows = source.rejected_before(manifest)
        return [] if rows is None else rows["value"].to_pylist()

    tables = lake.tables(pipeline)
    assert prune(tables, NOW, NOW) == {"late": 0, "rejects": 1}
    assert lake.rows(pipeline, "rejects")["reason"].to_pylist().count(rejects.AHEAD) == 1
    for epoch, expected in ((1, []), (3, [7]), (2, [7]), (1, []), (4, [7])):
        restore(tables, find_snapshot(tables, str(epoch)), NOW)
        assert rejected() == expected

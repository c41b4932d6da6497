"""The suite of a pipeline checks every window that became final since the last passed check, and none twice."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.lake import DAY0, at, session_pipeline
from tests.pipelines.by_hand import START_OF_DRIVER, ByHand
from tidegate.expectations.pinned import Pinned, pin
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables import quality
from tidegate.windowing.time import to_millis

HOURS = ("10:00", "12:00", "14:00", "16:00")
"""One session in each, final two hours later."""


def streamed(folder: Path) -> ByHand:
    """A stream of four epochs, each of which makes one window final: that of the epoch before it."""
    by_hand = ByHand(folder)
    for hour in HOURS:
        by_hand.epoch(("ann", at(hour), 1), watermark=at(hour))
    return by_hand


def check(by_hand: ByHand, epoch: int, *, passes: bool, severity: str = "critical") -> None:
    """Note in table quality how a check of an epoch went."""
    number = len(quality.read(by_hand.tables))
    moment, rule = DAY0 + timedelta(seconds=number), ("panes", "expect_panes_to_be_dense", "user")
    row = quality.QualityRow(f"check {number}", moment, 1, epoch, *rule, severity, passes, "", 1, 1, 1)
    quality.append(by_hand.tables, [row])


def fresh(by_hand: ByHand, epoch: int | None = None) -> Pinned:
    return pin(by_hand.tables, by_hand.pipeline, epoch)


def starts(found: Pinned) -> list[str]:
    return sorted(f"{start:%H:%M}" for start in found.fresh["window_start"])


def test_before_the_first_check_every_final_window_is_new(tmp_path: Path) -> None:
    assert starts(fresh(streamed(tmp_path))) == ["10:00", "12:00", "14:00"]


def test_windows_of_all_epochs_since_a_check_are_new_to_the_next(tmp_path: Path) -> None:
    by_hand = streamed(tmp_path)
    check(by_hand, 2, passes=True)
    found = fresh(by_hand)
    assert (found.since, starts(found)) == (2, ["12:00", "14:00"])
    assert starts(fresh(by_hand, 3)) == ["12:00"]
    assert starts(fresh(by_hand, 2)) == ["10:00"], "to the same check again what it saw is new"


@pytest.mark.long
@pytest.mark.parametrize(("severity", "since"), [("critical", 2), ("warning", 3), ("info", 3)])
def test_what_a_check_held_back_is_new_to_the_next_and_what_it_only_marked_is_not(
    severity: str, since: int, tmp_path: Path
) -> None:
    by_hand = streamed(tmp_path)
    check(by_hand, 2, passes=True)
    check(by_hand, 3, passes=False, severity=severity)
    assert fresh(by_hand).since == since


def test_of_several_checks_of_an_epoch_the_last_one_counts(tmp_path: Path) -> None:
    by_hand = streamed(tmp_path)
    check(by_hand, 3, passes=False)
    check(by_hand, 3, passes=True)
    assert fresh(by_hand).since == 3
    check(by_hand, 3, passes=False)
    assert fresh(by_hand).since is None


def test_a_window_that_was_out_before_the_check_and_final_after_it_is_new(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path, session_pipeline(allowed_lateness=timedelta(hours=1)))
    by_hand.epoch(("ann", at("10:00"), 1), watermark=at("11:00"))
    check(by_hand, 1, passes=True)
    by_hand.epoch(watermark=at("13:00"))
    found = fresh(by_hand)
    assert found.fresh["epoch"].tolist() == [1]
    assert starts(found) == ["10:00"]


def test_a_check_on_a_line_that_a_restore_left_says_nothing(tmp_path: Path) -> None:
    by_hand = streamed(tmp_path)
    for epoch in (2, 4):
        check(by_hand, epoch, passes=True)
    restore(by_hand.tables, find_snapshot(by_hand.tables, "3"), START_OF_DRIVER)
    by_hand.epoch(("eve", at("14:30"), 1), watermark=at("16:00"))
    found = fresh(by_hand)
    assert (found.since, starts(found)) == (2, ["12:00", "14:00", "14:30"])


def test_the_event_time_of_a_backfill_is_that_of_all_intervals_since(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path)
    for day in range(3):
        by_hand.epoch(
            ("ann", at("10:00", day), 1),
            watermark=at("00:00", day + 1),
            kind="backfill",
            interval=(at("00:00", day), at("00:00", day + 1)),
        )
    check(by_hand, 1, passes=True)
    assert fresh(by_hand).interval == {"start": to_millis(at("00:00", 1)), "end": to_millis(at("00:00", 3))}
    check(by_hand, 2, passes=True)
    assert fresh(by_hand).interval == {"start": to_millis(at("00:00", 2)), "end": to_millis(at("00:00", 3))}

"""The rules that retain snapshots, over lists of them: epoch, kind, hour of the commit, and the parent epoch."""

from __future__ import annotations

from datetime import timedelta

import pytest

from tidegate.pipelines.errors import UsageError
from tidegate.pipelines.ledger.snapshots.head import SnapshotEntry
from tidegate.pipelines.ledger.snapshots.retention import HOUR, Retention, retained
from tidegate.windowing.errors import IllegalArgument

NOW = 1000 * HOUR


def entry(epoch: int, hour: float, kind: str = "stream", parent: int | None = None, timeline: int = 1) -> SnapshotEntry:
    before = epoch - 1 if parent is None else parent
    told = {"epoch": epoch, "kind": kind, "parent": before or None, "timeline": timeline}
    return SnapshotEntry(epoch * 2, int(hour * HOUR), told)


def kept(entries: list[SnapshotEntry], snapshots: int, hours: float) -> list[int]:
    """Epochs that stay."""
    newest_first = sorted(entries, key=lambda entry: -entry.version)
    versions = retained(newest_first, Retention(snapshots, timedelta(hours=hours)), NOW)
    return [entry.epoch for entry in reversed(newest_first) if entry.version in versions]


def stream(epochs: int, per_hour: int) -> list[SnapshotEntry]:
    """Epochs of a stream whose newest is of now."""
    return [entry(number, 1000 - (epochs - number) / per_hour) for number in range(1, epochs + 1)]


def test_of_a_stream_the_newest_of_each_hour_stays_and_the_newest_of_all() -> None:
    assert kept(stream(40, per_hour=10), snapshots=3, hours=2.5) == [19, 29, 38, 39, 40]


def test_a_snapshot_that_was_kept_for_its_hour_stays_until_it_is_too_old() -> None:
    """Cleaned up after every epoch, the same are left as where it is done once."""
    left: list[SnapshotEntry] = []
    for made in stream(100, per_hour=10):
        left = [*left, made]
        newest_first = sorted(left, key=lambda one: -one.version)
        now = made.committed_at
        stay = retained(newest_first, Retention(3, timedelta(hours=4)), now)
        left = [one for one in left if one.version in stay]
    assert [one.epoch for one in left] == kept(stream(100, per_hour=10), snapshots=3, hours=4)


def test_without_an_age_only_the_newest_stay() -> None:
    assert kept(stream(40, per_hour=10), snapshots=3, hours=0) == [38, 39, 40]


def test_epochs_of_a_backfill_stay_each() -> None:
    """An interval that is run again starts from the snapshot before it, and a night of them is run in an hour."""
    assert kept([entry(number, 999.5, "backfill") for number in range(1, 31)], 2, 24) == list(range(1, 31))


def test_a_restore_stays_and_of_either_line_one_an_hour() -> None:
    made = [entry(1, 999.1), entry(2, 999.2), entry(3, 999.3, "restore", parent=1, timeline=2)]
    made += [entry(4, 999.4, timeline=2), entry(5, 999.5, timeline=2)]
    assert kept(made, 1, 24) == [2, 3, 5]


def test_at_least_one_snapshot_stays_and_no_time_is_negative() -> None:
    with pytest.raises(UsageError, match="snapshots to keep: 0; the newest snapshot is never removed"):
        Retention(0, timedelta(days=1))
    for faulty in ({"age": timedelta(-1)}, {"age": timedelta(1), "readers": timedelta(-1)}):
        with pytest.raises(IllegalArgument):
            Retention(1, **faulty)

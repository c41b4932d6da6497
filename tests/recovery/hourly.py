"""A stream made by hand with one session per hour, for faults between two of its epochs."""

from __future__ import annotations

from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.ledger.snapshots.recovery import recover
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables.pipeline_tables import PUBLISHED

NOW = 1_800_000_000_000
"""Clock of commands, int64 epoch milliseconds."""


def hours(by_hand: ByHand, *numbers: int) -> None:
    """Run epochs that each have a session at the full hour, and in which the session of the hour before fires; and a
    late row.
    """

    def fill(by_hand: ByHand) -> None:
        for number in numbers:
            recover(by_hand.tables)
            row, late = ("ann", at(f"{number:02d}:00"), number), ("bob", at("00:30"), number)
            by_hand.epoch(row, late, watermark=at(f"{number:02d}:00"))

    by_hand.filled(f"with late rows {numbers}", fill)


def sessions(by_hand: ByHand) -> list[int]:
    """Return the hours whose sessions were published."""
    return sorted(row["total"] for row in by_hand.rows("results").to_pylist() if row["user"] == "ann")


def contents(by_hand: ByHand, without: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Return the rows of each published table, as strings."""
    return {name: sorted(map(str, by_hand.rows(name).drop_columns([*without]).to_pylist())) for name in PUBLISHED}


def back_to(by_hand: ByHand, target: str) -> None:
    """Restore as the command does."""
    restore(by_hand.tables, find_snapshot(by_hand.tables, target), NOW)

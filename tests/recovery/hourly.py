"""A stream made by hand with a session an hour, for faults that are made between two of its epochs."""

from __future__ import annotations

from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.ledger.snapshots.recovery import recover

NOW = 1_800_000_000_000
"""Clock of commands, int64 epoch milliseconds."""


def hours(by_hand: ByHand, *numbers: int) -> None:
    """Epochs with a session at the full hour each, in which the one of the hour before fires; and a late row."""
    for number in numbers:
        recover(by_hand.tables)
        row, late = ("ann", at(f"{number:02d}:00"), number), ("bob", at("00:30"), number)
        by_hand.epoch(row, late, watermark=at(f"{number:02d}:00"))


def sessions(by_hand: ByHand) -> list[int]:
    """The hours whose sessions were published."""
    return sorted(row["total"] for row in by_hand.rows("results").to_pylist() if row["user"] == "ann")

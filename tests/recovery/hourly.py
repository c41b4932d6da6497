"""A stream made by hand with one session per hour, for faults between two of its epochs."""

from __future__ import annotations

from tests.lake import at
from tests.pipelines.by_hand import ByHand
from tidegate.pipelines.ledger.snapshots.foreign_changes import put_back
from tidegate.pipelines.ledger.snapshots.recovery import recover
from tidegate.pipelines.ledger.snapshots.restore import restore
from tidegate.pipelines.ledger.snapshots.savepoint import find_snapshot
from tidegate.pipelines.ledger.tables.damaged_log import set_aside_damaged
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


def back_to(by_hand: ByHand, target: str, give_up: list[str] | None = None) -> list[str]:
    """Restore as the command does, and return what was put back."""
    set_aside_damaged(by_hand.tables)
    told = put_back(by_hand.tables, give_up is not None)
    restore(
        by_hand.tables,
        find_snapshot(by_hand.tables, target),
        NOW,
        give_up=None if give_up is None else give_up.append,
        schemas=lambda: by_hand.planned([], at("12:00")).plan.bound.table_schemas,
    )
    return told

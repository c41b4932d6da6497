"""Measures of a slice before the tasks run: counts of rows, and the event times of each commit."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.pipelines.definition.event_columns import DROPPED, OK
from tidegate.windowing.time import Millis


@dataclass
class Measures:
    """Counts of rows, and the event times of each commit by source partition.

    Args:
        counts: number of rows by status.
        largest: event time of the latest row that moves the watermark, by commit and source partition.
        smallest: event time of the earliest usable row, by commit.
        rows: number of all rows, by commit.
        size: bytes of the read columns of usable rows, 0 if they are not known.
        rejecting: numbers of the parts with rejected rows.
    """

    counts: dict[str, int] = field(default_factory=dict)
    largest: dict[int, dict[str, Millis]] = field(default_factory=dict)
    smallest: dict[int, Millis] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    size: int = 0
    rejecting: set[int] = field(default_factory=set)

    def add(
        self, commit: int, status: str, rows: int, partition: str, smallest: Millis | None, largest: Millis | None
    ) -> None:
        """Add rows of one commit, status and source partition.

        Args:
            commit: index of the commit within the epoch.
            status: status of the rows.
            rows: number of the rows.
            partition: the source partition.
            smallest: event time of the earliest row; None if no row has a time.
            largest: event time of the latest row that moves the watermark; None if no row does.
        """
        self.counts[status] = self.counts.get(status, 0) + rows
        self.rows[commit] = self.rows.get(commit, 0) + rows
        if status in (OK, DROPPED) and largest is not None:
            of_commit = self.largest.setdefault(commit, {})
            of_commit[partition] = max(of_commit.get(partition, largest), largest)
        if status == OK and smallest is not None:
            self.smallest[commit] = min(self.smallest.get(commit, smallest), smallest)

    @property
    def usable(self) -> int:
        """Number of rows that go to the operator."""
        return self.counts.get(OK, 0)

    @property
    def rejected(self) -> dict[str, int]:
        """Number of rejected rows by reason."""
        return {status: rows for status, rows in self.counts.items() if status not in (OK, DROPPED)}

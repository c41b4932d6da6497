"""What one look at a slice tells before the tasks run, whoever looks."""

from __future__ import annotations

from dataclasses import dataclass, field

from tidegate.pipelines.definition.event_columns import DROPPED, OK
from tidegate.windowing.time import Millis


@dataclass
class Measures:
    """Counts, and the event times of each commit by source partition.

    Args:
        counts: rows by status.
        largest: event time of the latest row that moves the watermark, by commit and source partition.
        smallest: event time of the earliest usable row, by commit.
        rows: all rows that were looked at, by commit.
        size: bytes of what is read of usable rows, as far as the one who looks knows it.
    """

    counts: dict[str, int] = field(default_factory=dict)
    largest: dict[int, dict[str, Millis]] = field(default_factory=dict)
    smallest: dict[int, Millis] = field(default_factory=dict)
    rows: dict[int, int] = field(default_factory=dict)
    size: int = 0

    def add(
        self, commit: int, status: str, rows: int, partition: str, smallest: Millis | None, largest: Millis | None
    ) -> None:
        """Take in rows of one commit, status and source partition.

        Args:
            commit: index within the epoch.
            status: of the rows.
            rows: how many.
            partition: the source partition.
            smallest: event time of the earliest, None where no row has one.
            largest: event time of the latest that moves the watermark, None where none does.
        """
        self.counts[status] = self.counts.get(status, 0) + rows
        self.rows[commit] = self.rows.get(commit, 0) + rows
        if status in (OK, DROPPED) and largest is not None:
            known = self.largest.setdefault(commit, {})
            known[partition] = max(known.get(partition, largest), largest)
        if status == OK and smallest is not None:
            self.smallest[commit] = min(self.smallest.get(commit, smallest), smallest)

    @property
    def usable(self) -> int:
        """Rows that go to the operator."""
        return self.counts.get(OK, 0)

    @property
    def rejected(self) -> dict[str, int]:
        """Rows that can't be used, by reason."""
        return {status: rows for status, rows in self.counts.items() if status not in (OK, DROPPED)}

"""A note about stale results, for the log of the run that made them stale."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tidegate.pipelines.inspect.status import read_status


@dataclass(frozen=True, slots=True)
class StaleNote:
    """Names the intervals whose results are stale now, and the command that has them run again.

    Args:
        config: path of tidegate.toml.
        pipeline: its name.
    """

    config: str
    pipeline: str

    def __call__(self, result: Any) -> str | None:
        """Return the note after a run; None if nothing is stale."""
        stale = read_status(self.config, self.pipeline).stale
        if not stale:
            return None
        starts = [start for start, _ in stale]
        moments = (min(starts), max(starts), max(end for _, end in stale))
        # Runs have the dates of their intervals' starts, and Airflow takes both dates as included.
        first, last, end = (datetime.fromtimestamp(millis / 1000, UTC).isoformat() for millis in moments)
        return (
            f"results of {len(stale)} later interval(s), from {first} to {end}, are stale: they come from windows "
            f"that this run replaced. Run them again with: airflow tasks clear {self.pipeline}__backfill "
            f"--task-regex windows --downstream --start-date {first} --end-date {last} --yes"
        )
